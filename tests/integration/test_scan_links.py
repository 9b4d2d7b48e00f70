"""A finding leads to the run that the viewer shows: both make the same ids of the same files, damaged ones included."""

from __future__ import annotations

from pathlib import Path

import orjson

from coa.scan.reading import FoundRun, RunSource
from coa.trajectory import write
from coa.trajectory.identity import run_id
from coa.view.readers import records
from coa.view.rows import Unreadable
from coa.view.sources import find_sources
from support.builders import web_run
from support.documents import ROOT


def ids_of_the_viewer(root: Path) -> set[str]:
    return {
        run_id(source.path, found.number)
        for source in find_sources(root)
        if source.problem is None
        for found in records(source, 0, 0)
        if not isinstance(found.record, Unreadable)
    }


def ids_of_the_scan(root: Path) -> set[str]:
    return {item.id for item in RunSource([root]) if isinstance(item, FoundRun)}


def test_files_of_trajectories_have_the_same_ids_with_and_without_damage(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [web_run(sample=number) for number in range(3)])
    write(tmp_path / "b.parquet", [web_run(sample=number) for number in range(3)])
    lines = (tmp_path / "a.jsonl").read_bytes().splitlines()
    (tmp_path / "c.jsonl").write_bytes(b"\n".join([lines[0], b"", b"not json", *lines[1:], b'{"torn']))
    (tmp_path / "d.json").write_bytes(orjson.dumps([orjson.loads(line) for line in lines]))
    rows = [{"instruction": "Solve it.", "input": "Who?", "output": "<think>hm</think><answer>Ida</answer>"}, {"a": 1}]
    (tmp_path / "e.jsonl").write_bytes(b"\n".join(orjson.dumps(row) for row in (rows[0], *rows)) + b"\n")
    assert ids_of_the_scan(tmp_path) == ids_of_the_viewer(tmp_path)
    assert len(ids_of_the_scan(tmp_path)) == 3 + 3 + 3 + 3 + 2


def test_recorded_teams_have_the_same_ids() -> None:
    folder = ROOT / "tests" / "corpus" / "teams"
    assert ids_of_the_scan(folder) == ids_of_the_viewer(folder) != set()
