"""Rows of our own files are recognised by their fields alone, which no other format may claim."""

from __future__ import annotations

import orjson
import pytest

from coa.distill.importers import trajectory_rows
from coa.distill.importers.detect import FORMATS, format_of
from coa.trajectory.store import Lines
from support.builders import make_trajectory, web_run


@pytest.mark.parametrize("run", [web_run(), make_trajectory(), make_trajectory(("think", "x"), sample=1)])
def test_a_row_of_ours_is_plainly_own_and_no_other_format_claims_it(run: object) -> None:
    row = orjson.loads(Lines().line(run))  # type: ignore[arg-type]
    assert trajectory_rows.is_plainly_own(row)
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
    assert not trajectory_rows.is_plainly_own(row)


def test_a_row_of_another_format_that_has_our_fields_too_stays_with_it() -> None:
    row = {"task": {}, "profile": "web", "steps": [], "messages": [{"role": "user", "content": "x"}]}
    found = format_of(row)
    assert found is not None and found.name == "chat"
