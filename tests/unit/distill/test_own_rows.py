"""Rows of our own files are recognised by their fields alone, which no other format may claim."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from coa.distill.importers.detect import FORMATS, format_of, is_team_trace
from coa.trajectory.formats.own_rows import begins_plainly_own, is_plainly_own
from coa.trajectory.store import Lines
from support.builders import make_trajectory, web_run


@pytest.mark.parametrize("run", [web_run(), make_trajectory(), make_trajectory(("think", "x"), sample=1)])
def test_a_row_of_ours_is_plainly_own_and_no_other_format_claims_it(run: object) -> None:
    row = orjson.loads(Lines().line(run))  # type: ignore[arg-type]
    assert is_plainly_own(row)
    assert [known.name for known in FORMATS if known.matches(row)] == ["trajectory"]


@pytest.mark.parametrize(
    "row",
    [
        {"task": {}, "profile": "web", "steps": [], "messages": [{"role": "user", "content": "x"}]},
        {"task": {}, "profile": "web"},
        {"task": {}, "steps": []},
        [{"task": {}, "profile": "web", "steps": []}],
    ],
)
def test_a_row_with_other_fields_is_compared_with_every_format(row: object) -> None:
    assert not is_plainly_own(row)


def test_a_row_of_another_format_that_has_our_fields_too_stays_with_it() -> None:
    row = {"task": {}, "profile": "web", "steps": [], "messages": [{"role": "user", "content": "x"}]}
    found = format_of(row)
    assert found is not None and found.name == "chat"


OWN = Lines().line(make_trajectory())


@pytest.mark.parametrize(
    ("name", "content", "own"),
    [
        ("a.jsonl", OWN + b"\n", True),
        ("a.jsonl", b"\xef\xbb\xbf" + OWN + b"\n", True),
        ("a.jsonl", OWN, True),
        ("a.jsonl", b'{"messages": []}\n' + OWN + b"\n", False),
        ("a.jsonl", b"{\n" + OWN[1:] + b"\n", False),
        ("a.jsonl", OWN[:40], False),
        ("a.jsonl", b"", False),
        ("a.json", OWN + b"\n", False),
    ],
)
def test_a_file_that_begins_with_our_own_record_needs_no_other_reader(
    tmp_path: Path, name: str, content: bytes, own: bool
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    assert begins_plainly_own(file) is own
    assert not (own and is_team_trace(file)), "they agree"


def test_a_file_that_is_not_there_begins_with_nothing(tmp_path: Path) -> None:
    assert not begins_plainly_own(tmp_path / "none.jsonl")
