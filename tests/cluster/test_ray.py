"""`--ray`: the real Ray, its actors and the command in processes of their own, all on loopback.

They need the extra `ray` and run with `make test-verl`; where Ray is not installed they are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

from coa.errors import ConfigError
from coa.evaluate import EvalConfig, evaluate
from coa.models.scripted import ScriptedModel
from coa.runtime import RunConfig
from coa.trajectory import read
from coa.trajectory.formats.tasks import read_tasks
from support.exams import ExamServer, write_tasks
from support.servers import FakeServer, in_thread

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
HAS_CLIENT: Final = importlib.util.find_spec("grpc") is not None
"""Whether the client of Ray is installed, which `ray[client]` brings."""
ROOT: Final = Path(__file__).resolve().parents[2]
TASKS: Final = 60
PATIENCE_S: Final = 300
SECRET: Final = "sk-not-to-be-written-down-4711"
ENVIRONMENT: Final = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "COA_"))},
    "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}", "RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1",
    "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
}  # fmt: skip


class Head:
    """A Ray node of this test's, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        port, client = free_ports()
        self.address, self.client = f"127.0.0.1:{port}", f"ray://127.0.0.1:{client}"
        self.folder = folder
        # Without the variable Ray turns 127.0.0.1 into the machine's own address.
        environment = {**ENVIRONMENT, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block",
            "--node-ip-address", "127.0.0.1", "--port", str(port), "--num-cpus", "4",
            "--include-dashboard=false", "--disable-usage-stats", "--temp-dir", str(folder),
            "--object-store-memory", "100000000", "--min-worker-port", "0", "--max-worker-port", "0",
            *(["--ray-client-server-port", str(client)] if HAS_CLIENT else []),
        ]  # fmt: skip
        self._log = (folder / "head.log").open("wb")
        self.process = subprocess.Popen(
            command, env=environment, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def started(self) -> None:
        until = time.monotonic() + PATIENCE_S
        look = (
            f"import ray; ray.init({self.address!r}, log_to_driver=False, logging_level='ERROR');"
            "print([node['NodeManagerAddress'] for node in ray.nodes()])"
        )
        while time.monotonic() < until and self.process.poll() is None:
            if b"Ray runtime started" in (self.folder / "head.log").read_bytes():
                environment = {**ENVIRONMENT, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
                found = subprocess.run([sys.executable, "-c", look], env=environment, capture_output=True, text=True)
                assert found.stdout.strip() == "['127.0.0.1']", found.stdout + found.stderr
                return
            time.sleep(0.2)
        raise AssertionError((self.folder / "head.log").read_text())

    def actors(self) -> list[int]:
        """The processes of the actors, which are descendants of this node's."""
        return [pid for pid in children(self.process.pid) if command_of(pid).startswith("ray::Runner")]

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        finally:
            self._log.close()
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)


def free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def children(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    found, fresh = set[int](), {root}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return sorted(found)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    import tempfile

    with tempfile.TemporaryDirectory(
        prefix="coa-ray-", ignore_cleanup_errors=True
    ) as folder:  # sockets need short paths
        node = Head(Path(folder))
        try:
            node.started()
            yield node
        finally:
            node.stop()


@pytest.fixture
def server() -> ExamServer:
    return ExamServer(slow_s=0.4)


@pytest.fixture
def url(server: ExamServer) -> Iterator[str]:
    with in_thread(server) as address:
        yield address


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_tasks(tmp_path / "exam.jsonl", TASKS)


def start(*arguments: object, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "coa.cli", *map(str, arguments)]
    return subprocess.Popen(
        command, env={**ENVIRONMENT, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def coa(*arguments: object, codes: tuple[int, ...] = (0, 1), **variables: str) -> tuple[str, str]:
    """Code 1, because the exam has runs that fail."""
    process = start(*arguments, **variables)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode in codes, err
    return out, err


def run(url: str, ray: str, *more: object) -> tuple[object, ...]:
    return (
        "run", "--tasks", "exam.jsonl", "--model", url, "--profile", "nano", "--concurrency", 6,
        "--ray", ray, "--ray-actors", 3, "--out", "r.jsonl", *more,
    )  # fmt: skip


def lines(file: str = "r.jsonl") -> int:
    return Path(file).read_bytes().count(b"\n") if Path(file).is_file() else 0


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.01)


def every_task_once(file: str = "r.jsonl") -> None:
    assert sorted(run.task.id for run in read(file)) == sorted(f"t{n}" for n in range(TASKS))


def timeless(report: Any) -> Any:
    if isinstance(report, dict):
        return {key: timeless(value) for key, value in report.items() if key != "timing" and "seconds" not in key}
    return report


def test_a_report_of_runs_on_local_ray_is_the_report_of_this_process(url: str) -> None:
    given = ("eval", "exam.jsonl", "--model", url, "--profile", "nano", "--concurrency", 8, "--json")
    here, _ = coa(*given, "--out", "here")
    there, err = coa(*given, "--out", "there", "--ray", "local", "--ray-actors", 2)
    assert "starting 2 actors on Ray (local)" in err
    assert timeless(json.loads(there)) == timeless(json.loads(here))


def test_an_actor_that_is_killed_loses_and_doubles_nothing(head: Head, server: ExamServer, url: str) -> None:
    process = start(*run(url, head.address))
    until(lambda: lines() >= 10, process)
    victims = head.actors()
    assert len(victims) == 3
    os.kill(victims[0], signal.SIGKILL)
    until(lambda: lines() >= 25, process)
    # And another one, which may be the one that took its place.
    os.kill(head.actors()[-1], signal.SIGKILL)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1 and err.count("an actor died") == 2, err
    every_task_once()
    failed = sorted(run.task.id for run in read("r.jsonl") if run.failure is not None)
    assert failed == sorted(f"t{n}" for n in range(TASKS) if n % 10 == 9), "only those that the model itself refuses"
    assert head.actors() == [], "the command takes its actors with it"


def test_ctrl_c_and_a_kill_of_the_command_go_on_from_there(head: Head, url: str) -> None:
    for number, sent in enumerate((signal.SIGINT, signal.SIGKILL)):
        process = start(*run(url, head.address))
        until(lambda number=number: lines() >= 10 * (number + 1), process)  # type: ignore[misc]
        process.send_signal(sent)
        _, err = process.communicate(timeout=PATIENCE_S)
        if sent is signal.SIGINT:
            assert process.returncode == 1 and "Traceback" not in err, err
    done = lines()
    out, _ = coa(*run(url, head.address))
    assert 20 <= done < TASKS and f"({done} were there before)" in out
    every_task_once()


@pytest.mark.parametrize("client", [False, True])
def test_a_key_reaches_the_actors_and_no_file(head: Head, client: bool) -> None:
    if client and not HAS_CLIENT:
        _, err = coa(*run("http://127.0.0.1:9", head.client), codes=(2,))
        assert "ray:// needs the client of Ray" in err and "ray[client]" in err
        return
    seen: list[str] = []

    class Guarded(ExamServer):
        async def chat(self, request: web.Request) -> web.StreamResponse:
            seen.append(request.headers.get("Authorization", ""))
            return await super().chat(request)

    with in_thread(Guarded()) as url:
        coa(*run(url, head.client if client else head.address, "--set", "api_key_env=MY_KEY"), MY_KEY=SECRET)
    every_task_once()
    assert len(seen) >= TASKS and set(seen) == {f"Bearer {SECRET}"}
    holding = [
        path
        for place in (head.folder, Path.cwd())
        for path in place.rglob("*")
        if path.is_file() and not path.is_symlink() and SECRET.encode() in path.read_bytes()
    ]
    assert not holding


def half_right(body: dict[str, Any]) -> str:
    said = str(body["messages"])
    if "nothing here to look things up" in said:
        return "<think>d</think>\n<answer>no</answer>"
    number = said.partition("Who is person ")[2].split("?")[0]
    return f"<think>d</think>\n<answer>{'Ada' if body['seed'] % 2 else 'Bob'} {number}</answer>"


def test_sampling_in_actors_keeps_what_sampling_here_keeps(head: Head) -> None:
    with in_thread(FakeServer(half_right, owner="somebody")) as url:
        given = ("sample", "exam.jsonl", "--model", url, "--profile", "nano", "-n", 2, "--seed", 0, "--limit", 12)
        coa(*given, "--out", "here.jsonl")
        coa(*given, "--out", "there.jsonl", "--ray", head.address, "--ray-actors", 2)
        apart = ("--no-tools-model", url, "--out", "apart.jsonl", "--ray", head.address, "--ray-actors", 2)
        coa(*given, *apart)
    here = list(read_tasks("here.jsonl"))
    assert len(here) == 12 and here == list(read_tasks("there.jsonl")) == list(read_tasks("apart.jsonl"))


def test_what_an_actor_cannot_open_is_an_error_with_a_hint(head: Head, url: str) -> None:
    _, err = coa(*run(url, "127.0.0.1:1"), codes=(2,))
    assert "nothing answers at 127.0.0.1:1" in err and "hint: start Ray there" in err and "Traceback" not in err


def test_objects_of_the_caller_cannot_be_sent(url: str) -> None:
    config = EvalConfig(benchmarks=("exam.jsonl",), run=RunConfig(profile="nano"), ray="local")
    with pytest.raises(ConfigError, match="cannot be sent to actors of Ray"):
        evaluate(config, "e", model=ScriptedModel([]))
