"""Answers are recorded once and replayed to the byte, by one process or many, whatever happens in between."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import JsonValue

from coa.choices import CacheMode
from coa.errors import StoreError
from coa.tools import Observation, Part, Tool, ToolContext, call_tool
from coa.tools import registry as registry_module
from coa.tools.cache import Cache
from coa.tools.recorded import RecordedTool, open_cached_tools, replayed
from coa.tools.registry import Declaration, any_variable
from coa.trajectory import Task
from support.tools import FakeTool, failing, hanging

CONTEXT = ToolContext(Task(id="1", question="who?", files=("a.csv",)), "a thought")


class Counting(FakeTool):
    """A new answer every time, so that a second call would show."""

    uses: tuple[Part, ...] = ()
    settings: JsonValue = "v1"

    def __init__(self) -> None:
        super().__init__(lambda arguments: Observation(f"answer {len(self.asked)}", meta={"source": "x"}))


def record(path: Path, tool: Tool, text: str, context: ToolContext = CONTEXT, name: str = "lookup") -> Observation:
    async def go() -> Observation:
        cache = Cache(path)
        try:
            recorded = RecordedTool(name, tool, cache)
            return await call_tool(recorded, {"text": text}, context, max_characters=10**6, timeout_s=60)
        finally:
            cache.close()

    return asyncio.run(go())


def replay(path: Path, text: str, context: ToolContext = CONTEXT, name: str = "lookup") -> Observation:
    async def go() -> Observation:
        cache = Cache(path, read_only=True)
        try:
            tool = replayed(cache, [name]).tools[name]
            return await call_tool(tool, {"text": text}, context, max_characters=10**6, timeout_s=60)
        finally:
            cache.close()

    return asyncio.run(go())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "answers #1?.sqlite"


def test_an_answer_is_asked_for_once_and_comes_back_to_the_byte(path: Path) -> None:
    text = "tags <answer>, \x00, \r\n, \ud800 and € stay"
    tool = FakeTool(lambda arguments: Observation(text, meta={"calls": 1, "nested": {"a": [1, None]}}))
    tool.uses = ()  # type: ignore[attr-defined]
    first, second = record(path, tool, "q"), record(path, tool, "q")
    assert len(tool.asked) == 1 and first.text == second.text == replay(path, "q").text == text
    assert "cache" not in first.meta and second.meta == {"calls": 1, "nested": {"a": [1, None]}, "cache": "hit"}


def test_a_call_that_was_not_recorded_is_said_not_to_be(path: Path) -> None:
    tool = Counting()
    record(path, tool, "q")
    seen = replay(path, "another")
    assert not seen.ok and "not in the recording" in seen.text and seen.meta["error"] == "not_recorded"
    assert len(tool.asked) == 1


def test_arguments_settings_and_name_tell_answers_apart(path: Path) -> None:
    tool, other = Counting(), Counting()
    other.settings = "v2"
    record(path, tool, "q")
    assert record(path, other, "q").text == "answer 1" and len(other.asked) == 1
    record(path, tool, "r")
    record(path, tool, "q", name="another_name")
    assert len(tool.asked) == 3


@pytest.mark.parametrize(
    ("part", "other"),
    [
        (Part.QUESTION, ToolContext(Task(id="1", question="else", files=("a.csv",)), "a thought")),
        (Part.FILES, ToolContext(Task(id="1", question="who?", files=()), "a thought")),
        (Part.THOUGHT, ToolContext(Task(id="1", question="who?", files=("a.csv",)), "another")),
    ],
)
def test_only_what_a_tool_uses_of_the_context_tells_answers_apart(path: Path, part: Part, other: ToolContext) -> None:
    for uses, calls in (((), 1), ((part,), 2), (tuple(set(Part) - {part}), 1), (tuple(Part), 2)):
        tool = Counting()
        tool.uses, tool.settings = uses, str(uses)
        record(path, tool, "q")
        record(path, tool, "q", other)
        assert len(tool.asked) == calls, uses


def test_of_a_tool_that_says_nothing_the_whole_context_counts(path: Path) -> None:
    tool = FakeTool(lambda arguments: "x")
    record(path, tool, "q")
    record(path, tool, "q", ToolContext(CONTEXT.task, "another thought"))
    assert len(tool.asked) == 2


def test_a_failure_is_replayed_in_its_own_run_and_asked_again_in_others(path: Path) -> None:
    down = True

    def answer(arguments: Mapping[str, JsonValue]) -> Observation:
        return Observation("error: down", ok=False) if down else Observation("fine")

    tool = FakeTool(answer)
    tool.uses = ()  # type: ignore[attr-defined]
    other = ToolContext(Task(id="2", question="who?"), "later")
    assert not record(path, tool, "q").ok
    down = False
    assert record(path, tool, "q", other).text == "fine"
    assert replay(path, "q").text == "error: down" and replay(path, "q", other).text == "fine"
    assert record(path, tool, "q").text == "fine", "recorded anew, the run gets the answer"
    assert replay(path, "q").text == "fine"


@pytest.mark.parametrize("meta", [{"error": "service"}, {"pages": [{"url": "a"}, {"url": "b", "lack": "summary"}]}])
def test_an_answer_of_which_a_part_failed_is_a_failure_to_the_recording(path: Path, meta: dict[str, JsonValue]) -> None:
    partly = True

    def answer(arguments: Mapping[str, JsonValue]) -> Observation:
        return Observation("one of two", meta=meta) if partly else Observation("both", meta={"pages": [{"url": "a"}]})

    tool = FakeTool(answer)
    tool.uses = ()  # type: ignore[attr-defined]
    other = ToolContext(Task(id="2", question="who?"), "later")
    assert record(path, tool, "q").ok
    partly = False
    assert record(path, tool, "q", other).text == "both"
    assert replay(path, "q").text == "one of two" and replay(path, "q", other).text == "both"


def test_exceptions_and_passed_time_limits_are_recorded_too(path: Path) -> None:
    record(path, failing(), "q")
    assert replay(path, "q").text == "error: RuntimeError: the index is gone"
    record(path, hanging(timeout_s=0.05), "slow", name="slow")
    assert replay(path, "slow", name="slow").text == "error: no answer within 0.05 seconds"


def test_the_same_call_at_the_same_time_is_made_once(path: Path) -> None:
    gate = asyncio.Event()

    async def go() -> tuple[list[object], int]:
        async def slow() -> str:
            await gate.wait()
            return "late"

        tool = FakeTool(lambda arguments: slow())
        tool.uses = ()  # type: ignore[attr-defined]
        cache = Cache(path)
        recorded = RecordedTool("lookup", tool, cache)
        calls = [asyncio.ensure_future(recorded.call({"text": "q"}, CONTEXT)) for _ in range(50)]
        await asyncio.sleep(0.01)
        calls[0].cancel()  # whoever asked first may leave; the others still get the answer
        gate.set()
        done = await asyncio.gather(*calls, return_exceptions=True)
        cache.close()
        return list(done), len(tool.asked)

    done, asked = asyncio.run(go())
    assert asked == 1 and isinstance(done[0], asyncio.CancelledError)
    assert all(isinstance(one, Observation) and one.text == "late" for one in done[1:])


def test_a_call_that_nobody_waits_for_any_more_is_ended(path: Path) -> None:
    async def go() -> bool:
        ended = asyncio.Event()

        async def slow() -> str:
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()
            return ""

        cache = Cache(path)
        call = asyncio.ensure_future(RecordedTool("lookup", FakeTool(lambda a: slow()), cache).call({}, CONTEXT))
        await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait_for(ended.wait(), 60)
        cache.close()
        return True

    assert asyncio.run(go())


def test_who_comes_while_an_abandoned_call_is_being_ended_begins_anew(path: Path) -> None:
    async def go() -> tuple[Observation, int]:
        async def slow(turn: int) -> str:
            try:
                await asyncio.sleep(60 if turn == 1 else 0)
            finally:
                await asyncio.sleep(0.05)  # ending takes a while
            return f"turn {turn}"

        tool = FakeTool(lambda arguments: slow(len(tool.asked)))
        cache = Cache(path)
        recorded = RecordedTool("lookup", tool, cache)
        first = asyncio.ensure_future(recorded.call({"text": "q"}, CONTEXT))
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.wait([first])
        try:
            return await recorded.call({"text": "q"}, CONTEXT), len(tool.asked)
        finally:
            cache.close()

    seen, asked = asyncio.run(go())
    assert seen.text == "turn 2" and asked == 2


def test_a_replay_opens_no_tool_and_needs_no_key(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, opened = Counting(), []

    def opening(setting: str | None, environment: object) -> Tool:
        opened.append(setting)
        return tool

    need = any_variable("A_KEY", or_else="give up")
    monkeypatch.setattr(registry_module, "SHIPPED", (Declaration("lookup", "", opening, (need,)),))

    async def use(mode: CacheMode, environment: dict[str, str]) -> Observation | str:
        async with open_cached_tools(
            [], wanted=["lookup", "other"], mode=mode, file=path, environment=environment
        ) as box:
            if "lookup" not in box.tools:
                return box.absent["lookup"].message
            assert box.tools["lookup"].shape == tool.shape and box.tools["lookup"].about == tool.about
            return await box.tools["lookup"].call({"text": "q"}, CONTEXT)

    with pytest.raises(StoreError, match="there is no recording"):
        asyncio.run(use(CacheMode.REPLAY, {}))
    assert asyncio.run(use(CacheMode.OFF, {})) == "no A_KEY in the environment"
    first = asyncio.run(use(CacheMode.RECORD, {"A_KEY": "x"}))
    again = asyncio.run(use(CacheMode.REPLAY, {}))
    assert isinstance(first, Observation) and isinstance(again, Observation) and first.text == again.text
    assert opened == [None] and len(tool.asked) == 1


def test_a_replay_keeps_to_the_setting_it_is_given(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def opening(setting: str | None, environment: object) -> Tool:
        tool = FakeTool(lambda arguments: f"by {setting}")
        tool.settings = str(setting)  # type: ignore[attr-defined]
        return tool

    monkeypatch.setattr(registry_module, "SHIPPED", (Declaration("lookup", "", opening),))

    async def use(mode: CacheMode, given: str) -> str:
        async with open_cached_tools([given], mode=mode, file=path) as box:
            return (await box.tools["lookup"].call({"text": "q"}, CONTEXT)).text

    for setting in ("one", "two"):
        asyncio.run(use(CacheMode.RECORD, f"lookup={setting}"))
    assert asyncio.run(use(CacheMode.REPLAY, "lookup=one")) == "by one", "though two was recorded last"
    assert asyncio.run(use(CacheMode.REPLAY, "lookup=two")) == "by two" and not caplog.text
    assert asyncio.run(use(CacheMode.REPLAY, "lookup=three")) == "by two" and "'three'" in caplog.text
    caplog.clear()
    assert asyncio.run(use(CacheMode.REPLAY, "lookup")) == "by two" and "several settings" in caplog.text


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to be read as one" * 20, b"{}"])
def test_a_file_that_is_no_cache_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for read_only in (False, True):
        with pytest.raises(StoreError, match="cannot be used as a cache"):
            Cache(path, read_only=read_only)
    assert path.read_bytes() == content


def test_another_programs_database_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE precious (x)")
    other.close()
    with pytest.raises(StoreError, match="not a cache of this version"):
        Cache(path)


def test_an_answer_that_cannot_be_kept_is_given_all_the_same(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> Observation:
        cache = Cache(path)
        recorded = RecordedTool("lookup", Counting(), cache)
        with sqlite3.connect(path) as other:
            other.execute("DROP TABLE answers")
            other.execute("CREATE TABLE answers (key BLOB, text BLOB, ok INTEGER, meta TEXT)")  # too few columns
        other.close()
        try:
            return await recorded.call({"text": "q"}, CONTEXT)
        finally:
            cache.close()

    assert asyncio.run(go()).text == "answer 1" and "is not recorded" in caplog.text


MANY = """
import asyncio, os, sys
from coa.tools import Observation, ToolContext
from coa.tools.cache import Cache
from coa.tools.recorded import RecordedTool
from coa.trajectory import Form, Shape, Task

