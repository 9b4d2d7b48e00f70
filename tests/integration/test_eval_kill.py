"""An evaluation that is killed, again and again, ends with the report of one that was left in peace."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from pathlib import Path
from typing import Any

from support.exams import ExamServer, write_tasks

TASKS = 500
KILLS = 10


def command(url: str, folder: Path, out: str) -> list[str]:
    return [
        sys.executable, "-m", "coa.cli", "eval", str(folder / "exam.jsonl"), "--model", url, "--mode", "chat",
        "--profile", "nano", "--out", str(folder / out), "--concurrency", "8",
    ]  # fmt: skip


async def start(url: str, folder: Path, out: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command(url, folder, out), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, cwd=folder
    )


def compared(path: Path) -> dict[str, Any]:
    """Everything but how long it took."""
    report: dict[str, Any] = json.loads(path.read_text())
    assert report.pop("timing")["seconds"] > 0
    return report


def test_ten_kills_change_nothing(tmp_path: Path) -> None:
    write_tasks(tmp_path / "exam.jsonl", TASKS)
    rng = random.Random(9)

    async def go() -> tuple[int, list[int]]:
        async with ExamServer(slow_s=0.02).running() as url:
            calm = await start(url, tmp_path, "calm")
            codes, killed = [], 0
            file = tmp_path / "wild" / "trajectories.jsonl"
            for number in range(KILLS):
                before = file.stat().st_size if file.is_file() else 0
                process = await start(url, tmp_path, "wild")
                # About a fifteenth of all runs more, then a random moment: while it runs, scores, or writes.
                while process.returncode is None and (file.stat().st_size if file.is_file() else 0) < before + 12_000:
                    await asyncio.sleep(0.002)
                await asyncio.sleep(rng.random() * 0.05)
                process.send_signal(signal.SIGINT if number == KILLS - 1 else signal.SIGKILL)
                await process.communicate()
                codes.append(process.returncode or 0)
                killed += process.returncode == -signal.SIGKILL
            partial = json.loads((tmp_path / "wild" / "report.json").read_text())
            assert not partial["complete"] and partial["results"]["missing"] > 0  # what Ctrl-C leaves says so
            last = await start(url, tmp_path, "wild")
            for process in (last, calm):
                _, told = await process.communicate()
                assert process.returncode == 1, told.decode()  # the exam has runs that fail
            return killed, codes

    killed, codes = asyncio.run(go())
    assert killed == KILLS - 1 and codes[-1] == 1
    wild, calm = (compared(tmp_path / name / "report.json") for name in ("wild", "calm"))
    assert wild == calm
    assert calm["results"]["attempts"] == TASKS and calm["results"]["right"] == TASKS // 2
    assert calm["results"]["failed"] == calm["results"]["unanswered"] == TASKS // 10
    lines = (tmp_path / "wild" / "trajectories.jsonl").read_text().splitlines()
    assert len(lines) == TASKS and not (tmp_path / "wild" / "scores.jsonl").exists()
