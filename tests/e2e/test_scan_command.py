"""`coa scan` as a user calls it: the table, the findings, --json, exit codes, own scanners, a judge, hostile text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from coa.trajectory import Task, write
from coa.trajectory.identity import run_id
from support.scanned import run_of, seen
from support.servers import FakeServer, in_thread

LOOP = "I should look for the designer of the bridge first."
CLEAN = run_of(("web_search", "bridge"), seen("Ida Kroll", ok=True), ("answer", "Ida Kroll"))
LOOPING = run_of(("think", LOOP), ("plan", "a"), ("think", LOOP), ("plan", "b"), ("think", LOOP), ("answer", "Ida"))
LOST = run_of(*LOOPING.steps[:-1])
HOSTILE = "\x1b[2J\x1b]0;owned\x07 \u202egnp.exe\u202c [red]bold[/red]\nfindings: 0"


def coa(*arguments: object, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coa.cli", *map(str, arguments)]
    environment = os.environ | {"COLUMNS": "160"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=folder)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write(tmp_path / "runs" / "trajectories.jsonl", [CLEAN, LOOPING, CLEAN, LOST])
    return tmp_path / "runs"


def test_the_table_the_findings_and_the_way_to_the_viewer_are_printed(runs: Path) -> None:
    done = coa("scan", runs, "--scanner", "loops", "--scanner", "tool_errors")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["scanner", "runs", "share", "findings", "of", "which"]
    assert lines[1].split() == ["loops", "2", "50.0%", "2", "same", "thought", "2"]
    assert lines[2].split() == ["tool_errors", "0", "0.0%", "0"]
    file = runs / "trajectories.jsonl"
    place = f"    {file}, task t1, step 2, #/run/{run_id(file, 3)}?step=2"
    assert lines.index(place) < lines.index(place.replace(run_id(file, 3), run_id(file, 1))), "errors come first"
    assert "4 runs scanned, 2 findings" in lines and f"look at them: coa view {runs}" in lines


def test_json_is_the_report_and_nothing_else(runs: Path) -> None:
    found: dict[str, Any] = json.loads(coa("scan", runs, "--json").stdout)
    assert found["runs"] == 4 and found["scanners"]["loops"]["runs"] == 2 and len(found["scanners"]) == 8
    assert found["scanners"]["loops"]["severities"] == {"info": 0, "warning": 1, "error": 1}
    assert found["scanners"]["loops"]["first"][0]["severity"] == "error"


def test_everything_is_written_to_out(runs: Path, tmp_path: Path) -> None:
    done = coa("scan", runs, "--scanner", "loops", "--out", tmp_path / "found", "--show", "0")
    assert str(tmp_path / "found" / "findings.jsonl") in done.stdout and "I should look" not in done.stdout
    assert len((tmp_path / "found" / "findings.jsonl").read_text().splitlines()) == 2
    assert json.loads((tmp_path / "found" / "report.json").read_text())["findings"] == 2


@pytest.mark.parametrize(
    ("fail_on", "scanner", "code"),
    [("error", "loops", 1), ("warning", "loops", 1), ("error", "tool_errors", 0), ("warning", "tool_errors", 0)],
)
def test_findings_fail_a_build_where_that_is_asked_for(runs: Path, fail_on: str, scanner: str, code: int) -> None:
    assert coa("scan", runs, "--scanner", scanner, "--fail-on", fail_on).returncode == code


def test_an_error_is_no_reason_to_fail_on_where_there_are_only_warnings(tmp_path: Path) -> None:
    write(tmp_path / "runs.jsonl", [LOOPING])
    assert coa("scan", tmp_path / "runs.jsonl", "--scanner", "loops", "--fail-on", "error").returncode == 0
    assert coa("scan", tmp_path / "runs.jsonl", "--scanner", "loops", "--fail-on", "warning").returncode == 1


def test_a_damaged_line_is_named_and_the_others_are_scanned(runs: Path) -> None:
    with (runs / "trajectories.jsonl").open("ab") as file:
        file.write(b"not json\n" * 7)
    done = coa("scan", runs, "--scanner", "loops")
    assert done.returncode == 0 and "4 runs scanned, 2 findings" in done.stdout
    assert done.stderr.count("not read: ") == 6 and "line 5: " in done.stderr and "2 more records" in done.stderr


def test_a_misspelled_name_and_a_missing_path_are_misuse(runs: Path) -> None:
    done = coa("scan", runs, "--scanner", "loop")
    assert (
        done.returncode == 2 and "there is no scanner named 'loop'" in done.stderr and "hint: use one of" in done.stderr
    )
    assert coa("scan").returncode == 2
    missing = coa("scan", runs.with_name("rums"))
    assert missing.returncode == 1 and f"did you mean {runs}?" in missing.stderr


def test_scanners_are_listed(tmp_path: Path) -> None:
    done = coa("scan", "--list")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 8 and "loops" in done.stdout
    assert [one["name"] for one in json.loads(coa("scan", "--list", "--json").stdout)][-1] == "loops"


def test_a_scanner_of_ones_own_is_named_by_its_function(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def short(trajectory, profile):\n"
        "    if trajectory.answer == 'Ida':\n"
        "        yield None, 'info', 'only a first name'\n"
        "    elif trajectory.answer is None:\n"
        "        raise ValueError('there is no answer')\n"
    )
    done = coa("scan", runs, "--scanner", "mine:short", folder=tmp_path)
    assert "info: only a first name" in done.stdout and "4 runs scanned, 1 finding\n" in done.stdout
    assert "the scanner short failed on 1 run: ValueError: there is no answer" in done.stderr


def test_hostile_text_is_printed_safely(tmp_path: Path) -> None:
    task = Task(id=HOSTILE, question="Who?", answer="Ida")
    thought, call, answer = ("think", HOSTILE + LOOP), ("crawl_page", HOSTILE), seen(f"error: {HOSTILE}", ok=False)
    run = run_of(thought, ("plan", "a"), thought, ("plan", "b"), thought, call, answer, task=task)
    folder = tmp_path / "runs\x1b[31m"
    write(folder / "trajectories.jsonl", [run])
    with (folder / "trajectories.jsonl").open("ab") as file:
        file.write(orjson.dumps({"schema_version": 2, HOSTILE: 1}) + b"\n")
    done = coa("scan", folder)
    assert "findings: 0" not in done.stdout.splitlines() and "1 run scanned" in done.stdout
    for character in ("\x1b", "\x07", "\u202e", "\u202c"):
        assert character not in done.stdout + done.stderr
    assert "[red]bold[/red]" in done.stdout, "markup is text"


def test_a_judge_is_asked_about_each_run_and_its_failures_are_no_findings(runs: Path) -> None:
    def script(body: dict[str, Any]) -> str:
        asked = body["messages"][-1]["content"]
        assert "Was it polite?" in asked
        if "Ida Kroll" in asked:
            rude = {"step": 0, "severity": "warning", "kind": "rude", "message": "It did not say please."}
            return json.dumps({"findings": [rude]})
        return '{"findings": []}' if 'step 5, answer: "Ida"' in asked else "I cannot say."

    server = FakeServer(script, owner="unknown")
    with in_thread(server) as url:
        done = coa("scan", runs, "--judge", url, "--question", "Was it polite?", "--scanner", "judge", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found["scanners"]) == ["judge"]
    judged = found["scanners"]["judge"]
    assert (judged["runs"], judged["findings"], judged["kinds"], judged["failed"]) == (2, 2, {"rude": 2}, 1)
    assert judged["failure"].startswith("no usable reply") and found["judge"]["cached"] == 1
    # Two equal runs are asked about once, and a judge without a verdict is asked three times.
    assert found["judge"]["asked"] == 5 == len(server.asked)


def test_a_judge_that_is_not_there_is_an_error(runs: Path) -> None:
    done = coa("scan", runs, "--judge", "http://127.0.0.1:9")
    assert done.returncode == 1 and "Traceback" not in done.stderr and "error: " in done.stderr


def test_a_question_without_a_judge_is_misuse(runs: Path) -> None:
    done = coa("scan", runs, "--question", "Was it polite?")
    assert done.returncode == 2 and "--judge" in done.stderr and done.stdout == ""
