"""A real llama.cpp server with the SmolLM2 weights, on loopback."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from coa.choices import Mode
from coa.distill.gateway.config import RecordConfig
from coa.distill.gateway.stage import record as gateway
from coa.models.base import Context, Finish, Generation, Home, Sampling
from coa.models.connect import connect, connect_all
from coa.models.tokenizer import smollm2_file
from coa.scoring import JudgeScorer, Verdict
from coa.trajectory import Limits, Message, Stop, Task, Trajectory, check, ledger_of, load_profile
from support.runs import run
from support.tokenizers import tokenizer
from support.tools import searching
from support.upstreams import calls

pytest.importorskip("xllamacpp", reason="pip install xllamacpp to test against a real llama.cpp server")

SERVER = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.port, params.hostnames = 0, ["127.0.0.1"]
params.n_ctx, params.n_parallel, params.warmup = 4096, 2, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


@contextmanager
def llama_server(log: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(smollm2_file())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        address = next((line.strip() for line in process.stdout if line.startswith("http")), None)
        if address is None:
            pytest.fail(f"the server did not start: {Path(log).read_text()[-2000:]}")
        try:
            yield f"{address}/v1", process
        finally:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with llama_server(tmp_path_factory.mktemp("llama") / "log") as (url, _):
        yield url


async def _generate(url: str, mode: Mode, text: str, stop: list[str]) -> Generation:
    model = await connect(url, mode=mode, tokenizer="smollm2" if mode is Mode.TOKENS else None)
    try:
        messages = [Message(role="user", content="What is the capital of France?")]
        ids = None
        if model.tokenizer is not None:
            ids = model.tokenizer.encode_prompt(messages)[1] + model.tokenizer.encode([text])[0]
        greedy = Sampling(temperature=0, top_p=1.0, top_k=1, max_tokens=24)
        return await model.generate(Context(messages, text, ids), stop=stop, sampling=greedy)
    finally:
        await model.close()


def test_ids_come_back_exactly_and_the_stop_string_with_them(server: str) -> None:
    made = asyncio.run(_generate(server, Mode.TOKENS, "The capital of France", [" Paris"]))
    assert made.finish is Finish.STOP and made.text.endswith(" Paris")
    assert made.tokens is not None and tokenizer("smollm2").decode(made.tokens.ids) == made.text
    assert made.tokens.logprobs is not None and all(p <= 0 for p in made.tokens.logprobs)
    assert made.usage.completion_tokens == len(made.tokens.ids)


def test_an_end_of_turn_is_an_end(server: str) -> None:
    made = asyncio.run(_generate(server, Mode.TOKENS, "The capital of France is Paris.", ["</never>"]))
    assert made.finish is Finish.END and "<|im_end|>" not in made.text


def test_chat_mode_goes_on_with_the_turn(server: str) -> None:
    made = asyncio.run(_generate(server, Mode.CHAT, "The capital of France", ["."]))
    assert "Paris" in made.text and not made.text.startswith("The capital")


def test_a_whole_run_is_bounded_and_its_ids_are_the_servers(server: str) -> None:
    async def go():  # type: ignore[no-untyped-def]
        model = await connect(server, tokenizer="smollm2")
        limits = Limits(steps=6, model_tokens=96, context_tokens=1024, seconds=120)
        try:
            return await run("Who?", model, {"web_search": searching()}, "nano", limits=limits)
        finally:
            await model.close()

    done = asyncio.run(go())
    assert done.stop is not Stop.FAILED, done.failure
    assert ledger_of(done, tokenizer("smollm2"), load_profile("nano")).to_sample().logprobs is not None


@pytest.mark.parametrize("mode", [Mode.TOKENS, Mode.CHAT])
def test_a_judge_is_held_to_the_schema_so_that_even_a_small_model_gives_a_verdict(server: str, mode: Mode) -> None:
    async def judge() -> Verdict:
        model = await connect(server, mode=mode, tokenizer="smollm2" if mode is Mode.TOKENS else None)
        scorer = JudgeScorer(model, attempts=1)
        try:
            return await scorer.score(Task(id="t", question="Capital of France?", answer="Paris"), "It is Paris")
        finally:
            await scorer.close()
            await model.close()

    verdict = asyncio.run(judge())
    assert verdict.value in (0.0, 1.0), verdict.reason


def test_a_constrained_run_is_legal_on_a_server(server: str) -> None:
    nano = load_profile("nano")

    async def go() -> Trajectory:
        model = await connect(server, tokenizer="smollm2")
        limits = Limits(steps=12, tool_calls=1, model_tokens=240, context_tokens=1500, seconds=240)
        try:
            tools = {"web_search": searching()}
            return await run(
                "Who wrote the first program?", model, tools, nano, limits=limits, sampling=Sampling(seed=5),
                constrain="always",
            )  # fmt: skip
        finally:
            await model.close()

    made = asyncio.run(go())
    assert made.failure is None and made.answer
    assert check(made.steps, nano) == () and not any(step.repairs for step in made.steps)
    assert all(step.meta["constrained"] for step in made.steps if step.author == "model")
    ledger_of(made, tokenizer("smollm2"), nano)


async def _recorded(url: str, path: str, body: dict[str, Any]) -> None:
    async with aiohttp.ClientSession() as session, session.post(f"{url}{path}", json=body) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()


_SAID = [{"role": "user", "content": "What is the capital of France?"}]
_CHAT = {"messages": _SAID, "max_tokens": 8, "temperature": 0, "seed": 1}
_REQUESTS: dict[str, dict[str, Any]] = {
    "/chat/completions": _CHAT,
    "/messages": {**_CHAT, "model": "m"},
    "/responses": {"input": "What is the capital of France?", "max_output_tokens": 8, "temperature": 0, "model": "m"},
    "/completions": {"prompt": "The capital of France", "max_tokens": 8, "temperature": 0},
}


def _text(path: str, body: dict[str, Any]) -> str:
    match path:
        case "/chat/completions":
            return str(body["choices"][0]["message"]["content"])
        case "/completions":
            return str(body["choices"][0]["text"])
        case "/messages":
            return str(body["content"][0]["text"])
        case _:
            return str(body["output"][0]["content"][0]["text"])


@pytest.mark.parametrize("path", _REQUESTS)
def test_the_gateway_records_a_stream_of_each_protocol_as_the_whole_reply(
    server: str, path: str, tmp_path: Path
) -> None:
    with gateway(RecordConfig(upstream=server, port=0), tmp_path) as running:
        for stream in (False, True):
            asyncio.run(_recorded(running.base_url(), path, {**_REQUESTS[path], "stream": stream}))
    (_, whole), (_, streamed) = calls(tmp_path)
    assert streamed["stream"] and not whole["stream"] and streamed["complete"] and streamed["error"] is None
    assert _text(path, streamed["body"]) == _text(path, whole["body"]) != ""
    timed = {"timings", "completed_at"}
    assert streamed["body"].keys() - timed <= whole["body"].keys() | {"usage", "error", "model"}
    assert whole["body"].keys() - streamed["body"].keys() <= {"usage", "timings", "completed_at"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/chat/completions", "/completions"])
def test_the_gateway_keeps_the_ids_that_were_sampled(server: str, path: str, stream: bool, tmp_path: Path) -> None:
    with gateway(RecordConfig(upstream=server, port=0, tokens=True), tmp_path) as running:
        asyncio.run(_recorded(running.base_url(), path, {**_REQUESTS[path], "stream": stream}))
    ((request, response),) = calls(tmp_path)
    assert "logprobs" not in request["body"]  # the record shows what the team asked for
    entries = response["body"]["choices"][0]["logprobs"]["content"]
    assert tokenizer("smollm2").decode([entry["id"] for entry in entries]) == _text(path, response["body"])
    assert all(entry["logprob"] <= 0 for entry in entries)


def test_asking_for_ids_never_breaks_a_call_that_cannot_have_them(server: str, tmp_path: Path) -> None:
    function = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
    body = {**_CHAT, "stream": True, "tools": [{"type": "function", "function": function}]}
    with gateway(RecordConfig(upstream=server, port=0, tokens=True), tmp_path) as running:
        asyncio.run(_recorded(running.base_url(), "/chat/completions", body))
    assert calls(tmp_path)[0][1]["complete"]


@pytest.mark.parametrize("mode", [Mode.TOKENS, Mode.CHAT])
def test_of_two_servers_one_is_killed_while_it_writes_and_the_other_writes_the_same(
    mode: Mode, server: str, tmp_path: Path
) -> None:
    messages = [Message(role="user", content="Count from one to fifty in words.")]
    greedy = Sampling(temperature=0, top_p=1.0, top_k=1, max_tokens=48)

    async def go() -> tuple[Generation, Generation]:
        with llama_server(tmp_path / "log") as (mortal, process):
            model = await connect_all([mortal, server], mode=mode, tokenizer="smollm2")
            ids = model.tokenizer.encode_prompt(messages)[1] if model.tokenizer is not None else None
            home, killed = Home(), False

            def kill(text: str) -> None:
                nonlocal killed
                if len(text) > 20 and not killed:
                    killed = True
                    process.kill()
                    process.wait()

            try:
                context = Context(messages, "", ids, home=home)
                broken = await model.generate(context, stop=[], sampling=greedy, on_text=kill)
                assert killed
                return broken, await model.generate(context, stop=[], sampling=greedy)
            finally:
                await model.close()

    broken, again = asyncio.run(go())
    assert broken.text == again.text and broken.usage.completion_tokens == 48
