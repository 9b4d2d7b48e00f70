"""Models over HTTP against servers on loopback that behave, and that do not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from coa.choices import Mode
from coa.errors import ModelError
from coa.http import Patience
from coa.models.base import Context, Finish, Generation, Model, Sampling
from coa.models.connect import connect
from coa.models.tokenizer import TextTokenizer, smollm2_file
from coa.trajectory import FailureSite, Message, Stop, Task, Trajectory, ledger_of
from support import servers
from support.builders import WEB
from support.gguf_files import byte_level
from support.runs import run, run_many
from support.servers import FakeServer
from support.tokenizers import tokenizer
from support.tools import searching

QUICK = Patience(attempts=4, timeout_s=0.6, connect_s=0.5, silence_s=0.3, backoff_s=0.01)
SEARCH = "<think>t</think>\n<plan>p</plan>\n<think>s</think>\n<web_search>who</web_search> and more"
DONE = "<think>d</think>\n<answer>Ada</answer> trailing"


def two_turns(body: dict[str, Any]) -> str:
    seen = str(body.get("messages")) + (tokenizer("smollm2").decode(body["prompt"]) if "prompt" in body else "")
    return DONE if "Ada Lovelace" in seen else SEARCH


def with_server(
    server: FakeServer, use: Callable[[Model], Awaitable[Any]], *, patience: Patience = QUICK, **options: Any
) -> Any:
    async def go() -> Any:
        async with server.running() as url:
            model = await connect(url, patience=patience, **options)
            try:
                return await use(model)
            finally:
                await model.close()

    return asyncio.run(go())


async def ask(model: Model) -> Trajectory:
    return await run("Who?", model, {"web_search": searching()})


@pytest.mark.parametrize("owner", ["vllm", "sglang", "llamacpp"])
def test_token_mode_keeps_the_ids_that_the_server_sampled(owner: str) -> None:
    server = FakeServer(two_turns, owner=owner, tokenizer=tokenizer("smollm2"))
    if owner == "sglang":
        server.script = lambda body: two_turns({"prompt": body["prompt"]})
    done = with_server(server, ask, tokenizer=tokenizer("smollm2"))
    assert done.stop is Stop.ANSWERED and done.answer == "Ada"
    assert done.tokenizer == tokenizer("smollm2").fingerprint
    asked = [body.get("prompt") or body["input_ids"] for body in server.asked]
    ids = ledger_of(done, tokenizer("smollm2"), WEB).ids
    assert all(ids[: len(prompt)] == prompt for prompt in asked)
    assert ledger_of(done, tokenizer("smollm2"), WEB).to_sample().logprobs is not None
    assert done.usage.prompt_tokens == sum(map(len, asked)) and done.usage.model_calls == 2


@pytest.mark.parametrize("owner", ["vllm", "llamacpp"])
def test_chat_mode_continues_the_turn_where_the_server_can(owner: str) -> None:
    server = FakeServer(two_turns, owner=owner)
    done = with_server(server, ask, mode=Mode.CHAT)
    assert done.answer == "Ada" and done.tokenizer is None
    last = server.asked[1]["messages"][-1]
    assert last["role"] == "assistant" and last["content"].endswith("</observation>\n")
    assert server.asked[1].get("continue_final_message", False) is (owner == "vllm")
    assert done.usage.cached_tokens == 4


def test_an_unknown_chat_server_gets_observations_as_user_messages(caplog: pytest.LogCaptureFixture) -> None:
    server = FakeServer(two_turns, owner="somebody")
    done = with_server(server, ask)
    assert done.answer == "Ada"
    assert [message["role"] for message in server.asked[1]["messages"]] == ["system", "user", "assistant", "user"]
    assert len(server.asked[0]["stop"]) <= 4
    assert "no token ids, no logprobs, at most 4 stop strings" in caplog.text


def test_a_stop_string_that_the_server_took_away_is_put_back() -> None:
    server = FakeServer(two_turns, owner="somebody")
    done = with_server(server, ask)
    assert [step.surface for step in done.steps if step.agent in ("web_search", "answer")] == [None, None]


MANY = ["</a>", "</b>", "</c>", "</d>", "</e>", "</f>"]


@pytest.mark.parametrize("mode", [Mode.TOKENS, Mode.CHAT])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_server_that_takes_four_stop_strings_is_stopped_at_the_others(
    mode: Mode, streamed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = tokenizer("smollm2")
    server = FakeServer(lambda body: "one two</e> three</c> four", owner="vllm", tokenizer=tokens)
    server.most_stops = 4
    heard: list[str] = []

    async def twice(model: Model) -> list[Generation]:
        messages = [Message(role="user", content="Count.")]
        ids = tokens.encode_prompt(messages)[1] if mode is Mode.TOKENS else None
        on_text = heard.append if streamed else None
        context = Context(messages, "", ids)
        return [await model.generate(context, stop=MANY, sampling=Sampling(), on_text=on_text) for _ in range(2)]

    made = with_server(server, twice, mode=mode, tokenizer=tokens if mode is Mode.TOKENS else None)
    assert [(one.text, one.finish) for one in made] == [("one two</e>", Finish.STOP)] * 2
    assert [len(body["stop"]) for body in server.asked][-2:] == [4, 4]
    assert heard[-1:] == (["one two</e>"] if streamed else [])
    if mode is Mode.TOKENS:
        ids = tuple(tokens.encode(["one two</e> three</c> four"])[0])
        assert all(one.tokens is not None and ids[: len(one.tokens.ids)] == one.tokens.ids for one in made)
        assert all(one.tokens is not None and len(one.tokens.logprobs or ()) == len(one.tokens.ids) for one in made)
        assert caplog.text.count("VLLM_MAX_STOP_STRINGS") == 1


def test_a_refusal_that_fewer_stop_strings_do_not_change_is_reported() -> None:
    server = FakeServer(lambda body: "", owner="vllm", tokenizer=tokenizer("smollm2"))
    server.most_stops = 0

    async def once(model: Model) -> Generation:
        return await model.generate(Context([], "", [1]), stop=MANY, sampling=Sampling())

    with pytest.raises(ModelError, match=r"answers 400: 2 validation errors"):
        with_server(server, once, tokenizer=tokenizer("smollm2"))
    assert [len(body["stop"]) for body in server.asked] == [6, 4]


TROUBLE = {
    "429": servers.status(429),
    "429 with a date": servers.status(429, **{"Retry-After": "Fri, 01 Jan 2027 00:00:00 GMT"}),
    "500": servers.status(500, "oops"),
    "503": servers.status(503),
    "drop": servers.drop,
    "hang": servers.hang,
    "truncated JSON": servers.truncated,
    "wrong content type": servers.wrong_type,
    "slow bytes": servers.slow_bytes,
    "dies in the middle": servers.dies_in_the_middle,
}


@pytest.mark.parametrize("owner", ["vllm", "llamacpp", "somebody"])
@pytest.mark.parametrize("kind", TROUBLE)
def test_passing_trouble_is_waited_out(kind: str, owner: str) -> None:
    server = FakeServer(two_turns, owner=owner, tokenizer=tokenizer("smollm2"))
    server.trouble = [TROUBLE[kind], TROUBLE[kind]]
    done = with_server(server, ask, tokenizer=None if owner == "somebody" else "smollm2")
    assert done.stop is Stop.ANSWERED, done.failure


@pytest.mark.parametrize("kind", TROUBLE)
def test_lasting_trouble_ends_as_a_named_failure(kind: str) -> None:
    server = FakeServer(two_turns, owner="vllm", tokenizer=tokenizer("smollm2"))
    server.trouble = [TROUBLE[kind]] * 50
    done = with_server(server, ask, tokenizer=tokenizer("smollm2"))
    assert done.stop is Stop.FAILED and done.failure is not None
    assert done.failure.site is FailureSite.MODEL and "4 attempts" in done.failure.message


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (servers.status(400, '{"error": {"message": "prompt too long"}}'), "prompt too long"),
        (servers.status(401, "no"), "answers 401"),
        (lambda request: servers.web.json_response({"unexpected": True}), "unknown shape"),
        (lambda request: servers.web.json_response({"choices": [{"text": "x"}]}), "does not return token ids"),
    ],
)
def test_what_will_not_pass_is_told_at_once(trouble: Any, said: str) -> None:
    server = FakeServer(two_turns, owner="vllm", tokenizer=tokenizer("smollm2"))
    server.trouble = [trouble]
    done = with_server(server, ask, tokenizer=tokenizer("smollm2"))
    assert done.failure is not None and said in done.failure.message
    assert len(server.asked) == 0


def test_half_of_the_requests_fail_and_nothing_is_lost() -> None:
    import random

    rng = random.Random(1)
    server = FakeServer(two_turns, owner="vllm", tokenizer=tokenizer("smollm2"))
    kinds = [servers.drop, servers.status(500), servers.truncated, servers.status(429), *[lambda request: None] * 4]
    server.trouble = [rng.choice(kinds) for _ in range(4000)]
    patient = Patience(attempts=12, timeout_s=5, silence_s=5, backoff_s=0.001)
    tasks = [Task(id=str(n), question=f"Who is {n}?") for n in range(200)]

    async def all_of_them(model: Model) -> list[Trajectory]:
        return [t async for t in run_many(tasks, model, {"web_search": searching()}, concurrency=50)]

    done = with_server(server, all_of_them, patience=patient, tokenizer=tokenizer("smollm2"))
    assert len({t.task.id for t in done}) == 200
    assert all(t.stop is Stop.ANSWERED for t in done), [t.failure for t in done if t.failure][:3]


def test_connecting_explains_what_is_wrong() -> None:
    async def unused(model: Model) -> None:
        raise AssertionError("should not connect")

    with pytest.raises(ModelError, match="does not serve 'other'; it serves tiny"):
        with_server(FakeServer(two_turns), unused, name="other")
    with pytest.raises(ModelError, match="not known to take and return token ids"):
        with_server(FakeServer(two_turns, owner="somebody"), unused, mode=Mode.TOKENS)
    with pytest.raises(ModelError, match="did not answer in 4 attempts"):
        asyncio.run(connect("http://127.0.0.1:9/v1", patience=QUICK))


def test_the_key_comes_from_the_environment_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str | None] = []
    server = FakeServer(two_turns, owner="somebody")
    server.trouble = [lambda request: keys.append(request.headers.get("Authorization"))] * 2
    monkeypatch.setenv("MY_KEY", "secret-value")
    done = with_server(server, ask, api_key_env="MY_KEY")
    assert keys == ["Bearer secret-value"] * 2
    assert "secret-value" not in done.to_json()


def test_length_is_told_apart_from_an_end() -> None:
    async def once(model: Model) -> Finish:
        from coa.models.base import Context, Sampling
        from coa.trajectory import Message

        context = Context([Message(role="user", content="x")], "", [1, 2, 3])
        return (await model.generate(context, stop=["</answer>"], sampling=Sampling())).finish

    server = FakeServer(lambda body: "plain", owner="vllm", tokenizer=tokenizer("smollm2"))
    assert with_server(server, once, tokenizer=tokenizer("smollm2")) is Finish.END
    choice = {"text": "cut", "token_ids": [5], "finish_reason": "length"}
    server.trouble = [lambda request: servers.web.json_response({"choices": [choice]})]
    assert with_server(server, once, tokenizer=tokenizer("smollm2")) is Finish.LENGTH


def _rules(body: dict[str, Any], owner: str) -> str:
    """The grammar, where each server expects it."""
    field = {
        "vllm": lambda: body["structured_outputs"]["grammar"],
        "sglang": lambda: body["sampling_params"]["ebnf"],
        "llamacpp": lambda: body["grammar"],
    }
    return str(field[owner]())


@pytest.mark.parametrize("owner", ["vllm", "sglang", "llamacpp"])
def test_servers_get_a_grammar_only_when_asked_and_a_cut_step_is_closed(owner: str) -> None:
    steps: Iterator[str | tuple[str, str]] = iter([("<think>so it", "length"), "</think>", "\n<answer>Ada</answer>"])
    server = FakeServer(lambda body: next(steps), owner=owner, tokenizer=tokenizer("smollm2"))

    async def held(model: Model) -> Trajectory:
        return await run("Who?", model, {}, "nano", constrain="always")

    done = with_server(server, held, tokenizer="smollm2")
    assert [(step.agent, step.text) for step in done.steps] == [("think", "so it"), ("answer", "Ada")]
    assert all(step.meta["constrained"] and "log_kept" not in step.meta for step in done.steps)
    first, rest, last = (_rules(body, owner) for body in server.asked)
    assert first.startswith("root ::= s") and first.count("::=") > 10
    assert rest == 'root ::= "\\u003C\\u002Fthink\\u003E"\n'
    assert "think" not in last.split("\n")[1]  # no second thought
    plain = FakeServer(two_turns, owner="vllm", tokenizer=tokenizer("smollm2"))
    with_server(plain, ask, tokenizer="smollm2")
    assert not any("structured_outputs" in body for body in plain.asked)


def test_a_server_that_ignores_the_grammar_is_found_out() -> None:
    server = FakeServer(lambda body: "Certainly! <answer>Ada</answer>", tokenizer=tokenizer("smollm2"))

    async def held(model: Model) -> Trajectory:
        return await run("Who?", model, {}, "nano", constrain="always")

    done = with_server(server, held, tokenizer="smollm2")
    assert done.stop is Stop.FAILED and done.failure is not None
    assert "does not keep to the grammar" in done.failure.message


def test_chat_mode_cannot_be_constrained() -> None:
    server = FakeServer(two_turns, owner="vllm")

    async def held(model: Model) -> Trajectory:
        return await run("Who?", model, {}, "nano", constrain="always")

    with pytest.raises(ModelError, match="takes no grammar"):
        with_server(server, held, mode=Mode.CHAT)


@pytest.mark.parametrize("code", [404, 405])
def test_a_chat_server_that_lists_no_models_serves_the_one_that_is_named(code: int) -> None:
    class Unlisted(FakeServer):
        async def models(self, request: web.Request) -> web.Response:
            return web.Response(status=code)

    async def go() -> Trajectory:
        async with Unlisted(two_turns, owner="somebody").running() as url:
            with pytest.raises(ModelError, match=str(code)):
                await connect(url)
            model = await connect(url, "tiny")
            try:
                return await ask(model)
            finally:
                await model.close()

    assert asyncio.run(go()).stop is Stop.ANSWERED


class LlamaCpp(FakeServer):
    """Lists only the name of its file; its properties have the path."""

    def __init__(self, path: Path) -> None:
        super().__init__(two_turns, owner="llamacpp", tokenizer=tokenizer("smollm2"))
        self.path = path

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": self.path.name, "owned_by": self.owner}]})

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/props", self.properties)]

    async def properties(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": str(self.path)})


async def vocabulary_of(model: Model) -> int | None:
    return model.tokenizer.vocabulary_size if isinstance(model.tokenizer, TextTokenizer) else None


def test_the_tokenizer_of_llama_cpp_is_found_in_the_file_that_it_serves(caplog: pytest.LogCaptureFixture) -> None:
    assert with_server(LlamaCpp(smollm2_file()), vocabulary_of) == 49152
    assert caplog.text == ""


def test_chat_mode_for_want_of_a_tokenizer_is_a_warning_with_the_reason_and_the_way_out(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    odd = LlamaCpp(byte_level(tmp_path / "odd.gguf", "bloom"))
    assert with_server(odd, vocabulary_of) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "its pre-tokenizer 'bloom' is not known to coa" in caplog.text and "RL cannot train" in caplog.text
    assert "--set tokenizer=" in caplog.text
    with pytest.raises(ModelError, match=r"token mode needs the tokenizer of 'odd.gguf': .*'bloom' is not known"):
        with_server(odd, vocabulary_of, mode=Mode.TOKENS)
