"""A real MCP server over stdio and HTTP: its tools as ours, its failures contained."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest

from coa.choices import CacheMode
from coa.errors import ToolError
from coa.models.scripted import ScriptedModel
from coa.tools import Observation, Tool, ToolContext
from coa.tools.mcp import McpTool, open_mcp
from coa.tools.mcp.server import McpServer, McpSettings
from coa.tools.recorded import open_cached_tools
from coa.tools.registry import open_tools
from coa.tools.schema import about_of, legal_name, shape_of
from coa.trajectory import OBSERVATION, Task, Trajectory, load_profile
from coa.trajectory.shapes import FieldType
from support.runs import run

SERVER = Path(__file__).parents[2] / "support" / "mcp_server.py"
STDIO = shlex.join([sys.executable, str(SERVER), "stdio"])
CONTEXT = ToolContext(Task(id="t", question="?"))


@pytest.fixture(scope="module")
def http_server() -> Iterator[str]:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(SERVER), "http", str(port)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def opened(place: str, **settings: float) -> AsyncIterator[dict[str, Tool]]:
    async with open_mcp([place]) as tools:
        for tool in tools.values():
            assert isinstance(tool, McpTool)
            tool._server.settings = McpSettings(**settings)  # type: ignore[arg-type]
        yield tools


def test_tools_of_a_server_are_called_over_stdio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPAPI_API_KEY", "secret")

    async def go() -> dict[str, Observation]:
        async with opened(STDIO) as tools:
            assert {"add", "plan", "either", "fail", "seen"} <= set(tools)
            assert tools["add"].shape.fields["a"].type is FieldType.INTEGER
            assert not tools["add"].shape.fields["b"].required and "<" not in tools["add"].about
            return {
                "add": await tools["add"].call({"a": 40, "b": 2}, CONTEXT),
                "either": await tools["either"].call({"value": "x"}, CONTEXT),
                "fail": await tools["fail"].call({"text": "luck"}, CONTEXT),
                "wrong": await tools["add"].call({"a": "many"}, CONTEXT),
                "seen": await tools["seen"].call({}, CONTEXT),
            }

    seen = asyncio.run(go())
    assert seen["add"] == Observation("42") and seen["either"].text == "str x"
    assert not seen["fail"].ok and seen["fail"].text.startswith("error: ")
    assert not seen["wrong"].ok and "integer" in seen["wrong"].text
    assert "SERPAPI_API_KEY" not in seen["seen"].text and "PATH" in seen["seen"].text.split()


def test_tools_of_a_server_are_called_over_http(http_server: str) -> None:
    async def go() -> list[Observation]:
        async with opened(http_server) as tools:
            return await asyncio.gather(*(tools["add"].call({"a": n}, CONTEXT) for n in range(8)))

    assert [seen.text for seen in asyncio.run(go())] == [str(n + 1) for n in range(8)]


def test_variables_that_are_named_are_passed_on() -> None:
    async def go(environment: dict[str, str]) -> str:
        async with open_mcp([STDIO], environment=environment) as tools:
            return (await tools["seen"].call({}, CONTEXT)).text

    seen = asyncio.run(go({"COA_MCP_PASS": "WEATHER_KEY", "WEATHER_KEY": "k", "OTHER_KEY": "o"})).split()
    assert "WEATHER_KEY" in seen and "OTHER_KEY" not in seen
    with pytest.raises(ToolError, match="not set"):
        asyncio.run(go({"COA_MCP_PASS": "GONE"}))


def test_a_crash_in_mid_call_is_an_observation_and_the_next_call_starts_the_server_again() -> None:
    async def go() -> list[Observation]:
        async with opened(STDIO) as tools:
            return [
                await tools["crash"].call({}, CONTEXT),
                await tools["add"].call({"a": 1}, CONTEXT),
            ]

    crash, after = asyncio.run(go())
    assert not crash.ok and "ended in the middle" in crash.text
    assert after == Observation("2")


def test_a_server_that_keeps_crashing_is_given_up(tmp_path: Path) -> None:
    script = tmp_path / "crashing.py"
    script.write_text(_ODD_SERVER.replace("SCHEMA", "{'type': 'object'}"))

    async def go() -> list[str]:
        async with opened(shlex.join([sys.executable, str(script)])) as tools:
            return [(await tools["good"].call({}, CONTEXT)).text for _ in range(6)]

    told = asyncio.run(go())
    assert "ended in the middle" in told[0] and "not started again" in told[-1]


def test_a_slow_call_ends_at_its_limit_and_the_server_lives_on() -> None:
    async def go() -> tuple[Observation, Observation, int]:
        async with opened(STDIO, call_s=1.0) as tools:
            tool = tools["add"]
            slow = await tools["slow"].call({"seconds": 30.0}, CONTEXT)
            after = await tool.call({"a": 1}, CONTEXT)
            assert isinstance(tool, McpTool)
            return slow, after, tool._server._starts

    slow, after, starts = asyncio.run(go())
    assert "within 1 seconds" in slow.text and after.ok and starts == 1


def test_a_server_that_hangs_altogether_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coa.tools.mcp.server._HEALTH_S", 0.5)

    async def go() -> tuple[Observation, Observation, int]:
        async with opened(STDIO, call_s=1.0, start_s=30.0) as tools:
            tool = tools["add"]
            assert isinstance(tool, McpTool)
            hung = await tools["hang"].call({}, CONTEXT)
            tool._server.settings = McpSettings()
            return hung, await tool.call({"a": 1}, CONTEXT), tool._server._starts

    hung, after, starts = asyncio.run(go())
    assert "within 1 seconds" in hung.text and after == Observation("2") and starts == 2


def test_servers_that_cannot_be_opened_are_told_with_their_last_words() -> None:
    async def go(place: str) -> None:
        async with open_mcp([place]):
            raise AssertionError("it opened")

    for place, why in (
        ("no-such-command-anywhere x", "No such file"),
        (shlex.join([sys.executable, "-c", "import no_such_module"]), "No module named 'no_such_module'"),
        ("http://127.0.0.1:9/mcp", "cannot be opened"),
        ("", "empty"),
        ("'unclosed", "quotation"),
    ):
        with pytest.raises(ToolError, match=why):
            asyncio.run(go(place))


def test_a_server_that_never_answers_is_not_waited_for_long() -> None:
    async def go() -> None:
        server = McpServer(shlex.join([sys.executable, "-c", "import time; time.sleep(600)"]), McpSettings(start_s=0.5))
        with pytest.raises(ToolError, match=r"0\.5 seconds"):
            await server.tools()
        await server.close()

    started = time.monotonic()
    asyncio.run(go())
    assert time.monotonic() - started < 20


def test_the_server_ends_with_the_run() -> None:
    marker = f"coa-test-{time.time_ns()}"

    async def go() -> None:
        async with open_mcp([f"{STDIO} {marker}"]) as tools:
            assert running() and await tools["add"].call({"a": 1}, CONTEXT)

    def running() -> bool:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # processes come and go
                if marker.encode() in path.read_bytes():
                    return True
        return False

    asyncio.run(go())
    assert not running()


def test_a_run_uses_the_tools_under_names_that_mean_nothing_else() -> None:
    profile = load_profile("web")
    script = [
        '<think>t</think>\n<plan>p</plan>\n<think>t</think>\n<add>\n```json\n{"a": 40, "b": 2}\n```\n</add>',
        "<think>t</think>\n<suggested_answer>42</suggested_answer>\n<think>t</think>\n<double_check>score: 4"
        "</double_check>\n<think>t</think>\n<answer>42</answer>",
    ]

    async def go() -> Trajectory:
        async with open_tools(mcp=[STDIO], tags=profile.tags) as box:
            assert "plan" not in box.tools and "test_tools_plan" in box.tools
            return await run("40 + 2?", ScriptedModel(script), box.tools, profile)

    done = asyncio.run(go())
    assert done.answer == "42" and [step.text for step in done.steps if step.agent == OBSERVATION] == ["42"]


def test_calls_of_a_server_are_replayed_without_it(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    shutil.copy(SERVER, script)
    place = shlex.join([sys.executable, str(script), "stdio", "--token", "sk-123"])

    async def go(mode: CacheMode) -> Observation:
        async with open_cached_tools(mcp=[place], mode=mode, file=tmp_path / "calls.sqlite") as box:
            return await box.tools["add"].call({"a": 40, "b": 2}, CONTEXT)

    recorded = asyncio.run(go(CacheMode.RECORD))
    script.unlink()
    assert asyncio.run(go(CacheMode.REPLAY)).text == recorded.text == "42"
    assert not [file for file in tmp_path.glob("calls.sqlite*") if b"sk-123" in file.read_bytes()]


# ---- names and schemas


def test_names_become_tags_and_never_collide() -> None:
    assert legal_name("Get-Weather.v2", "srv", ()) == "get_weather_v2"
    assert legal_name("answer", "My Server", {"answer"}) == "my_server_answer"
    assert legal_name("answer", "s", {"answer", "s_answer"}) == "s_answer_2"
    assert legal_name("7zip", "s", ()) == "mcp_7zip" and legal_name("天気", "s", ()) == "mcp"
    profile = load_profile("all")
    for name in (*profile.tags, "x" * 200, "a b", "</answer>", ""):
        assert re.fullmatch(r"[a-z][a-z0-9_]*", legal_name(name, "天", profile.tags))


def test_schemas_become_shapes() -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "where <b>"},
            "days": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            "unit": {"$ref": "#/$defs/Unit"},
            "tags": {"type": ["array", "null"]},
        },
        "required": ["city"],
        "$defs": {"Unit": {"enum": ["c", "f"], "description": "scale"}},
    }
    fields = shape_of(schema).fields
    assert {name: field.type.value for name, field in fields.items()} == {
        "city": "string", "days": "integer", "unit": "string", "tags": "array",
    }  # fmt: skip
    assert [name for name, field in fields.items() if field.required] == ["city"]
    assert fields["city"].about == "where ‹b›" and fields["unit"].about == "scale; one of c, f"


@pytest.mark.parametrize(
    "field",
    [{}, {"type": ["string", "integer"]}, {"anyOf": [{"type": "string"}, {"type": "object"}]}, True, {"$ref": "#/no"},
     {"$ref": "#/properties/x"}, {"type": "date"}, {"enum": [1, "a"]}],
)  # fmt: skip
def test_a_field_without_one_type_leaves_the_judging_to_the_server(field: object) -> None:
    schema = {"type": "object", "properties": {"x": field}, "required": ["x"]}
    shape = shape_of(schema)
    assert not shape.fields and "Fields: x." in about_of("Looks.", schema, shape)


@pytest.mark.parametrize("schema", [{"type": "string"}, {"properties": [1]}, {"properties": {}, "required": "x"}])
def test_what_is_no_schema_of_an_object_is_refused(schema: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="schema"):
        shape_of(schema)


def with_schema(tmp_path: Path, schema: object) -> dict[str, Tool]:
    script = tmp_path / "server.py"
    script.write_text(_ODD_SERVER.replace("SCHEMA", repr(schema)))

    async def go() -> dict[str, Tool]:
        async with open_mcp([shlex.join([sys.executable, str(script)])]) as tools:
            return tools

    return asyncio.run(go())


def test_an_odd_schema_still_makes_a_tool(tmp_path: Path) -> None:
    odd = {"type": "object", "properties": {"x": {"$ref": "#/nowhere"}, "y": {}}, "required": ["z"]}
    tools = with_schema(tmp_path, odd)
    assert set(tools) == {"odd", "good"} and not tools["odd"].shape.fields and "x (optional)" in tools["odd"].about


def test_a_listing_that_breaks_the_protocol_is_told(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="cannot be opened"):
        with_schema(tmp_path, {"type": "object", "required": "all of them"})


_ODD_SERVER = """
import json, sys

TOOLS = [
    {"name": "odd", "inputSchema": SCHEMA},
    {"name": "good", "inputSchema": {"type": "object", "properties": {}}},
]
print("hello, I am not JSON", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "tools/call":
        sys.exit(3)
    info = {"name": "bad", "version": "1"}
    results = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info},
        "tools/list": {"tools": TOOLS},
    }
    answer = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked["method"] in results:
        answer["result"] = results[asked["method"]]
    else:
        answer["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(answer), flush=True)
"""
