"""`coa teach` as a user calls it: a real team behind a real server, failures as data, resuming, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from coa.distill.importers.detect import read_traces
from coa.distill.teaching.pool import run_team
from coa.distill.teaching.results import trace_path
from coa.distill.teaching.team import Team, build
from coa.distill.team_run import TeamRun
from coa.errors import FolderError, RecordingError
from coa.trajectory.types import Stop, Task
from support.atif_rules import assert_atif

TEAM = """
import os, threading, time
from smolagents import CodeAgent, Model

class Stuck(Model):
    def generate(self, *args, **kwargs):
        time.sleep(600)

def build(model, task):
    print("a team prints a lot")
    if task.id == "broken":
        raise ValueError("no such tool")
    if task.id == "dying":
        os._exit(7)
    return CodeAgent(tools=[], model=Stuck() if task.id == "stuck" else model)
"""


class Server(ThreadingHTTPServer):
    """Answers every chat with one that ends the run, and counts."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        self.delay_s = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "tiny", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(json.dumps(body["messages"]))
        time.sleep(self.server.delay_s)
        message = {"role": "assistant", "content": "Thought: easy.\n<code>\nfinal_answer('42')\n</code>"}
        usage = {"prompt_tokens": 50, "completion_tokens": 5, "total_tokens": 55}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        self._send(
            {"id": "1", "object": "chat.completion", "created": 1, "model": "tiny", "choices": [choice], "usage": usage}
        )

    def _send(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "ourteam.py").write_text(TEAM)
    return tmp_path


def tasks_file(folder: Path, *ids: str) -> Path:
    rows = [{"id": identity, "question": f"What is the answer to {identity}?", "answer": "42"} for identity in ids]
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def command(folder: Path, url: str, *options: str) -> list[str]:
    words = [
        "teach",
        str(folder / "tasks.jsonl"),
        "--team",
        "ourteam:build",
        "--model",
        url,
        "--out",
        str(folder / "out"),
    ]
    return [sys.executable, "-m", "coa.cli", *words, *options]


def coa(folder: Path, url: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(folder, url, *options), cwd=folder, capture_output=True, text=True, timeout=240)


def traces(folder: Path) -> dict[str, TeamRun]:
    found = list(read_traces(folder / "out"))
    assert all(isinstance(item, TeamRun) for item in found), found
    return {run.task.id: run for run in found if isinstance(run, TeamRun)}


def test_each_task_leaves_a_trace_and_failures_are_data(place: Path, server: Server) -> None:
    tasks_file(place, "a", "b/c", "broken", "dying", "d")
    done = coa(place, server.url, "--jobs", "3", "--price-in", "100", "--price-out", "1000")
    assert done.returncode == 1, done.stderr
    assert "3 answered, 2 failed" in done.stdout
    # 3 calls x 50 read and 5 written: 150 x 100 / 1M + 15 x 1000 / 1M
    assert "165 tokens in 3 calls, cost 0.03" in done.stdout
    runs = traces(place)
    assert {identity: run.stop for identity, run in runs.items()} == {
        "a": Stop.ANSWERED, "b/c": Stop.ANSWERED, "d": Stop.ANSWERED, "broken": Stop.FAILED, "dying": Stop.FAILED,
    }  # fmt: skip
    assert runs["a"].answer == "42" and runs["a"].task.answer == ("42",) and runs["a"].usage.total_tokens == 55
    assert "no such tool" in (runs["broken"].failure.message if runs["broken"].failure else "")
    assert "code 7" in (runs["dying"].failure.message if runs["dying"].failure else "")
    for path in (place / "out").glob("*.atif.json"):
        assert_atif(json.loads(path.read_text()))
    assert "a team prints a lot" not in done.stdout + done.stderr

    # The same command again asks for nothing; with --retry-failed it runs the two others alone.
    before = len(server.asked)
    again = coa(place, server.url, "--json")
    assert json.loads(again.stdout)["resumed"] == 5 and len(server.asked) == before
    (place / "ourteam.py").write_text(TEAM.replace("task.id ==", "task.id == '-' +"))
    last = coa(place, server.url, "--retry-failed", "--json")
    assert last.returncode == 0, last.stderr
    counted = json.loads(last.stdout)
    assert (counted["resumed"], counted["answered"], counted["usage"]["prompt_tokens"]) == (3, 2, 100)
    assert all(run.stop is Stop.ANSWERED for run in traces(place).values())


def test_a_team_that_hangs_is_ended_and_what_it_did_is_kept(place: Path, server: Server) -> None:
    tasks_file(place, "stuck")
    done = coa(place, server.url, "--time-limit", "8")
    assert done.returncode == 1 and "1 timed out" in done.stdout
    run = traces(place)["stuck"]
    # A model call that never came back.
    assert run.stop is Stop.TIME and [event.kind for event in run.root.events] == ["model_call"]
    left_behind = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(folder / "cwd") == str(place):
                left_behind.append(folder.name)
        except OSError:
            continue
    assert left_behind == []


def test_ctrl_c_leaves_whole_files_and_the_rest_for_the_next_time(place: Path, server: Server) -> None:
    server.delay_s = 0.4
    tasks_file(place, *(f"t{number}" for number in range(40)))
    process = subprocess.Popen(
        command(place, server.url, "--jobs", "2"), cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        give_up = time.monotonic() + 120
        while len(list((place / "out").glob("*.atif.json"))) < 3:
            assert time.monotonic() < give_up and process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1 and "the same command goes on from there" in errors
    finished = traces(place)
    assert 3 <= len(finished) < 40
    server.delay_s, asked = 0.0, len(server.asked)
    rest = coa(place, server.url, "--jobs", "2", "--json")
    counted = json.loads(rest.stdout)
    assert (counted["resumed"], counted["answered"]) == (len(finished), 40 - len(finished))
    assert len(server.asked) - asked == 40 - len(finished)
    assert len(traces(place)) == 40


def test_a_factory_that_is_not_there_is_told_at_once(place: Path) -> None:
    tasks_file(place, "a")
    words = ["teach", "tasks.jsonl", "--team", "ourteam:nothing", "--out", "out"]
    done = subprocess.run(
        [sys.executable, "-m", "coa.cli", *words], cwd=place, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1 and "nothing" in done.stderr and "hint" in done.stderr
    assert not (place / "out" / "config.json").exists()  # the right name is not refused afterwards


def test_runs_of_two_teams_are_not_mixed_in_one_folder(tmp_path: Path) -> None:
    run_team([], Team("first:build"), tmp_path / "out")
    with pytest.raises(FolderError, match="first:build"):
        run_team([], Team("second:build"), tmp_path / "out")


def test_ids_that_look_alike_have_files_of_their_own(tmp_path: Path) -> None:
    ids = ["a/b", "a_b", "a b", "../a", "..", ".a", "A" * 300, "A" * 301, "é", "è"]
    paths = {trace_path(tmp_path, identity) for identity in ids}
    assert len(paths) == len(ids)
    assert all(path.parent == tmp_path and not path.name.startswith(".") and len(path.name) < 120 for path in paths)


def test_a_factory_gets_what_it_asks_for() -> None:
    task = Task(id="t", question="q")
    assert build(lambda: "own", "m", task) == "own"
    assert build(lambda model: model, "m", task) == "m"
    assert build(lambda model, task: (model, task.id), "m", task) == ("m", "t")
    assert build(lambda model, steps=3: (model, steps), "m", task) == ("m", 3)
    assert build(lambda model, task=None: (model, task), "m", task) == ("m", task)
    with pytest.raises(RecordingError, match="wants a, b, c"):
        build(lambda a, b, c: None, "m", task)
