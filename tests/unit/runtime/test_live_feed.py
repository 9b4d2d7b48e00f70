"""The live feed: what another process sees of runs that are not over, and that it never disturbs one."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coa.distill.find_runs import find_runs
from coa.folder import is_held
from coa.models.scripted import ScriptedModel
from coa.runtime import live
from coa.runtime.live import FOLDER, RUNNING, LiveFeed, live_feed, live_state, live_trajectory, read_live
from coa.trajectory import Step, Task, Tokens, Trajectory, Usage, load_profile, observation, profile_of, read, write
from coa.trajectory.formats.sources import files
from coa.trajectory.types import CodeTests, TestCase
from support.builders import web_run
from support.gated import GATE, GatedModel
from support.runs import run_many
from support.tools import searching

WEB = load_profile("web")
TASK = Task(id="t", question="Who?", answer="Ada")
SPENT = Usage(completion_tokens=3, model_calls=1)
CHAIN = [
    "<think>a</think>\n<plan>b</plan>\n<think>s</think>\n<web_search>ada</web_search>",
    f"{GATE}<answer>Ada</answer>",
]


def feeds(folder: Path) -> list[Path]:
    return sorted((folder / FOLDER).glob("*.jsonl"))


async def until(true: object) -> None:
    assert callable(true)
    for _ in range(2000):
        if true():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen")


@pytest.mark.parametrize("count", [1, 3])
def test_a_running_chain_is_seen_step_by_step_and_no_longer_once_it_is_in_its_file(tmp_path: Path, count: int) -> None:
    model = GatedModel(CHAIN)

    async def go() -> list[Trajectory]:
        tasks = [Task(id=f"t{n}", question=f"Who is {n}?") for n in range(count)]
        runs = run_many(tasks, model, {"web_search": searching()}, out=tmp_path / "runs")
        first = asyncio.ensure_future(anext(runs))
        await until(lambda: [len(run.steps) for run in read_live(tmp_path / "runs")] == [5] * count)
        for number, run in enumerate(seen := read_live(tmp_path / "runs")):
            assert [step.agent for step in run.steps] == ["think", "plan", "think", "web_search", "observation"]
            assert run.task == tasks[number] and run.sample == 0 and run.model == "gated"
            assert run.usage.model_calls == 1 and run.usage.tool_calls == 1
        state = live_state(tmp_path / "runs")
        assert state == live_state(tmp_path / "runs") and len({run.key for run in seen}) == count
        for _ in range(count):
            model.open_gate()
        done = [await first]
        assert len(read_live(tmp_path / "runs")) == count - 1, "the kept one is in its file"
        assert live_state(tmp_path / "runs") != state
        return [*done, *[run async for run in runs]]

    done = asyncio.run(go())
    assert len(done) == count and not (tmp_path / "runs" / FOLDER).exists()


def test_what_is_seen_is_what_the_run_becomes(tmp_path: Path) -> None:
    model = GatedModel(CHAIN)

    async def go() -> tuple[Trajectory, Trajectory]:
        runs = run_many([TASK], model, {"web_search": searching()}, out=tmp_path)
        first = asyncio.ensure_future(anext(runs))
        await until(lambda: any(len(run.steps) == 5 for run in read_live(tmp_path)))
        seen = live_trajectory(read_live(tmp_path)[0])
        model.open_gate()
        done = await first
        await runs.aclose()
        return seen, done

    seen, done = asyncio.run(go())
    assert seen.steps == done.steps[:5] and seen.task == done.task and seen.profile_hash == done.profile_hash
    assert seen.meta[RUNNING] is True and RUNNING not in done.meta and seen.answer is None


def test_another_process_reads_the_feed_with_the_profile_that_it_does_not_know(tmp_path: Path) -> None:
    own = WEB.model_copy(update={"name": "mine", "about": "nobody else has it"})
    with live_feed(tmp_path) as feed:
        feed.begin(TASK, own, 2, model="m").step(Step(agent="think", text="é\n"), SPENT)
        code = (
            "import sys; from coa.runtime.live import read_live, live_trajectory\n"
            "from coa.trajectory import profile_of\n"
            "run, = read_live(sys.argv[1])\n"
            "print(profile_of(live_trajectory(run)).about, run.sample, run.steps[0].text)"
        )
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "nobody else has it 2 é\n\n"
    assert profile_of(web_run()).name == "web"


def test_token_ids_tests_and_long_texts_stay_out(tmp_path: Path) -> None:
    tests = CodeTests(cases=(TestCase(stdin="x" * 100_000, expected="y"),))
    task = TASK.model_copy(update={"tests": tests, "question": "q" * 50_000})
    with live_feed(tmp_path) as feed:
        run = feed.begin(task, WEB, 0, model="m")
        run.step(Step(agent="think", text="a", tokens=Tokens(ids=(1, 2))), SPENT)
        run.step(observation("b" * 100_000, meta={"page": "c" * 300_000}), SPENT)
        run.step(Step(agent="think", text="d", surface="e" * 30_000), SPENT)
        (seen,) = read_live(tmp_path)
        assert feeds(tmp_path)[0].stat().st_size < 80_000
    first, second, third = seen.steps
    assert first.tokens is None and "characters omitted" in second.text and len(second.text) <= 20_000
    assert not second.meta and third.surface is None and third.text == "d"
    assert seen.task.tests is None and len(seen.task.question) <= 20_000 and seen.task.answer == ("Ada",)


def test_a_feed_that_has_grown_keeps_the_active_runs_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_MOST_BYTES", 50_000)
    with live_feed(tmp_path) as feed:
        stays = feed.begin(TASK, WEB, 0, model="m")
        stays.step(Step(agent="think", text="kept"), SPENT)
        names = feeds(tmp_path)
        for number in range(100):
            run = feed.begin(TASK, WEB, number + 1, model="m")
            run.step(observation("x" * 5_000), SPENT)
            assert {seen.sample for seen in read_live(tmp_path)} == {0, number + 1}
            run.end()
            run.end()
            assert feeds(tmp_path) == names and names[0].stat().st_size < 60_000
        (seen,) = read_live(tmp_path)
        assert [step.text for step in seen.steps] == ["kept"] and profile_of(live_trajectory(seen)) == WEB
        stays.end()
        assert read_live(tmp_path) == []


def test_a_feed_without_an_active_run_is_emptied_when_it_is_not_small(tmp_path: Path) -> None:
    with live_feed(tmp_path) as feed:
        for _ in range(3):
            run = feed.begin(TASK, WEB, 0, model="m")
            for _ in range(10):
                run.step(observation("x" * 10_000), SPENT)
            run.end()
            assert feeds(tmp_path)[0].stat().st_size < 30_000


def test_lines_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    with live_feed(tmp_path) as feed:
        run = feed.begin(TASK, WEB, 0, model="m")
        run.step(Step(agent="think", text="good"), SPENT)
        with feeds(tmp_path)[0].open("ab") as file:
            key = run.key.encode()
            for line in (b"\xff\xfe", b"[]", b"3", b"{}", b'{"run":"%b","step":{"agent":3}}' % key, b'{"run":{}}',
                         b'{"run":"no","task":{}}', b'{"run":"x","task":{"id":"a","question":"b"},"sample":"many"}',
                         b'{"run":"%b","step":{"agent":"think","te' % key):  # fmt: skip
                file.write(line + b"\n")
            file.write(b'{"run":"%b","ended":tr' % key)
        (seen,) = read_live(tmp_path)
        assert [step.text for step in seen.steps] == ["good"]


SCRIPT = """
import os, sys, time
from pathlib import Path
from coa.runtime.live import LiveFeed
from coa.trajectory import Step, Task, Usage, load_profile
feed = LiveFeed(Path(sys.argv[1]))
run = feed.begin(Task(id="t", question="Who?"), load_profile("web"), 0, model="m")
run.step(Step(agent="think", text="a"), Usage())
"""


@contextmanager
def writer(folder: Path, more: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT + more, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_feed_of_a_killed_process_is_not_shown_and_the_next_writer_removes_it(tmp_path: Path) -> None:
    with writer(tmp_path, "print('ready', flush=True); time.sleep(60)") as process:
        (path,) = feeds(tmp_path)
        assert len(read_live(tmp_path)) == 1 and is_held(path) and path.name.startswith(f"{process.pid}-")
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert path.exists() and not is_held(path) and read_live(tmp_path) == []
    with live_feed(tmp_path) as feed:
        feed.begin(TASK, WEB, 0, model="m")
        assert path not in feeds(tmp_path) and len(feeds(tmp_path)) == 1
    assert not (tmp_path / FOLDER).exists()


def test_a_forked_child_neither_holds_nor_writes_the_feed_of_its_parent(tmp_path: Path) -> None:
    fork = """
