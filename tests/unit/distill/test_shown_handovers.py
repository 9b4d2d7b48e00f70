"""`coa inspect` shows who asked whom in traces of any format, and what failed."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from coa.cli import app
from coa.distill.atif_writer import to_atif
from coa.distill.find_runs import find_runs
from coa.distill.importers.detect import read_traces
from coa.distill.run_files import ATIF
from coa.trajectory import Step, Task, Trajectory
from support.told_teams import SEARCHER, called, member, result, team, thinks, tower

FAILED = team(
    thinks("I ask.", member("a", "search_agent", task="t")),
    result("a", "Error: the line is dead\nat line 3", ok=False),
    thinks("Again.", member("b", "search_agent", task="t")),
    called("b", SEARCHER),
    result("b", "330 m", report_of=("search_agent",)),
)
CHAT = [
    {"role": "user", "content": "How tall is the tower?"},
    {"role": "assistant", "content": "I search.", "tool_calls": [{"id": "c", "function": {"name": "web_search"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "330 m"},
    {"role": "assistant", "content": "330 m"},
]  # fmt: skip


def shown(*words: str) -> str:
    done = CliRunner().invoke(app, ["inspect", *words], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.output


def test_a_folder_of_several_formats_is_shown_file_by_file(tmp_path: Path) -> None:
    (tmp_path / f"one{ATIF}").write_text(json.dumps(to_atif(FAILED)))
    (tmp_path / "other.json").write_text(json.dumps(to_atif(tower())))
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": CHAT}))
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "t", "question": "How tall?"}))
    assert sorted(part.name for part in find_runs(str(tmp_path))) == [f"./*{ATIF}", "chat.jsonl", "other.json"]
    said = shown(str(tmp_path))
    assert "hand-over: manager asked search_agent: failed: Error: the line is dead" in said
    assert "at line 3" not in said
    assert said.count("hand-over: manager asked search_agent: done") == 2 and "manager asked checker: done" in said


def test_a_list_of_trajectories_is_no_trace_of_a_team(tmp_path: Path) -> None:
    steps = (Step(agent="think", text="x"),)
    row = json.loads(Trajectory(task=Task(id="a", question="q"), profile="web", steps=steps).to_json())
    (tmp_path / "list.json").write_text(json.dumps([row, row]))
    assert [type(item) for item in read_traces(tmp_path)] == [Trajectory, Trajectory]


def test_recorded_runs_alone_are_one_source(tmp_path: Path) -> None:
    (tmp_path / f"one{ATIF}").write_text(json.dumps(to_atif(tower())))
    assert [part.name for part in find_runs(str(tmp_path))] == [""]
    assert [part.name for part in find_runs(str(tmp_path / f"one{ATIF}"))] == [""]


def test_a_single_trace_of_any_format_is_read_and_its_handovers_are_in_the_json(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(to_atif(FAILED)))
    row = json.loads(shown(str(tmp_path / "mine.json"), "--json"))
    assert row["meta"]["handovers"][1] == "manager asked search_agent: done"
    assert row["meta"]["failed_handovers"] == ["manager asked search_agent: failed: Error: the line is dead"]
