"""Two processes on one output: the second is refused at once and does not disturb the first, for every stage.

A gate holds the first process in the middle of its work: whatever it asks (a model server, a tool, a team's model, its
own progress callback) touches the file `reached` and waits for the file `go`. So nothing here depends on time.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from aiohttp import web
from safetensors.torch import load_file

from coa.rl.config import RlConfig
from coa.rl.engines.local import train as train_rl
from coa.sft.config import SftConfig
from coa.sft.train import train as train_sft
from coa.trajectory import read, write
from support.exams import ExamServer, write_tasks
from support.keys import Keyed, before_rl, key_tasks, settings
from support.servers import in_thread
from support.told_teams import FEW_CALLS, call_only, speaks
from support.words import copying, word_model

TESTS = Path(__file__).parents[1]
GATE = """
import os, time
def gate():
    open("reached", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.005)
"""
TEAM = f"""{GATE}
from smolagents import ChatMessage, CodeAgent, Model

class Scripted(Model):
    def generate(self, *args, **kwargs):
        gate()
        return ChatMessage(role="assistant", content="Thought: easy.\\n<code>\\nfinal_answer('42')\\n</code>")

def build(task):
    return CodeAgent(tools=[], model=Scripted())
"""
HELD = {
    "export": ("coa.trajectory.formats.export", "_rows"),
    "index": ("coa.tools.index.build", "_fill"),
    "world": ("coa.worlds.folder", "_write"),
    "demo": ("coa.demo.commands", "_run"),
}
"""Stages that ask nobody: the function before which they wait."""
WAITING = """
import importlib, sys
name = sys.argv.pop(2)
part = importlib.import_module(sys.argv.pop(1))
real = getattr(part, name)
def waiting(*args, **kwargs):
    gate()
    return real(*args, **kwargs)
setattr(part, name, waiting)
from coa.cli import main
main()
"""
SFT = f"""{GATE}
import sys
from pathlib import Path
from coa.sft.config import SftConfig
from coa.progress import PrintProgress
from coa.sft.train import train
progress = PrintProgress(lambda line: "step 2/" in line and gate())
train(SftConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]), progress=progress)
"""
RL = f"""{GATE}
import sys
from pathlib import Path
from coa.rl.config import RlConfig
from coa.rl.engines.local import train
from support.keys import Keyed
tools = {{"web_search": Keyed(lambda query: gate(), timeout_s=300)}}
train(RlConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]), tools=tools)
"""


class GatedServer(ExamServer):
    """Lets requests in where the gate of the folder is open."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    async def chat(self, request: web.Request) -> web.StreamResponse:
        (self._folder / "reached").touch()
        while not (self._folder / "go").exists():
            await asyncio.sleep(0.005)
        return await super().chat(request)

    def say(self, body: dict[str, Any]) -> str:
        text = str(body["messages"][-1]["content"])
        return speaks(body) if "tower" in text or "metres" in text else super().say(body)


