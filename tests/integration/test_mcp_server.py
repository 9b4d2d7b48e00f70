"""The agent as an MCP server over HTTP, with the real client of the `mcp` package."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from coa.errors import ModelError
from coa.models.scripted import ScriptedModel
from coa.runtime import RunConfig
from coa.serve import ServeConfig
from coa.serve.keys import add_key
from coa.serve.mcp.server import mcp_server
from coa.serve.service import Service, open_service
from coa.trajectory import Stop, Trajectory, read
from support.mcp_client import EXTENSION, CreatedTask, TaskClient, Thinker, cancel_task, get_task, update_task
from support.served import AGENT, ServedAgent, served

ERAS = ("auto", "legacy")
"""The protocol of 2026-07-28, and the one before it with a handshake and sessions."""


@pytest.fixture(scope="module")
def thinker() -> Thinker:
    return Thinker()


@pytest.fixture(scope="module")
def server(thinker: Thinker) -> Iterator[ServedAgent]:
    with served(model=thinker, config={"heartbeat_s": 0.1}) as running:
        yield running


def client(server: ServedAgent, **options: Any) -> Client:
    return Client(f"{server.url}/mcp", **options)


async def settled(condition: Callable[[], bool]) -> bool:
    """Whether it becomes true within five seconds; a second is the promise, and the machine may be busy."""
    end = time.monotonic() + 5
    while not condition() and time.monotonic() < end:
        await asyncio.sleep(0.01)
    return condition()


def runs_in(server: ServedAgent) -> list[Trajectory]:
    return list(read(server.out)) if server.out.exists() else []


def text_of(result: Any) -> str:
    return str(result.content[0].text)


@pytest.mark.parametrize("era", ERAS)
def test_a_question_gets_an_answer_as_text_and_as_data_with_a_notification_for_each_step(era: str) -> None:
    heard: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, message))

    async def ask(server: ServedAgent) -> Any:
        async with client(server, mode=era) as connected:
            (tool,) = (await connected.list_tools()).tools
            assert tool.name == "ask" and set(tool.input_schema["properties"]) == {"question", "follow_up", "effort"}
            return await connected.call_tool("ask", {"question": "Which tower?"}, progress_callback=hear)

    with served() as server:
        result = asyncio.run(ask(server))
        (run,) = runs_in(server)
    assert text_of(result) == "The Vell tower." == result.structured_content["answer"]
    assert result.structured_content["stop"] == "answered" and result.structured_content["agent"] == AGENT
    assert result.structured_content["usage"]["tool_calls"] == 1
    assert [source["url"] for source in result.structured_content["sources"]] == ["https://towers.example/vell"]
    assert result.structured_content["run_id"] in result.content[1].text
    assert [number for number, _ in heard] == list(range(1, len(run.steps) + 1))
    assert [(message or "").partition(":")[0] for _, message in heard] == [step.agent for step in run.steps]
    assert run.meta["served"]["protocol"] == "mcp"  # type: ignore[index, call-overload]


def test_a_follow_up_knows_the_conversation_even_after_a_restart(tmp_path: Path) -> None:
    model = ScriptedModel(["<answer>Ida Kroll</answer>", "<answer>1871</answer>", "<answer>Tamsel</answer>"])

    async def ask(server: ServedAgent, **arguments: str) -> dict[str, Any]:
        async with client(server) as connected:
            return (await connected.call_tool("ask", dict(arguments))).structured_content

    with served(model=model, state=tmp_path) as server:
        first = asyncio.run(ask(server, question="Who designed the bridge?"))
        second = asyncio.run(ask(server, question="When was she born?", follow_up=first["run_id"]))
    with served(model=model, state=tmp_path) as server:
        third = asyncio.run(ask(server, question="Where?", follow_up=second["run_id"]))
        (run,) = runs_in(server)
    assert third["answer"] == "Tamsel"
    assert [turn.content for turn in run.task.conversation] == [
        "Who designed the bridge?", "Ida Kroll", "When was she born?", "1871",
    ]  # fmt: skip
    seen = [message.content for message in model.calls[-1].messages if message.role != "system"]
    assert seen == [*(turn.content for turn in run.task.conversation), "Where?"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "`question` is required"),
        ({"question": 3}, "`question`"),
        ({"question": "  "}, "`question` is empty"),
        ({"question": "Why?", "depth": 2}, "`depth`"),
        ({"question": "Why?", "follow_up": "nothing"}, "there is no run 'nothing' to follow up"),
        ({"question": "Why?", "agent": "nobody"}, f"there is no agent 'nobody'; the agents are: {AGENT}"),
        ({"question": "Why?", "effort": "huge"}, "there is no effort 'huge'"),
    ],
)
def test_bad_arguments_are_errors_of_the_tool_in_a_sentence(
    server: ServedAgent, arguments: dict[str, Any], message: str
) -> None:
    async def ask() -> Any:
        async with client(server) as connected:
            return await connected.call_tool("ask", arguments)

    result = asyncio.run(ask())
    assert result.is_error and message in text_of(result)


def test_a_null_is_an_argument_that_was_not_given(server: ServedAgent) -> None:
    async def ask() -> Any:
        async with client(server) as connected:
            return await connected.call_tool("ask", {"question": "so?", "follow_up": None, "effort": None})

    assert text_of(asyncio.run(ask())) == "SO?"


def test_another_tool_is_refused_by_the_protocol(server: ServedAgent) -> None:
    async def call() -> None:
        async with client(server) as connected:
            with pytest.raises(MCPError, match="there is no tool 'guess'; the tool of this server is ask"):
                await connected.call_tool("guess", {})

    asyncio.run(call())


def test_a_model_that_fails_or_gives_no_answer_is_an_error_of_the_tool() -> None:
    async def ask(server: ServedAgent) -> list[Any]:
        async with client(server) as connected:
            return [await connected.call_tool("ask", {"question": question}) for question in ("one", "two")]

    script: list[str | Exception] = [ModelError("the model server is down"), *[""] * 9]
    with served(script) as server:
        failed, unanswered = asyncio.run(ask(server))
    assert failed.is_error and text_of(failed) == "error: the run failed: the model server is down"
    assert unanswered.is_error and "without an answer" in text_of(unanswered)


@pytest.mark.parametrize("era", ERAS)
def test_a_cancelled_request_cancels_its_run_and_keeps_what_there_is(
    server: ServedAgent, thinker: Thinker, era: str
) -> None:
    before = len(runs_in(server))

    async def ask_and_cancel() -> None:
        async with client(server, mode=era) as connected:
            asking = asyncio.create_task(connected.call_tool("ask", {"question": "forever"}))
            assert await settled(lambda: thinker.thinking == 1)
            asking.cancel()
            assert await settled(lambda: thinker.thinking == 0)

    asyncio.run(ask_and_cancel())
    assert asyncio.run(settled(lambda: len(runs_in(server)) == before + 1))
    run = runs_in(server)[-1]
    assert run.stop is Stop.INTERRUPTED and run.steps[0].text == "This takes long."


@pytest.mark.parametrize("era", ERAS)
def test_a_client_that_goes_away_takes_its_run_with_it(server: ServedAgent, thinker: Thinker, era: str) -> None:
    async def ask_and_leave() -> None:
        headers = {"accept": "application/json, text/event-stream"}
        call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call"}
        params: dict[str, Any] = {"name": "ask", "arguments": {"question": "forever"}}
        if era == "auto":
            params["_meta"] = {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            }
            headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "ask"}
        async with httpx2.AsyncClient(base_url=server.url, headers=headers) as raw:
            if era == "legacy":
                greeting = {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {},
                    "clientInfo": {"name": "x", "version": "1"},
                }
                hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": greeting}
                raw.headers["mcp-session-id"] = (await raw.post("/mcp", json=hello)).headers["mcp-session-id"]
                await raw.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"})
            asking = asyncio.create_task(raw.post("/mcp", json={**call, "params": params}))
            assert await settled(lambda: thinker.thinking == 1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        assert await settled(lambda: thinker.thinking == 0)

    asyncio.run(ask_and_leave())


def test_a_client_hears_something_while_a_model_thinks(server: ServedAgent, thinker: Thinker) -> None:
    heard: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, message))

    async def ask() -> None:
        async with client(server) as connected:
            asking = asyncio.create_task(connected.call_tool("ask", {"question": "forever"}, progress_callback=hear))
            assert await settled(lambda: len(heard) >= 4)
            asking.cancel()
            assert await settled(lambda: thinker.thinking == 0)

    asyncio.run(ask())
    numbers = [number for number, _ in heard]
    assert numbers == sorted(set(numbers)) and numbers[0] == 1 and numbers[-1] < 2
    assert [message for _, message in heard[:2]] == ["think: This takes long.", "working"]


def test_two_clients_ask_at_once(server: ServedAgent) -> None:
    async def ask(question: str, era: str) -> str:
        async with client(server, mode=era) as connected:
            return text_of(await connected.call_tool("ask", {"question": question}))

    async def both() -> list[str]:
        return await asyncio.gather(*(ask(f"question {era}", era) for era in ERAS))

    assert asyncio.run(both()) == ["QUESTION AUTO", "QUESTION LEGACY"]


def test_several_agents_are_asked_by_name() -> None:
    run = {"model": "http://127.0.0.1:9", "profile": "nano"}
    models = {name: ScriptedModel([f"<answer>{name}</answer>"] * 3) for name in ("fast", "deep")}

    async def ask(server: ServedAgent) -> list[str]:
        async with client(server) as connected:
            (tool,) = (await connected.list_tools()).tools
            assert tool.input_schema["properties"]["agent"]["enum"] == ["fast", "deep"]
            first = await connected.call_tool("ask", {"question": "who?"})
            second = await connected.call_tool("ask", {"question": "who?", "agent": "deep"})
            on = {"question": "again?", "follow_up": second.structured_content["run_id"]}
            return [text_of(first), text_of(second), text_of(await connected.call_tool("ask", on))]

    with served(models=models, config={"agents": {"fast": run, "deep": run}}) as server:
        assert asyncio.run(ask(server)) == ["fast", "deep", "deep"]


def test_a_client_that_declares_tasks_gets_a_task_and_its_result(server: ServedAgent) -> None:
    async def ask() -> tuple[Any, Any, Any]:
        async with client(server, extensions=[TaskClient()]) as connected:
            assert connected.server_capabilities.extensions == {EXTENSION: {}}
            created = await connected.session.call_tool("ask", {"question": "so?"}, allow_claimed=True)
            assert isinstance(created, CreatedTask)
            resolved = await connected.call_tool("ask", {"question": "and now?"})
            return created, resolved, await get_task(connected.session, created.task_id)

    created, resolved, state = asyncio.run(ask())
    assert created.status == "working" and created.ttl_ms == 30 * 86_400_000 and created.created_at.endswith("Z")
    assert text_of(resolved) == "AND NOW?"
    assert state.status == "completed" and state.status_message == "answered" and state.task_id == created.task_id
    assert state.result["structuredContent"]["answer"] == "SO?" and not state.result["isError"]


def test_a_task_shows_its_last_step_outlives_its_client_and_can_be_cancelled(
    server: ServedAgent, thinker: Thinker
) -> None:
    async def start() -> str:
        async with client(server, extensions=[TaskClient()]) as connected:
            created = await connected.session.call_tool("ask", {"question": "forever"}, allow_claimed=True)
            assert isinstance(created, CreatedTask)
            return created.task_id

    async def come_back(task_id: str) -> None:
        async with client(server, extensions=[TaskClient()]) as connected:
            assert await settled(lambda: thinker.thinking == 1)
            state = await get_task(connected.session, task_id)
            assert (state.status, state.status_message) == ("working", "think: This takes long.")
            await update_task(connected.session, task_id)
            await cancel_task(connected.session, task_id)
            assert thinker.thinking == 0
            assert (await get_task(connected.session, task_id)).status == "cancelled"
            await cancel_task(connected.session, task_id)  # again: acknowledged, without effect

    asyncio.run(come_back(asyncio.run(start())))


def test_a_finished_task_survives_a_restart_and_a_failed_run_is_a_completed_task(tmp_path: Path) -> None:
    async def start(server: ServedAgent) -> str:
        async with client(server, extensions=[TaskClient()]) as connected:
            created = await connected.session.call_tool("ask", {"question": "why?"}, allow_claimed=True)
            assert isinstance(created, CreatedTask)
            return created.task_id

    async def state_of(server: ServedAgent, task_id: str) -> Any:
        async with client(server, extensions=[TaskClient()]) as connected:
            return await get_task(connected.session, task_id)

    with served([ModelError("out of order")], state=tmp_path) as server:
        task_id = asyncio.run(start(server))
    with served(state=tmp_path) as server:
        state = asyncio.run(state_of(server, task_id))
    assert state.status == "completed" and state.result["isError"]
    assert state.result["content"][0]["text"] == "error: the run failed: out of order"


def test_tasks_are_refused_to_those_who_do_not_declare_them(server: ServedAgent) -> None:
    async def ask(task_id: str, **options: Any) -> MCPError:
        async with client(server, **options) as connected:
            with pytest.raises(MCPError) as caught:
                await get_task(connected.session, task_id)
            return caught.value

    undeclared, earlier = asyncio.run(ask("x")), asyncio.run(ask("x", mode="legacy"))
    unknown = asyncio.run(ask("x", extensions=[TaskClient()]))
    assert undeclared.code == -32021
    assert undeclared.data == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    assert earlier.code == -32601
    assert unknown.code == -32602 and "there is no task 'x'" in unknown.message


def test_a_key_is_needed_where_there_are_keys_and_runs_belong_to_their_key(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    ada, bob = add_key(file, "ada"), add_key(file, "bob")

    @asynccontextmanager
    async def connect(server: ServedAgent, key: str) -> AsyncIterator[Client]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with httpx2.AsyncClient(headers=headers) as http:
            transport = streamable_http_client(f"{server.url}/mcp", http_client=http)
            async with Client(transport, extensions=[TaskClient()]) as connected:
                yield connected

    async def ask(server: ServedAgent) -> None:
        async with connect(server, ada) as connected:
            mine = await connected.call_tool("ask", {"question": "mine?"})
            run_id = mine.structured_content["run_id"]
            assert text_of(await connected.call_tool("ask", {"question": "on?", "follow_up": run_id})) == "ON?"
        async with connect(server, bob) as connected:
            refused = await connected.call_tool("ask", {"question": "on?", "follow_up": run_id})
            assert refused.is_error and "there is no run" in text_of(refused)
            with pytest.raises(MCPError, match="there is no task"):
                await get_task(connected.session, run_id)
        async with httpx2.AsyncClient() as http:
            assert (await http.post(f"{server.url}/mcp", json={})).status_code == 401

    with served(model=Thinker(), config={"keys_file": file}) as server:
        asyncio.run(ask(server))


def test_a_full_server_is_an_error_of_the_tool_that_says_so(thinker: Thinker) -> None:
    async def ask(server: ServedAgent) -> Any:
        async with client(server, extensions=[TaskClient()]) as connected:
            await connected.session.call_tool("ask", {"question": "forever"}, allow_claimed=True)
            refused = await connected.call_tool("ask", {"question": "me too?"})
            return refused

    with served(model=Thinker(), config={"max_runs": 1, "max_queue": 0, "shutdown_s": 0}) as server:
        refused = asyncio.run(ask(server))
    assert refused.is_error and "no free place" in text_of(refused)


def test_foreign_pages_and_hosts_do_not_reach_it(server: ServedAgent) -> None:
    async def post(headers: dict[str, str]) -> int:
        async with httpx2.AsyncClient() as http:
            return (await http.post(f"{server.url}/mcp", json={}, headers=headers)).status_code

    assert asyncio.run(post({"Origin": "https://evil.example"})) == 403
    assert asyncio.run(post({"Host": "evil.example"})) == 421


def test_a_client_is_answered_while_the_model_is_still_being_opened(tmp_path: Path) -> None:
    heard: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    async def ask() -> str:
        run = RunConfig(model="http://127.0.0.1:9", profile="nano")
        config = ServeConfig(run=run, name=AGENT, state=tmp_path, heartbeat_s=0.01)
        opened: asyncio.Future[Service] = asyncio.get_running_loop().create_future()
        async with Client(mcp_server(config, opened)) as connected:
            await connected.list_tools()
            asking = asyncio.create_task(connected.call_tool("ask", {"question": "so?"}, progress_callback=hear))
            assert await settled(lambda: len(heard) >= 2)
            async with open_service(config, models={AGENT: Thinker()}) as service:
                opened.set_result(service)
                return text_of(await asking)

    assert asyncio.run(ask()) == "SO?"
    assert set(heard[:-1]) == {"opening the model"} and heard[-1] == "answer: SO?"
