"""Where teaching stands while its teams are at work."""

from __future__ import annotations

from pathlib import Path

from coa.distill.teaching.results import Done, TeachReport
from coa.trajectory.types import Stop, Usage


def test_what_running_teams_have_spent_is_in_the_note_and_not_in_the_result() -> None:
    report = TeachReport(Path("traces"), total=4)
    report.add(Done(Stop.ANSWERED, Usage(prompt_tokens=90, completion_tokens=10, model_calls=2)))
    report.running, report.unfinished = 2, Usage(prompt_tokens=900, completion_tokens=100, model_calls=5)
    assert "1,100 tokens in 7 calls" in report.note() and "2 running" in report.note()
    assert "tokens/s" in report.note() and "left" in report.note()
    assert report.usage.total_tokens == 100
