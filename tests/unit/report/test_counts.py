"""Counts in messages agree with their nouns."""

from __future__ import annotations

from coa.report import plural


def test_one_is_singular_and_everything_else_plural() -> None:
    assert [plural(count, "task") for count in (0, 1, 2, 1200)] == ["0 tasks", "1 task", "2 tasks", "1,200 tasks"]
    assert [plural(count, "trajectory", "trajectories") for count in (1, 2)] == ["1 trajectory", "2 trajectories"]
