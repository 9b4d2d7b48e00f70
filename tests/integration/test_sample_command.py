"""`coa sample` as a user calls it, against a chat server on loopback: figures, killing and going on, and complaints."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from coa.trajectory import read
from coa.trajectory.formats.tasks import read_tasks
from support import servers
from support.servers import FakeServer
from support.words import word_model

TOOLS = """
from coa.tools import Observation
from coa.trajectory import Form, Shape


class Lookup:
    about = "looks a fact up."
    shape = Shape(form=Form.LINE)
    timeout_s = 60.0

    async def call(self, arguments, context):
        return Observation("found it")
"""
SEARCH = "<think>t</think>\n<plan>p</plan>\n<think>s</think>\n<web_search>who</web_search>"
# How often of four, by the number in the question: without tools, with tools.
RATES = {0: (0, 2), 1: (3, 2), 2: (0, 4), 3: (0, 0), 4: (1, 1), 5: (0, 3)}


def script(body: dict[str, Any]) -> str:
    """Right for as many of the seeds as the table says, which the number of the attempt is added to."""
    said = str(body["messages"])
    number, attempt = int(said.partition("Who is ")[2][0]), body["seed"] - 7
    if "found it" not in said and "web_search" in said:
        return SEARCH
    right = attempt < RATES[number]["found it" in said]
    return f"<think>d</think>\n<answer>{'Ada' if right else 'Bob'}</answer>"


class Done(NamedTuple):
    code: int | None
    out: str
    err: str


@pytest.fixture
def server() -> FakeServer:
    return FakeServer(script, owner="somebody")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mytools.py").write_text(TOOLS)
    rows = [{"id": f"t{n}", "question": f"Who is {n}?", "answer": "Ada"} for n in RATES]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def sample(
    server: FakeServer, folder: Path, *arguments: object, stop: tuple[signal.Signals, int] | None = None
) -> Done:
    """`stop`: send that signal once the server was asked so often."""

    async def go() -> Done:
        async with server.running() as url:
            given = [str(a).replace("URL", url) for a in arguments] or ["tasks.jsonl", "--out", "rl.jsonl"]
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "coa.cli", "sample", *given, "--model", url, "--mode", "chat", "-n", "4",
                "--seed", "7", "--tool", "web_search=mytools:Lookup",
                cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            if stop is not None:
                while len(server.asked) < stop[1]:
                    await asyncio.sleep(0.005)
                process.send_signal(stop[0])
            out, err = await asyncio.wait_for(process.communicate(), 120)
            return Done(process.returncode, out.decode(), err.decode())

    return asyncio.run(go())


def attempts(folder: Path) -> set[tuple[str, str, int]]:
    return {
        (side, *trajectory.key)
        for side in ("without-tools", "with-tools")
        for trajectory in read(folder / "rl.sampling" / side)
    }


def test_tasks_are_kept_with_figures_that_were_worked_out_beforehand(server: FakeServer, folder: Path) -> None:
    done = sample(server, folder)
    assert done.code == 0, done.err
    assert [task.id for task in read_tasks(folder / "rl.jsonl")] == ["t0", "t4", "t5"]
    report = json.loads((folder / "rl.sampling" / "report.json").read_text())
    assert report["dropped"] == {"tools_not_needed": 1, "always_solved": 1, "never_solved": 1}
    assert report["solved_without_tools"] == [4, 1, 0, 1, 0] and report["solved_with_tools"] == [1, 1, 1, 1, 1]
    assert (
        "kept 3 of 6 tasks" in done.out
        and "dropped 1 tools_not_needed, such as t1: solved without tools 3 of 4" in done.out
    )
    assert f"    0 of 4  {'█' * 40}      4" in done.out
    assert 'class="bars"' in (folder / "rl.sampling" / "report.html").read_text()
    assert len(server.asked) == 6 * 4 + 5 * 4 * 2, "one call without tools, two with"
    first = (folder / "rl.jsonl").read_bytes()
    again = sample(server, folder)
    assert again.code == 0 and len(server.asked) == 64 and (folder / "rl.jsonl").read_bytes() == first


def test_attempts_are_sampled_as_rl_samples_them(folder: Path) -> None:
    """A small local model, which `coa run` would hold to the protocol; RL does not, and cuts nothing off."""
    model = word_model(folder / "model")
    command = [sys.executable, "-m", "coa.cli", "sample", "tasks.jsonl", "--out", "rl.jsonl", "--model", str(model)]
    command += ["--profile", "nano", "-n", "2", "--limit", "2", "--budget", "model_tokens=12", "--keep-unsolved"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    made = list(read(folder / "rl.sampling" / "with-tools"))
    assert len(made) == 4, done.stderr
    assert not any("constrained" in step.meta for trajectory in made for step in trajectory.steps)
    settings = json.loads((folder / "rl.sampling" / "config.json").read_text())["settings"]
    assert (settings["temperature"], settings["top_p"], settings["top_k"]) == (1.0, 1.0, 0)
    assert settings["constrain"] == "never"


def test_a_server_is_asked_for_its_whole_distribution(server: FakeServer, folder: Path) -> None:
    assert sample(server, folder).code == 0
    assert {body["temperature"] for body in server.asked} == {1.0}
    assert {body.get("top_p", 1.0) for body in server.asked} == {1.0}
    assert not any(body.get("top_k", 0) > 0 for body in server.asked)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("when", [10, 40])
def test_a_stopped_sampling_goes_on_and_ends_the_same(
    server: FakeServer, folder: Path, how: signal.Signals, when: int
) -> None:
    server.trouble = [lambda request: None] * when + [servers.hang] * 9
    stopped = sample(server, folder, "tasks.jsonl", "--out", "rl.jsonl", "--concurrency", 2, stop=(how, when))
    assert stopped.code == (1 if how is signal.SIGINT else -signal.SIGKILL), stopped.err
    assert not (folder / "rl.jsonl").exists(), "half a selection would look like a whole one"
    if how is signal.SIGINT:
        assert "the same command goes on" in stopped.err and "Traceback" not in stopped.err
    server.trouble = []
    done = sample(server, folder)
    assert done.code == 0 and [task.id for task in read_tasks(folder / "rl.jsonl")] == ["t0", "t4", "t5"], done.err
    # Two runs were under way, at one call each; a killed process may not have written the last two it finished.
    assert 64 <= len(server.asked) <= 64 + 6
    assert len(attempts(folder)) == 6 * 4 + 5 * 4


def test_another_model_is_asked_without_tools(server: FakeServer, folder: Path) -> None:
    done = sample(
        server, folder, "tasks.jsonl", "--out", "rl.jsonl", "--no-tools-model", "URL", "--no-tools-samples", 1
    )
    assert done.code == 0, done.err
    # Of one attempt without tools, t1 and t4 solve it: 1 of 1 is more than 0.3.
    assert [task.id for task in read_tasks(folder / "rl.jsonl")] == ["t0", "t5"]
    meta: Any = next(iter(read_tasks(folder / "rl.jsonl"))).meta
    assert meta["sampling"]["without_tools"]["scored"] == 1


def test_a_judge_that_is_down_leaves_tasks_unscored_and_is_asked_again(server: FakeServer, folder: Path) -> None:
    down = True

    def judging(body: dict[str, Any]) -> str:
        if "Compare an answer" in str(body["messages"]):
            if down:
                raise servers.web.HTTPBadRequest(text="down")
            right = 'answer: \\"Ada' in str(body["messages"]) or 'answer: "Ada' in str(body["messages"])
            return json.dumps({"reason": "r", "verdict": "correct" if right else "incorrect"})
        return script(body)

    server.script = judging
    command = ("tasks.jsonl", "--out", "rl.jsonl", "--scorer", "judge", "--judge", "URL")
    first = sample(server, folder, *command)
    assert first.code == 1 and "no task was kept" in first.err and "24 of 24 attempts could not be scored" in first.out
    assert "dropped 6 unscored" in first.out and "hint: give the tasks right answers" in first.err
    down = False
    again = sample(server, folder, *command)
    assert again.code == 0 and [task.id for task in read_tasks(folder / "rl.jsonl")] == ["t0", "t4", "t5"], again.err
    runs = [body for body in server.asked if "Compare an answer" not in str(body["messages"])]
    assert len(runs) == 64, "the attempts themselves were not made again"


def test_fine_tuning_data_of_every_shape_is_excluded(server: FakeServer, folder: Path) -> None:
    row = {"instruction": "Use tools.", "input": "Who is 0?", "output": "<think>h</think><web_search>x</web_search>"}
    (folder / "sft").mkdir()
    (folder / "sft" / "afm.json").write_text(json.dumps([row]))
    (folder / "seen.jsonl").write_text(json.dumps({"question": "who is 4"}) + "\n")
    done = sample(
        server, folder, "tasks.jsonl", "--out", "rl.jsonl", "--exclude", "sft", "--exclude", "seen.jsonl", "--enough"
    )
    assert done.code == 0 and [task.id for task in read_tasks(folder / "rl.jsonl")] == ["t5"], done.err
    assert "dropped 2 in_sft_data, such as t0" in done.out
    assert not any("Who is 0" in str(body["messages"]) for body in server.asked)


EARLY = {
    "other settings": (["tasks.jsonl", "--out", "rl.jsonl", "--top-k", "5"], 1, "top_k was 20 and is now 5"),
    "ending": (["tasks.jsonl", "--out", "rl.csv"], 2, "--out ends with .jsonl"),
    "no tasks": (["nothing.jsonl", "--out", "rl.jsonl"], 1, "there is no file or folder nothing.jsonl"),
    "empty": (["empty.jsonl", "--out", "rl.jsonl"], 1, "empty.jsonl holds no task"),
    "scorer": (["tasks.jsonl", "--out", "new.jsonl", "--scorer", "none"], 1, "there is no scorer 'none'"),
    "judge": (["tasks.jsonl", "--out", "new.jsonl", "--scorer", "judge"], 1, "add --judge URL"),
}  # fmt: skip


@pytest.mark.parametrize("case", EARLY)
def test_what_cannot_work_is_told_before_anything_is_spent(server: FakeServer, folder: Path, case: str) -> None:
    (folder / "empty.jsonl").write_text("")
    arguments, code, said = EARLY[case]
    (folder / "rl.sampling").mkdir()
    held = {"model": "tiny", "no_tools_model": "tiny", "top_k": 20}
    (folder / "rl.sampling" / "config.json").write_text(json.dumps({"settings": held}))
    done = sample(server, folder, *arguments)
    assert (done.code, len(server.asked)) == (code, 0), done.err
    assert said in " ".join(done.err.replace("│", " ").split())
