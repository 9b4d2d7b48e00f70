"""Several servers of one model on loopback: how work is divided, and what happens when they go down and come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from typer.testing import CliRunner

from coa.choices import Mode
from coa.cli import app
from coa.errors import ModelError
from coa.http import Patience
from coa.models.base import Context, Home, Model, Sampling
from coa.models.connect import connect_all
from coa.models.opening import open_model
from coa.models.places import check_model, server_urls
from coa.trajectory import Message, Stop, Task, Trajectory
from support import servers
from support.gguf_files import byte_level
from support.runs import run, run_many
from support.servers import FakeServer
from support.tokenizers import tokenizer
from support.tools import searching

QUICK = Patience(attempts=4, timeout_s=5, connect_s=0.5, silence_s=2, backoff_s=0.01)
SEARCH = "<think>t</think>\n<plan>p</plan>\n<think>s</think>\n<web_search>who</web_search> and more"
DONE = "<think>d</think>\n<answer>Ada</answer> trailing"
TASKS = [Task(id=str(n), question=f"Who is {n}?") for n in range(40)]


def two_turns(body: dict[str, Any]) -> str:
    seen = str(body.get("messages")) + (tokenizer("smollm2").decode(body["prompt"]) if "prompt" in body else "")
    return DONE if "Ada Lovelace" in seen else SEARCH


class Mortal(FakeServer):
    """Goes down in the middle of a stream, once, with all its connections."""

    dies_after = 0
    """Number of events of a stream after which it dies; 0 for a server that does not."""

    async def _stream(self, request: web.Request, events: list[dict[str, Any]]) -> web.StreamResponse:
        if not self.dies_after:
            return await super()._stream(request, events)
        self.breaks_after, self.dies_after = self.dies_after, 0
        response = await super()._stream(request, events)
        await self.stop()
        assert request.transport is not None
        request.transport.abort()
        return response


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


def token_servers(count: int = 2, owner: str = "vllm") -> list[Mortal]:
    return [Mortal(two_turns, owner=owner, tokenizer=tokenizer("smollm2")) for _ in range(count)]


@asynccontextmanager
async def pool_of(made: Sequence[FakeServer], **options: Any) -> AsyncIterator[Model]:
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(server.running()) for server in made]
        model = await connect_all(urls, patience=QUICK, **options)
        stack.push_async_callback(model.close)
        yield model


def with_pool(made: Sequence[FakeServer], use: Callable[[Model], Awaitable[Any]], **options: Any) -> Any:
    async def go() -> Any:
        async with pool_of(made, **options) as model:
            return await use(model)

    return asyncio.run(go())


async def ask(model: Model, **options: Any) -> Trajectory:
    return await run("Who?", model, {"web_search": searching()}, **options)


async def run_all(model: Model) -> list[Trajectory]:
    tools = {"web_search": searching()}
    return [done async for done in run_many(TASKS, model, tools, concurrency=8)]


def questions(server: FakeServer) -> list[str]:
    """Of which runs a server was asked, in order; a run has a question of its own."""
    texts = [str(b["messages"]) if "messages" in b else tokenizer("smollm2").decode(b["prompt"]) for b in server.asked]
    return [text.split("Who is ")[1].split("?")[0] for text in texts]


@pytest.mark.parametrize("mode", [Mode.TOKENS, Mode.CHAT])
def test_runs_are_spread_over_the_servers_and_each_stays_with_its_own(mode: Mode) -> None:
    made = token_servers(3)
    done = with_pool(made, run_all, mode=mode, tokenizer=tokenizer("smollm2"))
    assert all(run.stop is Stop.ANSWERED and run.usage.model_calls == 2 for run in done)
    asked = [questions(server) for server in made]
    assert sum(map(len, asked)) == 80 and all(len(of_one) >= 16 for of_one in asked)
    homes = [set(of_one) for of_one in asked]
    assert sum(map(len, homes)) == 40, "a run was asked of two servers"


class Gated(FakeServer):
    """Keeps its second request waiting until the gate is open."""

    def __init__(self) -> None:
        super().__init__(lambda body: "x", tokenizer=tokenizer("smollm2"))
        self.gate = asyncio.Event()

    async def _body(self, request: web.Request) -> Any:
        body = await super()._body(request)
        if len(self.asked) == 2:
            await self.gate.wait()
        return body


def test_a_run_stays_although_another_server_is_less_busy() -> None:
    first, second = Gated(), FakeServer(lambda body: "x", tokenizer=tokenizer("smollm2"))

    async def use(model: Model) -> None:
        async def once(home: Home | None) -> None:
            context = Context([Message(role="user", content="Who?")], "", [1, 2, 3], home=home)
            await model.generate(context, stop=["</answer>"], sampling=Sampling())

        home = Home()
        await once(home)
        slow = asyncio.create_task(once(home))
        while len(first.asked) < 2:
            await asyncio.sleep(0.001)
        await asyncio.gather(once(home), once(None))
        first.gate.set()
        await slow

    with_pool([first, second], use, tokenizer=tokenizer("smollm2"))
    assert (len(first.asked), len(second.asked)) == (3, 1)


def test_servers_that_are_equally_busy_take_turns() -> None:
    async def one_after_another(model: Model) -> None:
        for task in TASKS[:6]:
            assert (await run(task, model, {"web_search": searching()})).answer == "Ada"

    made = token_servers(3)
    with_pool(made, one_after_another, tokenizer=tokenizer("smollm2"))
    assert [questions(server) for server in made] == [["0", "0", "3", "3"], ["1", "1", "4", "4"], ["2", "2", "5", "5"]]


def test_a_pool_can_be_held_to_the_protocol_where_its_servers_can() -> None:
    async def held(model: Model) -> Trajectory:
        return await run("Who?", model, {}, "nano", constrain="always")

    made = [FakeServer(lambda body: "<answer>Ada</answer>", tokenizer=tokenizer("smollm2")) for _ in range(2)]
    done = with_pool(made, held, tokenizer=tokenizer("smollm2"))
    assert done.answer == "Ada" and done.steps[-1].meta["constrained"]
    assert all("structured_outputs" in body for server in made for body in server.asked)
    with pytest.raises(ModelError, match="tiny takes no grammar"):
        with_pool(made, held, mode=Mode.CHAT)


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llamacpp", "chat"])
def test_a_run_goes_on_elsewhere_when_its_server_is_killed_in_mid_stream(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    owner = "somebody" if kind == "chat" else kind
    made = token_servers(2, owner)
    made[0].dies_after = 7
    heard: list[Any] = []

    async def listening(model: Model) -> tuple[Trajectory, Trajectory]:
        return await ask(model, listen=heard.append), await ask(model)

    first, second = with_pool(made, listening, tokenizer=None if kind == "chat" else tokenizer("smollm2"))
    assert first.answer == second.answer == "Ada" and first.usage.model_calls == 2
    assert len(made[0].asked) == 1 and len(made[1].asked) == 4
    assert "This server is left out for now" in caplog.text


def test_a_server_that_comes_back_gets_runs_again(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> list[list[str]]:
        first, second = token_servers()
        async with AsyncExitStack() as stack:
            address, other = [await stack.enter_async_context(one.running()) for one in (first, second)]
            model = await connect_all([address, other], tokenizer=tokenizer("smollm2"), patience=QUICK)
            stack.push_async_callback(model.close)
            await first.stop()
            without = [await run(task, model, {"web_search": searching()}) for task in TASKS[:4]]
            assert all(one.answer == "Ada" for one in without)
            assert questions(first) == [] and questions(second) == [n for n in "0123" for _ in range(2)]
            await stack.enter_async_context(first.running(port_of(address)))
            while "is back" not in caplog.text:
                await asyncio.sleep(0.01)
            assert [await run(task, model, {"web_search": searching()}) for task in TASKS[4:8]]
        return [questions(first), questions(second)[8:]]

    assert sorted(map(tuple, asyncio.run(go()))) == [("4", "4", "6", "6"), ("5", "5", "7", "7")]


def test_a_server_that_is_down_at_the_start_joins_when_it_is_up(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> int:
        late, there = token_servers()
        async with late.running() as address:
            pass
        async with there.running() as url:
            model = await connect_all([address, url], tokenizer=tokenizer("smollm2"), patience=QUICK)
            assert (await ask(model)).answer == "Ada"
            async with late.running(port_of(address)):
                while "is back" not in caplog.text:
                    await asyncio.sleep(0.01)
                assert (await ask(model)).answer == "Ada"
            await model.close()
        return len(late.asked)

    assert asyncio.run(go()) == 2


def test_when_all_servers_are_down_the_error_names_each_until_they_are_back(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        made = token_servers()
        async with AsyncExitStack() as stack:
            urls = [await stack.enter_async_context(server.running()) for server in made]
            model = await connect_all(urls, tokenizer=tokenizer("smollm2"), patience=QUICK)
            stack.push_async_callback(model.close)
            for server in made:
                await server.stop()
            failed = await ask(model)
            assert failed.stop is Stop.FAILED and failed.failure is not None
            said = failed.failure.message
            assert said.startswith("the pool of 2 model servers did not answer in 4 attempts: ")
            assert all(f"{url.removesuffix('/v1')} did not answer" in said for url in urls)
            for url, server in zip(urls, made, strict=True):
                await stack.enter_async_context(server.running(port_of(url)))
            while caplog.text.count("is back") < 2:
                await asyncio.sleep(0.01)
            assert (await ask(model)).answer == "Ada"
        with pytest.raises(ModelError, match=r"the pool of 2 .* did not answer in 4 attempts") as refused:
            await connect_all(urls, patience=QUICK)
        assert all(url.removesuffix("/v1") in str(refused.value) for url in urls)

    asyncio.run(go())


def test_a_dropped_connection_costs_no_run_and_a_refusal_is_reported_at_once() -> None:
    made = token_servers()
    made[0].trouble = [servers.drop, *[lambda request: None] * 5, servers.status(503), servers.truncated]
    done = with_pool(made, run_all, tokenizer=tokenizer("smollm2"))
    assert all(run.stop is Stop.ANSWERED for run in done) and all(len(server.asked) > 10 for server in made)
    made = token_servers()
    made[0].trouble = made[1].trouble = [servers.status(400, '{"error": {"message": "prompt too long"}}')] * 2
    failed = with_pool(made, ask, tokenizer=tokenizer("smollm2"))
    assert failed.failure is not None and "prompt too long" in failed.failure.message
    assert len(made[0].trouble) == 1, "a bad request was sent again"


class Renamed(FakeServer):
    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "large", "owned_by": self.owner}]})


def test_servers_of_different_models_are_refused_by_name(tmp_path: Path) -> None:
    async def unused(model: Model) -> None:
        raise AssertionError("should not open")

    there = FakeServer(two_turns, tokenizer=tokenizer("smollm2"))
    with pytest.raises(ModelError, match=r"same model: http://\S+ serves 'tiny', http://\S+ serves 'large'") as refused:
        with_pool([there, Renamed(two_turns)], unused, tokenizer=tokenizer("smollm2"))
    assert refused.value.hint is not None and "--model-name" in refused.value.hint
    with pytest.raises(ModelError, match=r"same mode: http://\S+ serves token ids, http://\S+ serves a chat"):
        with_pool([there, FakeServer(two_turns, owner="somebody")], unused, tokenizer=tokenizer("smollm2"))
    with pytest.raises(ModelError, match=r"same tokenizer: http://\S+ serves \w+, http://\S+ serves \w+"):
        with_pool([Rooted("smollm2"), Rooted(str(byte_level(tmp_path / "other.gguf", "gpt-2")))], unused)


class Rooted(FakeServer):
    """Says where the tokenizer of its model is."""

    def __init__(self, root: str) -> None:
        super().__init__(two_turns)
        self.root = root

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny", "owned_by": "vllm", "root": self.root}]})


def test_a_server_that_returns_with_another_model_stays_out(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> Trajectory:
        first, second = token_servers()
        async with AsyncExitStack() as stack:
            urls = [await stack.enter_async_context(one.running()) for one in (first, second)]
            model = await connect_all(urls, tokenizer=tokenizer("smollm2"), patience=QUICK)
            stack.push_async_callback(model.close)
            await first.stop()
            assert (await ask(model)).answer == "Ada"
            await stack.enter_async_context(Renamed(two_turns).running(port_of(urls[0])))
            while "serves 'large'" not in caplog.text:
                await asyncio.sleep(0.01)
            return await ask(model)

    assert asyncio.run(go()).answer == "Ada"


def test_addresses_of_a_pool_are_read_and_checked_before_anything_is_opened() -> None:
    assert server_urls("http://a:1/v1, https://u:p,w@b/v1,http://c") == [
        "http://a:1/v1",
        "https://u:p,w@b/v1",
        "http://c",
    ]
    for wrong, said in (
        ("http://a:1,b:2", "is not the address of a server"),
        ("http://a,b", "is not the address of a server"),
        ("http://a,", "is not the address of a server"),
        ("http://a/v1,http://a", "given twice"),
        ("nano,http://a", "'nano' is not the address of a server"),
    ):
        with pytest.raises(ModelError, match=said) as refused:
            check_model(wrong)
        assert refused.value.hint is not None
    with pytest.raises(ModelError) as refused:
        check_model("http://ada:s3cret@a,http://ada:s3cret@a")
    assert "s3cret" not in str(refused.value) and "s3cret" not in str(refused.value.hint)


def test_passwords_of_a_pool_appear_in_no_error() -> None:
    with pytest.raises(ModelError) as refused:
        asyncio.run(connect_all(["http://ada:s3cret@127.0.0.1:9", "http://eve:h1dden@127.0.0.1:10"], patience=QUICK))
    assert "127.0.0.1:9 did not answer" in str(refused.value) and "127.0.0.1:10 did not answer" in str(refused.value)
    assert "s3cret" not in str(refused.value) and "h1dden" not in str(refused.value)


def test_open_model_takes_several_urls() -> None:
    async def go() -> str:
        made = token_servers()
        async with made[0].running() as one, made[1].running() as two:
            model = await open_model(f"{one},{two}", tokenizer="smollm2")
            try:
                await asyncio.gather(*(ask(model) for _ in range(4)))
                assert all(len(server.asked) == 4 for server in made)
                return model.name
            finally:
                await model.close()

    assert asyncio.run(go()) == "tiny"


def test_commands_take_several_urls_price_them_as_one_model_and_hide_their_passwords(tmp_path: Path) -> None:
    made = [FakeServer(lambda body: "<answer>Ada</answer>", owner="somebody") for _ in range(2)]
    (tmp_path / "prices.toml").write_text("[tiny]\ninput = 1000000\noutput = 0\n")
    with servers.in_thread(made[0]) as one, servers.in_thread(made[1]) as two:
        model = ",".join(url.replace("http://", "http://ada:s3cret@") for url in (one, two))
        given = ("--model", model, "--profile", "nano", "--set", f"prices={tmp_path / 'prices.toml'}")
        planned = CliRunner().invoke(app, ["run", "Who?", *given, "--dry-run"])
        done = CliRunner().invoke(app, ["run", "Who?", *given, "--out", str(tmp_path / "out")])
    assert planned.exit_code == done.exit_code == 0, done.output
    assert f"{one},{two}" in planned.output and "cost 7" in done.output
    written = "".join(path.read_text() for path in (tmp_path / "out").rglob("*.json*"))
    assert "Ada" in written and "s3cret" not in planned.output + done.output + written
