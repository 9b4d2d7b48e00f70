"""`coa export --to otlp` and `--set otlp.endpoint=...` as a user types them, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from coa.trajectory import Trajectory, write
from support.collectors import collecting
from support.commands import coa
from support.servers import FakeServer, in_thread
from support.team_of_five import team_of_five, without_tokens

DONE = "<think>d</think>\n<answer>Ada</answer>"


def test_spans_in_a_file_are_opened_by_another_process_as_the_same_run(tmp_path: Path) -> None:
    write(tmp_path / "runs.jsonl", [team_of_five()])
    coa("export", tmp_path / "runs.jsonl", "--to", "otlp", "--out", tmp_path / "spans.jsonl")
    shown = coa("inspect", tmp_path / "spans.jsonl", "--json")  # the profile of the run is in the file
    assert Trajectory.from_json(shown) == without_tokens(team_of_five())
    printed = coa("export", tmp_path / "runs.jsonl", "--to", "otlp")
    assert printed == (tmp_path / "spans.jsonl").read_text()
    assert "harbour" not in coa("export", tmp_path / "runs.jsonl", "--to", "otlp", "--no-content")


def test_spans_are_sent_from_files_and_from_a_run(tmp_path: Path) -> None:
    write(tmp_path / "runs.jsonl", [team_of_five()])
    with collecting() as collector, in_thread(FakeServer(lambda body: DONE)) as model:
        told = coa("export", tmp_path / "runs.jsonl", "--to", "otlp", "--out", collector.url, "--json")
        assert json.loads(told) == {"file": collector.url, "format": "otlp", "records": 1}
        coa("run", "Who?", "--model", model, "--profile", "nano", "--set", f"otlp.endpoint={collector.url}")
    assert [span.attributes["coa.profile.name"] for span in collector.roots] == ["web", "nano"]
    assert "Who?" not in str(collector.spans)


def test_a_warning_does_not_stand_on_the_line_of_the_streamed_answer() -> None:
    with in_thread(FakeServer(lambda body: DONE)) as model:  # it takes no spans
        command = ["run", "Who?", "--model", model, "--profile", "nano", "--set", f"otlp.endpoint={model}"]
        done = subprocess.run([sys.executable, "-m", "coa.cli", *command], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=120)  # fmt: skip
    lines = done.stdout.splitlines()
    assert "Ada" in lines and "answer: Ada" in lines
    assert done.stdout.count("warning: ") == sum(line.startswith("warning: ") for line in lines) > 0, done.stdout
