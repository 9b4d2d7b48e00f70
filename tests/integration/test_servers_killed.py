"""Two sandbox servers and two model servers under load; one of each is killed, and no task is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from coa.trajectory import Stop, read
from support.counting_server import found

TASKS: Final = 60
PATIENCE_S: Final = 300
ROOT: Final = Path(__file__).resolve().parents[2]
ENVIRONMENT: Final = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}", "HF_HUB_OFFLINE": "1"}


class Server:
    """A process that prints its address, and then perhaps a line for each request."""

    def __init__(self, *module: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *module], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=ENVIRONMENT,
        )  # fmt: skip
        assert self.process.stdout is not None
        self._out = self.process.stdout
        self.answered = 0
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        for _ in self._out:
            self.answered += 1

    def ready(self) -> None:
        self.url = self._out.readline().strip()
        assert self.url.startswith("http://127.0.0.1:"), self.url
        self._reader.start()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        if self._reader.is_alive():
            self._reader.join(30)
        self._out.close()


@contextmanager
def running(*module: str) -> Iterator[tuple[Server, Server]]:
    with ExitStack() as stack:
        pair = Server(*module), Server(*module)
        for server in pair:
            stack.callback(server.stop)
        for server in pair:
            server.ready()
        yield pair


def health(server: Server) -> int:
    """Number of runs that a sandbox server has done."""
    from urllib.request import urlopen

    with urlopen(f"{server.url}/health", timeout=60) as answer:
        return int(json.load(answer)["done"])


def test_one_of_two_sandboxes_and_one_of_two_models_is_killed_and_no_task_is_lost(tmp_path: Path) -> None:
    tasks, out = tmp_path / "tasks.jsonl", tmp_path / "runs.jsonl"
    rows = [{"id": f"t{n}", "question": f"What is behind number {n}?", "answer": str(found(n))} for n in range(TASKS)]
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with (
        running("coa.cli", "sandbox", "serve", "--port", "0", "--workers", "2") as sandboxes,
        running("support.counting_server") as models,
    ):
        command = [
            sys.executable, "-m", "coa.cli", "run", "--tasks", str(tasks), "--model",
            ",".join(server.url for server in models), "--profile", "math", "--concurrency", "12", "--out", str(out),
        ]  # fmt: skip
        environment = {**ENVIRONMENT, "COA_SANDBOX": ",".join(server.url for server in sandboxes)}
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
        try:
            end = time.monotonic() + PATIENCE_S
            while (out.read_bytes().count(b"\n") if out.is_file() else 0) < 12:
                assert process.poll() is None and time.monotonic() < end, process.communicate()
                time.sleep(0.01)
            asked, done = [server.answered for server in models], [health(server) for server in sandboxes]
            models[0].process.kill()
            sandboxes[0].process.kill()
            # Runs were under way, on the servers that are gone too.
            written = out.read_bytes().count(b"\n")
            printed, said = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
            process.wait()
        assert min(asked) > 0 and min(done) > 0 and written < TASKS - 12
        assert models[1].answered > asked[1] and health(sandboxes[1]) > done[1], "the others take over"
    runs = list(read(out))
    assert sorted(run.task.id for run in runs) == sorted(row["id"] for row in rows), "none lost, none twice"
    assert all(run.stop is Stop.ANSWERED and run.answer in run.task.answer for run in runs), (printed, said)
    assert process.returncode == 0 and f"{TASKS} of {TASKS} right" in printed, said
