"""Recorded calls are found as runs wherever traces of teams are."""

from __future__ import annotations

import json
from pathlib import Path

from coa.distill.find_runs import find_runs


def write_run(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    request = {"model": "m", "messages": [{"role": "user", "content": f"Question {name}?"}]}
    message = {"role": "assistant", "content": f"answer {name}"}
    reply = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    rows = [
        {"event": "task", "run": name, "time": 1.0, "task": {"id": name, "question": f"Question {name}?"}},
        {"event": "request", "id": "c1", "time": 2.0, "protocol": "chat", "path": "/v1/chat/completions", "run": name,
         "agent": "manager", "given_by": "path", "trace": None, "headers": {}, "body": request},
        {"event": "response", "id": "c1", "time": 3.0, "seconds": 1.0, "status": 200, "stream": False, "complete": True,
         "error": None, "body": reply},
        {"event": "outcome", "run": name, "time": 4.0, "answer": f"answer {name}", "exit": 0, "error": None,
         "stdout": ""},
    ]  # fmt: skip
    path = folder / f"{name}.calls.jsonl"
    path.write_text("".join(json.dumps({"coa_record": 1, **row}) + "\n" for row in rows))
    return path


def test_a_file_and_a_folder_of_recorded_calls_are_runs(tmp_path: Path) -> None:
    file = write_run(tmp_path, "a")
    write_run(tmp_path, "b")
    (alone,) = find_runs(str(file))
    assert [(run.task.id, run.answer) for run in alone.read()] == [("a", "answer a")]
    (both,) = find_runs(str(tmp_path))
    assert [run.task.id for run in both.read()] == ["a", "b"]


def test_recorded_calls_in_a_tree_have_a_place_of_their_own(tmp_path: Path) -> None:
    write_run(tmp_path / "one", "a")
    write_run(tmp_path / "two", "b")
    found = find_runs(str(tmp_path))
    assert [part.name for part in found] == ["one/*.calls.jsonl", "two/*.calls.jsonl"]
    assert [part.place for part in found] == ["one/", "two/"]
    assert [run.task.id for part in found for run in part.read()] == ["a", "b"]
