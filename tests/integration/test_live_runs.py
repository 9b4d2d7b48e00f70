"""What another process sees of commands that are making runs: every chain that is not over, step by step."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coa.runtime.live import FOLDER, LiveRun, live_trajectory, read_live
from coa.trajectory import profile_of
from support.servers import FakeServer, in_thread

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


class Gate:
    """A model that writes its answers only when the test lets it."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def __call__(self, body: dict[str, Any]) -> str:
        if "found it" not in str(body["messages"]):
            return "<think>t</think>\n<plan>p</plan>\n<think>s</think>\n<web_search>who</web_search>"
        assert self.opened.wait(60)
        return "<think>d</think>\n<answer>Ada</answer>"


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def seen_in(folder: Path) -> list[LiveRun]:
    """The running chains, once one of them has its observation."""
    for _ in range(1000):
        runs = read_live(folder)
        if any(len(run.steps) >= 5 for run in runs):
            return runs
        time.sleep(0.02)
    raise AssertionError(f"no chain was seen in {folder}")


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        (("run", "Who is 0?", "--out", "asked.jsonl"), "."),
        (("run", "--tasks", "tasks.jsonl", "--out", "runs"), "runs"),
        (("eval", "tasks.jsonl", "--out", "exam"), "exam"),
        (("sample", "tasks.jsonl", "--no-tools-samples", "0", "--out", "kept.jsonl"), "kept.sampling/with-tools"),
    ],
    ids=["run", "tasks", "eval", "sample"],
)
def test_a_command_shows_its_running_chains(command: tuple[str, ...], folder: str, gate: Gate, tmp_path: Path) -> None:
    (tmp_path / "mytools.py").write_text(TOOLS)
    rows = [{"id": f"t{n}", "question": f"Who is {n}?", "answer": "Ada" if n else "Bob"} for n in range(2)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with in_thread(FakeServer(gate, owner="somebody")) as url:
        process = subprocess.Popen(
            [sys.executable, "-m", "coa.cli", *command, "--model", url, "--tool", "web_search=mytools:Lookup"],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            run = max(seen_in(tmp_path / folder), key=lambda run: len(run.steps))
            assert [step.agent for step in run.steps] == ["think", "plan", "think", "web_search", "observation"]
            assert run.steps[-1].text == "found it" and run.task.question.startswith("Who is ")
            assert profile_of(live_trajectory(run)).name == "web"
            gate.opened.set()
            out, err = process.communicate(timeout=120)
        finally:
            gate.opened.set()
            process.kill()
            process.communicate()
    assert process.returncode == (1 if command[0] == "sample" else 0), out + err  # no task is of use
    assert not (tmp_path / folder / FOLDER).exists()
