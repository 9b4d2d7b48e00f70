"""Distillation with a judge and a writer behind real HTTP, through the command line."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from coa.trajectory import read
from support.servers import FakeServer
from support.told_teams import FEW_CALLS, call_only, speaks


async def coa(*arguments: object) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "coa.cli",
        *map(str, arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"COLUMNS": "200"},
    )
    out, err = await asyncio.wait_for(process.communicate(), 120)
    return process.returncode or 0, out.decode() + err.decode()


def test_gaps_are_filled_and_answers_judged_and_both_are_paid_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    traces, out, config = tmp_path / "traces", tmp_path / "data", tmp_path / "distill.toml"
    traces.mkdir()
    config.write_text(FEW_CALLS)
    for number in range(3):
        (traces / f"{number}.json").write_text(json.dumps(call_only(number)))

    async def go() -> None:
        server = FakeServer(speaks, owner="unknown")
        async with server.running() as url:
            command = ["distill", traces, "--out", out, "--config", config, "--judge", url, "--fill", url]
            code, said = await coa(*command)
            assert code == 0, said
            asked = len(server.asked)
            # 7 texts a run (5 thoughts, plan, check); those that are whole are judged.
            assert asked == 3 * 7 + 3
            before = {file.name: file.read_bytes() for file in out.iterdir() if file.suffix != ".sqlite"}
            code, said = await coa(*command)
            assert code == 0 and len(server.asked) == asked
            assert before == {file.name: file.read_bytes() for file in out.iterdir() if file.suffix != ".sqlite"}

    asyncio.run(go())
    (kept,) = read(out)
    assert kept.task.id == "tower-1" and kept.scores["answer"].value == 1.0
    report = json.loads((out / "report.json").read_text())
    quality = next(row for row in report["stages"] if row["stage"] == "quality")
    assert quality["reasons"]["wrong_answer"]["count"] == 2
    assert report["filled_steps"] == 8  # the suggestion, taken from the answer, counts as well


def test_without_a_writer_the_gap_is_the_reason_and_without_a_kept_run_the_command_fails(tmp_path: Path) -> None:
    traces = tmp_path / "trace.json"
    traces.write_text(json.dumps(call_only(1)))
    config = tmp_path / "distill.toml"
    config.write_text(FEW_CALLS)
    code, said = asyncio.run(coa("distill", traces, "--out", tmp_path / "data", "--config", config))
    assert code == 1 and "nothing was kept" in said and "--fill" in said
    examples = json.loads((tmp_path / "data" / "report.json").read_text())["stages"][1]["reasons"]["order"]["examples"]
    assert "order at step 0" in examples[0]["detail"]
