"""Runs of the verl engine on a CPU: the newborn world of the RL tests, through the real command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.newborn import settings

ROOT = Path(__file__).parents[2]
TOOL = "web_search=support.newborn:knowing"


def config_file(folder: Path, **changed: Any) -> Path:
    """A config of a short run in the newborn world. Keys with dots are keys of tables."""
    folder.mkdir(parents=True, exist_ok=True)
    seed, tool = changed.pop("seed", 1), changed.pop("tool", TOOL)
    chosen: dict[str, Any] = {**settings(folder, seed=seed), "engine": "verl", "tools": [tool]}
    chosen |= {"verl": {"device": "cpu"}, "kv_cache_gb": 0.2}
    for name, value in changed.items():
        *tables, key = name.split("__")
        place = chosen
        for table in tables:
            place = place.setdefault(table, {})
        place[key] = value
    toml = folder / "config.toml"
    toml.write_text(_toml(chosen))
    return toml


def _toml(settings: dict[str, Any], table: str = "") -> str:
    lines = [f"[{table}]"] if table else []
    lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items() if not isinstance(value, dict)]
    for key, value in settings.items():
        if isinstance(value, dict):
            lines.append(_toml(value, f"{table}.{key}" if table else key))
    return "\n".join(lines) + "\n"


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", **more}


def command(config: Path, out: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "coa", "rl", str(config), "--out", str(out), *arguments]


def rl(config: Path, out: Path, *arguments: str, code: int = 0, **more: str) -> str:
    """The output of `coa rl`, which must end with this exit code."""
    done = subprocess.run(
        command(config, out, *arguments), env=environment(**more), capture_output=True, text=True, check=False
    )
    log = out / "verl" / "log.txt"
    tail = log.read_text(errors="replace")[-4000:] if log.is_file() and done.returncode != code else ""
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}\n{tail}"
    return done.stdout + done.stderr


@contextmanager
def started(config: Path, out: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """`coa rl` in the background; it is killed at the end if it still runs."""
    running = subprocess.Popen(
        command(config, out), env=environment(**more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield running
    finally:
        if running.poll() is None:
            running.send_signal(signal.SIGKILL)
        running.wait()


def metrics(out: Path) -> list[dict[str, Any]]:
    path = out / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return [row for row in rows if "reward" in row or "groups_drawn" in row]


def wait_until(true: Callable[[], bool], *, timeout_s: float, running: subprocess.Popen[bytes] | None = None) -> None:
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        assert running is None or running.poll() is None, f"it ended with exit code {running.returncode}"
        time.sleep(0.1)


def descendants(of: int) -> dict[int, str]:
    """The titles of all processes that a process has started, by their ids. Ray's actors have the titles `ray::Class`
    and `ray::Class.method`."""
    parents, titles = dict[int, int](), dict[int, str]()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            number = int(entry.name)
            parents[number] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            titles[number] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue

    def below(number: int) -> bool:
        while number in parents:
            number = parents[number]
            if number == of:
                return True
        return False

    return {number: title for number, title in titles.items() if below(number)}


def alive(number: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return (Path("/proc") / str(number) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