class Place(NamedTuple):
    """A folder to work in, with a gate, a server, and what the stages read."""

    path: Path
    server: GatedServer
    url: str

    def start(self, *command: object) -> subprocess.Popen[str]:
        words = list(map(str, command))
        program = [sys.executable, *(words if words[0] == "-c" else ["-m", "coa.cli", *words])]
        paths = os.pathsep.join([str(TESTS), str(self.path), *sys.path])
        return subprocess.Popen(
            program, cwd=self.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def finish(self, process: subprocess.Popen[str], code: int = 0) -> str:
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, out + err
        return err

    def kill(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):  # which its children, if it has any, may keep open
            assert pipe is not None
            pipe.close()

    def do(self, *command: object) -> None:
        self.finish(self.start(*command))

    def close(self) -> None:
        (self.path / "go").unlink(missing_ok=True)
        (self.path / "reached").unlink(missing_ok=True)

    def open(self) -> None:
        (self.path / "go").touch()

    def until_reached(self, process: subprocess.Popen[str]) -> None:
        while not (self.path / "reached").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    write_tasks(tmp_path / "exam.jsonl", 6)
    (tmp_path / "ourteam.py").write_text(TEAM)
    (tmp_path / "go").touch()
    server = GatedServer(tmp_path)
    with in_thread(server) as url:
        yield Place(tmp_path, server, url)
        (tmp_path / "go").touch()


def refused_meanwhile(place: Place, first: subprocess.Popen[str], *second: object) -> None:
    """The first is in the middle of its work and stays there until the second has ended."""
    place.until_reached(first)
    asked = len(place.server.asked)
    said = place.finish(place.start(*second), code=1)
    assert f"pid {first.pid} on" in said and "hint: wait until it has ended" in said, said
    assert first.poll() is None and len(place.server.asked) == asked
    place.open()
    place.finish(first)


def untimed(value: Any) -> Any:
    """Without what differs between any two runs: times, the folder's name, and which record was first in the file."""
    if isinstance(value, dict):
        dropped = ("seconds", "timing", "timestamp", "session_id", "built", "profile_definition")
        return {name: untimed(item) for name, item in value.items() if name not in dropped}
    return [untimed(item) for item in value] if isinstance(value, list) else value


def records(folder: Path) -> Any:
    """Trajectories, reports and traces of an output, in an order that follows from their content."""
    found = {}
    for file in sorted(folder.rglob("*") if folder.is_dir() else [folder]):
        name = str(file.relative_to(folder))
        assert file.name != ".lock" and ".part" not in file.name, "what was held or half written is gone"
        if file.name == "meta.json" or file.name.startswith(".") or ".log" in name:
            continue  # tantivy's numbers of an index are drawn by lot
        if file.suffix == ".jsonl":
            found[name] = sorted(json.dumps(untimed(json.loads(line))) for line in file.read_text().splitlines())
        elif file.suffix == ".json":
            found[name] = untimed(json.loads(file.read_text()))
    return found


def run(place: Place, out: str) -> list[object]:
    return ["run", "--tasks", "exam.jsonl", "--model", place.url, "--mode", "chat", "--profile", "nano", "--out", out]


def ask(place: Place, out: str) -> list[object]:
    return ["run", "Who is person 1?", "--model", place.url, "--set", "mode=chat", "--profile", "nano", "--out", out]


def evaluate(place: Place, out: str) -> list[object]:
    return ["eval", "exam.jsonl", "--model", place.url, "--mode", "chat", "--profile", "nano", "--out", out]


def score(place: Place, out: str) -> list[object]:
    """Of runs that are there already."""
    if not (place.path / out).exists():
        write(place.path / out / "trajectories.jsonl", copying(4))
    return ["score", out, "--scorer", "judge", "--judge", place.url, "--in-place"]


def sample(place: Place, out: str) -> list[object]:
    options = ["--mode", "chat", "--profile", "nano", "-n", "2", "--no-tools-samples", "0", "--seed", "0"]
    return ["sample", "exam.jsonl", "--out", f"{out}.jsonl", "--model", place.url, *options]


def distill(place: Place, out: str) -> list[object]:
    if not (place.path / "traces").exists():
        (place.path / "traces").mkdir()
        (place.path / "distill.toml").write_text(FEW_CALLS)
        for number in range(3):
            (place.path / "traces" / f"{number}.json").write_text(json.dumps(call_only(number)))
    return ["distill", "traces", "--out", out, "--config", "distill.toml", "--judge", place.url, "--fill", place.url]


def teach(place: Place, out: str) -> list[object]:
    return ["teach", "exam.jsonl", "--team", "ourteam:build", "--out", out, "--limit", "2"]


Command = Callable[[Place, str], list[object]]


def made(place: Place, command: Command, out: str) -> Any:
    if command is sample:
        return records(place.path / f"{out}.jsonl"), records(place.path / f"{out}.sampling")
    return json.loads(json.dumps(records(place.path / out)).replace(f'"{out}"', '"out"'))


SAME_LOCK = (ask, score, sample)
"""Commands that claim their output as one of the others does."""


@pytest.mark.parametrize(
    "command", [run, evaluate, distill, teach, *(pytest.param(one, marks=pytest.mark.slow) for one in SAME_LOCK)]
)
def test_the_second_is_refused_the_first_undisturbed_and_a_killed_one_gone_on_with(
    place: Place, command: Command
) -> None:
    place.do(*command(place, "calm"))
    calm, paid = made(place, command, "calm"), len(place.server.asked)

    place.close()
    refused_meanwhile(place, place.start(*command(place, "busy")), *command(place, "busy"))
    assert made(place, command, "busy") == calm
    assert len(place.server.asked) == 2 * paid, "nothing was paid for twice"

    place.close()
    killed = place.start(*command(place, "killed"))
    place.until_reached(killed)
    place.kill(killed)
    left = [json.loads(file.read_text())["pid"] for file in place.path.rglob(".*lock")]
    assert left and set(left) == {killed.pid}
    place.open()
    place.do(*command(place, "killed"))
    assert made(place, command, "killed") == calm


def held(stage: str) -> list[object]:
    return ["-c", f"{GATE}{WAITING}", *HELD[stage]]


def test_an_export_an_index_and_a_world_are_made_by_one_process(place: Place) -> None:
    write(place.path / "runs.jsonl", copying(4))
    (place.path / "docs.jsonl").write_text('{"id": "a", "text": "the river Sill"}\n')
    small = ["--cities", "20", "--people", "30", "--firms", "10", "--train", "2", "--rl", "2", "--test", "2"]
    for stage, words in {
        "export": ["export", "runs.jsonl", "--to", "alpaca", "--out", "OUT.json"],
        "index": ["index", "build", "docs.jsonl", "--out", "OUT"],
        "world": ["world", "build", "--seed", "3", *small, "--out", "OUT"],
    }.items():

        def named(out: str, words: list[str] = words) -> list[object]:
            return [word.replace("OUT", out) for word in words]

        place.open()
        place.do(*named(f"{stage}-calm"))
        place.close()
        refused_meanwhile(place, place.start(*held(stage), *named(f"{stage}-busy")), *named(f"{stage}-busy"))
        suffix = ".json" if stage == "export" else ""
        calm, busy = (place.path / f"{stage}-{name}{suffix}" for name in ("calm", "busy"))
        assert records(calm) == records(busy) and records(calm)


def test_a_folder_of_exported_files_and_a_demo_are_of_one_process(place: Place) -> None:
    write(place.path / "runs.jsonl", copying(4))
    place.close()
    words = ["export", "runs.jsonl", "--to", "atif", "--out", "atif", "--force"]
    refused_meanwhile(place, place.start(*held("export"), *words), *words)
    assert len(list((place.path / "atif").iterdir())) == 4
    place.close()
    demo = place.start(*held("demo"), "demo", "--quick", "--out", "demo")
    place.until_reached(demo)
    said = place.finish(place.start("demo", "--quick", "--out", "demo"), code=1)
    assert f"pid {demo.pid} on" in said
    place.kill(demo)


def test_a_batch_in_python_locks_its_file_and_a_score_waits_for_no_run(place: Place) -> None:
    """`coa score` on what `coa run` is still writing would rewrite the file under it."""
    place.close()
    first = place.start(*run(place, "busy"))
    place.until_reached(first)
    said = place.finish(place.start("score", "busy", "--scorer", "exact", "--in-place"), code=1)
    assert f"pid {first.pid} on" in said
    place.open()
    place.finish(first)
    assert len(list(read(place.path / "busy"))) == 6


def same_weights(one: Path, other: Path) -> bool:
    found, wanted = (load_file(run / "model" / "model.safetensors") for run in (one, other))
    return found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.slow
def test_a_second_fine_tuning_leaves_the_weights_of_the_first_alone(place: Place) -> None:
    write(place.path / "data.jsonl", copying(16))
    config = SftConfig(
        model=str(word_model(place.path / "random")),
        data=(str(place.path / "data.jsonl"),),
        lr=1e-3,
        max_steps=4,
        batch_size=8,
        max_length=64,
        save_steps=1,
        report_to=(),
    )
    train_sft(config, place.path / "calm")
    place.close()
    first = place.start("-c", SFT, config.model_dump_json(), place.path / "busy")
    refused_meanwhile(
        place, first, "sft", "--model", config.model, "--data", config.data[0], "--out", place.path / "busy"
    )
    assert same_weights(place.path / "busy", place.path / "calm")
    killed_and_gone_on_with(place, SFT, config)
    train_sft(config, place.path / "killed")
    assert same_weights(place.path / "killed", place.path / "calm")


def test_a_second_reinforcement_leaves_the_weights_of_the_first_alone(place: Place) -> None:
    base = settings(before_rl(place.path, steps=20), key_tasks(place.path / "tasks.jsonl"))
    config = RlConfig.model_validate(
        {**base, "max_steps": 2, "train_batch_size": 2, "gen_batch_size": 2, "num_generations": 4, "save_steps": 1}
    )
    tools = {"web_search": Keyed()}
    train_rl(config, place.path / "calm", tools=tools)
    place.close()
    first = place.start("-c", RL, config.model_dump_json(), place.path / "busy")
    words = ["rl", "--model", config.model, "--tasks", str(config.tasks), "--out", place.path / "busy"]
    refused_meanwhile(place, first, *words)
    assert same_weights(place.path / "busy", place.path / "calm")
    killed_and_gone_on_with(place, RL, config)
    train_rl(config, place.path / "killed", tools=tools)
    assert same_weights(place.path / "killed", place.path / "calm")


def killed_and_gone_on_with(place: Place, program: str, config: SftConfig | RlConfig) -> None:
    place.close()
    killed = place.start("-c", program, config.model_dump_json(), place.path / "killed")
    place.until_reached(killed)
    place.kill(killed)
    assert json.loads((place.path / "killed" / ".lock").read_text())["pid"] == killed.pid
    place.open()