class Own:
    about, shape, timeout_s, uses, settings = "x", Shape(form=Form.LINE), 5.0, (), "s"
    async def call(self, arguments, context):
        await asyncio.sleep(0.001)
        return Observation(f"{arguments['text']} by {os.getpid()} " + "x" * 5000)

async def work(cache, calls):
    tool = RecordedTool("own", Own(), cache)
    context = ToolContext(Task(id="1", question="q"))
    for start in range(0, calls, 20):
        batch = [tool.call({"text": str(n % calls)}, context) for n in range(start, start + 20)]
        for observation in await asyncio.gather(*batch):
            os.write(1, (observation.text.split(" x")[0] + "\\n").encode())  # whole lines: two share the pipe

cache = Cache(sys.argv[1])
if sys.argv[2] == "fork":
    child = os.fork()  # both sides go on with the cache that was open before
else:
    child = None
asyncio.run(work(cache, int(sys.argv[3])))
cache.close()
if child:
    sys.exit(os.waitpid(child, 0)[1])
"""


def start(path: Path, how: str, calls: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-c", MANY, str(path), how, str(calls)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_many_processes_share_a_file_and_all_see_the_same_answers(path: Path) -> None:
    processes = [start(path, how, 200) for how in ("fork", "plain", "plain", "fork")]
    seen: dict[str, set[str]] = {}
    lines = 0
    for process in processes:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        for line in output.splitlines():
            lines += 1
            call, _, by = line.partition(" by ")
            seen.setdefault(call, set()).add(by)
    assert lines == 6 * 200 and set(seen) == {str(n) for n in range(200)}
    assert {len(answers) for answers in seen.values()} == {1}, "two processes were told different things"
    cache = Cache(path, read_only=True)
    assert len(cache) == 200 and cache.names() == ["own"]
    cache.close()


def test_a_killed_process_spoils_nothing(path: Path) -> None:
    process = start(path, "plain", 100_000)
    assert process.stdout is not None and process.stderr is not None
    for _ in range(100):
        assert process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    done = start(path, "plain", 100)
    output, errors = done.communicate(timeout=60)
    assert done.returncode == 0, errors
    assert {line.rpartition(" ")[2] for line in output.splitlines()} == {str(process.pid)}, "all 100 were kept"
    with sqlite3.connect(path) as check:
        assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check.close()
