"""Text as it is written, from every kind of server; and the same record as without."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from coa.choices import Mode
from coa.errors import ModelError
from coa.http import Patience
from coa.models.base import Context, Finish, Generation, Model, Sampling
from coa.models.connect import connect
from coa.trajectory import Message, Stop, Task, Trajectory
from support import servers
from support.runs import run, run_many
from support.servers import FakeServer
from support.tokenizers import tokenizer
from support.tools import searching

QUICK = Patience(attempts=3, timeout_s=5, silence_s=5, backoff_s=0.01)
TEXT = "<think>größer — 京都</think>\n<answer>Ada</answer> trailing"
SERVERS = ["vllm", "sglang", "llamacpp", "chat", "vllm-chat"]


def server_of(kind: str, script: Callable[[dict[str, Any]], str] = lambda body: TEXT) -> FakeServer:
    owner = "somebody" if kind == "chat" else kind.removesuffix("-chat")
    return FakeServer(script, owner=owner, tokenizer=tokenizer("smollm2"))


def ask(server: FakeServer, kind: str, *, before: str = "", listen: bool = True) -> tuple[Generation, list[str]]:
    heard: list[str] = []

    async def go() -> Generation:
        async with server.running() as url:
            chat = kind.endswith("chat")
            model = await connect(
                url,
                mode=Mode.CHAT if chat else Mode.TOKENS,
                tokenizer=None if chat else tokenizer("smollm2"),
                patience=QUICK,
            )
            try:
                context = Context([Message(role="user", content="x")], before, [1, 2, 3], [(True, before)])
                return await model.generate(
                    context, stop=["</answer>"], sampling=Sampling(top_k=0), on_text=heard.append if listen else None
                )
            finally:
                await model.close()

    return asyncio.run(go()), heard


@pytest.mark.parametrize("kind", SERVERS)
def test_the_text_grows_as_it_is_written_and_ends_as_the_record(kind: str) -> None:
    server = server_of(kind)
    made, heard = ask(server, kind)
    assert made.text == TEXT.removesuffix(" trailing") and made.finish is Finish.STOP
    assert len(heard) > 10 and heard[-1] == made.text
    assert all(made.text.startswith(text.rstrip("\ufffd")) for text in heard)
    assert [len(text) for text in heard] == sorted(len(text) for text in heard)
    assert server.asked[0]["stream"] is True
    whole, _ = ask(server_of(kind), kind, listen=False)
    assert made == whole, "listening changes nothing, usage included"


@pytest.mark.parametrize("kind", [kind for kind in SERVERS if kind != "llamacpp"])
def test_many_runs_do_not_stream(kind: str) -> None:
    server = server_of(kind)

    async def go() -> list[Trajectory]:
        async with server.running() as url:
            model = await connect(
                url, mode=Mode.CHAT if kind.endswith("chat") else Mode.AUTO, tokenizer=tokenizer("smollm2")
            )
            try:
                return [t async for t in run_many([Task(id="1", question="?")], model)]
            finally:
                await model.close()

    assert asyncio.run(go())[0].stop is Stop.ANSWERED
    assert not any(body.get("stream") for body in server.asked)


def test_sglang_may_send_new_tokens_only() -> None:
    server = server_of("sglang")
    server.incremental = True
    assert ask(server, "sglang")[0] == ask(server_of("sglang"), "sglang", listen=False)[0]


@pytest.mark.parametrize("kind", SERVERS)
def test_a_stream_that_breaks_is_asked_for_again(kind: str) -> None:
    server = server_of(kind)
    server.breaks_after = 5
    made, _ = ask(server, kind)
    assert made.text == TEXT.removesuffix(" trailing") and len(server.asked) == 2


@pytest.mark.parametrize("kind", SERVERS)
def test_an_error_in_the_middle_of_a_stream_is_told(kind: str) -> None:
    async def gives_up(request: Any) -> Any:
        return await server._stream(request, [{"error": {"message": "out of memory", "code": 400}}])

    server = server_of(kind)
    server.trouble = [gives_up]
    with pytest.raises(ModelError, match="out of memory"):
        ask(server, kind)


def test_a_chat_server_that_cannot_stream_is_asked_for_whole_answers() -> None:
    server = server_of("chat")
    server.trouble = [servers.status(400, '{"error": {"message": "stream is not supported"}}')]
    made, heard = ask(server, "chat")
    assert made.text == TEXT.removesuffix(" trailing") and heard == [made.text]
    ignoring = server_of("chat")
    answer = {"choices": [{"message": {"content": "<answer>x</answer>"}, "finish_reason": "stop"}]}
    ignoring.trouble = [lambda request: servers.web.json_response(answer)]
    assert ask(ignoring, "chat")[0].text == "<answer>x</answer>"


def test_a_server_that_repeats_what_it_was_given_shows_only_what_is_new() -> None:
    before = "<think>so far</think>\n"
    made, heard = ask(server_of("vllm-chat", lambda body: before + TEXT), "vllm-chat", before=before)
    assert made.text == TEXT.removesuffix(" trailing")
    assert all(made.text.startswith(text) for text in heard)
    again, _ = ask(server_of("vllm-chat", lambda body: before[:15]), "vllm-chat", before=before)
    assert again.text == before[:15], "a model that begins again as it began before has written that"


def test_each_server_is_asked_for_the_whole_vocabulary_in_its_own_way() -> None:
    asked: dict[str, Any] = {}
    for kind in ("vllm", "sglang", "llamacpp", "vllm-chat", "chat"):
        server = server_of(kind)
        ask(server, kind)
        asked[kind] = server.asked[0]
    assert asked["vllm"]["top_k"] == asked["vllm-chat"]["top_k"] == asked["llamacpp"]["top_k"] == 0
    assert asked["sglang"]["sampling_params"]["top_k"] == -1
    assert "top_k" not in asked["chat"], "no field that an unknown server may refuse"


def test_any_of_the_ids_that_end_a_turn_is_taken_off() -> None:
    tok = tokenizer("smollm2")
    ids = tok.encode(["<think>x</think>"])[0]

    def ends_with(**choice: Any) -> Any:
        logprobs = {"token_logprobs": [-0.5] * (len(ids) + 1)}
        row = {"text": "", "logprobs": logprobs, "finish_reason": "stop", **choice}
        return lambda request: servers.web.json_response({"choices": [row]})

    for last, told in ((tok.end_of_turn, None), (0, 0)):  # 0 is <|endoftext|>, which the server names as the reason
        server = server_of("vllm")
        server.trouble = [ends_with(token_ids=[*ids, last], stop_reason=told)]
        made, _ = ask(server, "vllm", listen=False)
        assert made.tokens is not None and list(made.tokens.ids) == ids and made.finish is Finish.END
        assert made.tokens.logprobs is not None and len(made.tokens.logprobs) == len(ids)


def test_a_run_is_heard_while_the_model_writes() -> None:
    heard: list[str] = []

    async def go() -> Trajectory:
        async with server_of("vllm").running() as url:
            model: Model = await connect(url, tokenizer=tokenizer("smollm2"), patience=QUICK)
            try:
                return await run("?", model, {"web_search": searching()}, listen=lambda e: heard.append(str(e)))
            finally:
                await model.close()

    assert asyncio.run(go()).answer == "Ada"
    assert len([event for event in heard if event.startswith("Delta")]) > 3