if os.fork():
    os._exit(0)  # without an end of its feed
run.step(Step(agent="think", text="the child's"), Usage())
print("ready", flush=True)
sys.stdin.read()
"""
    with writer(tmp_path, fork) as parent:
        parent.wait()
        (path,) = feeds(tmp_path)
        assert not is_held(path) and "the child's" not in path.read_text()


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    with live_feed(tmp_path) as feed, writer(tmp_path, "print('ready', flush=True); time.sleep(60)"):
        feed.begin(TASK, WEB, 0, model="own")
        assert len(read_live(tmp_path)) == 2 and len(feeds(tmp_path)) == 2
        feed.close()
        assert len(read_live(tmp_path)) == 1, "the other's stays"


def test_a_feed_that_cannot_be_made_disturbs_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FOLDER).write_text("a file is in its way")
    caplog.set_level(logging.DEBUG, "coa.runtime.live")

    async def go() -> list[Trajectory]:
        model = ScriptedModel(lambda context: "<think>a</think>\n<answer>Ada</answer>")
        return [run async for run in run_many([TASK], model, out=tmp_path)]

    (done,) = asyncio.run(go())
    assert done.answer == "Ada" and list(read(tmp_path)) == [done]
    (said,) = (record for record in caplog.records if record.name == "coa.runtime.live")
    assert said.levelno == logging.DEBUG and "no live feed" in said.message
    assert (tmp_path / FOLDER).read_text() == "a file is in its way"


def test_a_full_disk_ends_the_feed_and_nothing_else(tmp_path: Path) -> None:
    full = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
for _ in range(10):
    run.step(Step(agent="think", text="x" * 10_000), Usage())
run.end()
print("ready", flush=True)
"""
    with writer(tmp_path, full) as process:
        assert process.wait() == 0
    assert feeds(tmp_path) == []


def test_a_batch_without_runs_makes_no_feed(tmp_path: Path) -> None:
    LiveFeed(tmp_path).close()
    assert list(tmp_path.iterdir()) == [] and read_live(tmp_path) == [] and live_state(tmp_path / "none") == ()


def test_readers_of_run_folders_ignore_the_feed(tmp_path: Path) -> None:
    write(tmp_path / "one" / "trajectories.jsonl", [web_run()])
    with live_feed(tmp_path / "one") as feed, live_feed(tmp_path) as above:
        for one in (feed, above):
            one.begin(TASK, WEB, 0, model="m").step(Step(agent="think", text="a"), SPENT)
        assert [found.place for found in find_runs(str(tmp_path))] == ["one/trajectories.jsonl"]
        assert files(str(tmp_path)) == [tmp_path / "one" / "trajectories.jsonl"]


def test_the_first_line_says_who_writes(tmp_path: Path) -> None:
    with live_feed(tmp_path) as feed:
        feed.begin(TASK, WEB, 0, model="m")
        assert json.loads(feeds(tmp_path)[0].read_text().splitlines()[0])["pid"] == os.getpid()
