"""Runs that earned something without a tool call, alone and among the attempts at their task."""

from __future__ import annotations

from pathlib import Path

import pytest

from coa.scan import ScanConfig, Severity
from coa.scan import scan as scan_runs
from coa.scan.scanners.reward_without_tools import RewardWithoutTools
from coa.trajectory import Profile, Task, Trajectory, load_profile, write
from support.scanned import note, notes, run_of, seen

SCANNER = RewardWithoutTools()
GUESS = (("think", "I guess."), ("answer", "Ada"))
LOOKED_UP = (("web_search", "bridge"), seen("by Ada"), ("answer", "Ada"))


def scored(*parts: object, **scores: float | None) -> Trajectory:
    return run_of(*parts, scores=scores)  # type: ignore[arg-type]


def test_a_right_run_without_a_call_is_worth_knowing_by_itself() -> None:
    found = note(SCANNER, scored(*GUESS, exact=1.0))
    assert (found.step, found.severity) == (1, Severity.INFO)
    assert found.message == "right (score exact 1) without a tool call; the profile has 3 tools"


def test_a_run_that_earned_nothing_or_called_a_tool_is_none() -> None:
    assert notes(SCANNER, scored(*GUESS, exact=0.0)) == []
    assert notes(SCANNER, scored(*GUESS, exact=None)) != []  # unscored, and the accepted answer says that it is right
    assert notes(SCANNER, scored(("answer", "Ida"), exact=None)) == []
    assert notes(SCANNER, scored(*LOOKED_UP, exact=1.0)) == []


def test_a_reward_for_the_form_of_a_wrong_answer_does_not_count() -> None:
    assert notes(SCANNER, scored(*GUESS, success=0.0, counted=0.0, reward=0.1, advantage=0.4)) == []
    assert "rewarded (reward 0.5)" in note(SCANNER, scored(("answer", "Ida"), reward=0.5)).message


def test_where_there_are_no_tools_none_is_missed() -> None:
    bare = load_profile("nano")
    agents = {tag: agent for tag, agent in bare.agents.items() if tag in ("think", "answer")}
    without = Profile.model_validate({**bare.model_dump(), "agents": agents, "start": ["answer"]})
    run = scored(*GUESS, exact=1.0).model_copy(update={"profile_hash": without.hash})
    assert notes(SCANNER, run) == []


def test_attempts_at_the_same_task_that_called_tools_make_it_a_warning_whatever_their_order(tmp_path: Path) -> None:
    others = [scored(*LOOKED_UP, exact=1.0).model_copy(update={"sample": number}) for number in (1, 2)]
    hack = scored(*GUESS, exact=1.0)
    elsewhere = scored(*GUESS, exact=1.0).model_copy(update={"task": hack.task.model_copy(update={"id": "t2"})})
    for name, order in (("first", [hack, *others, elsewhere]), ("last", [elsewhere, *others, hack])):
        write(tmp_path / f"{name}.jsonl", order)
        report = scan_runs([tmp_path / f"{name}.jsonl"], ScanConfig(scanners=("reward_without_tools",)))
        warning, info = report.scanners["reward_without_tools"].first
        assert (warning.task, warning.severity, info.task, info.severity) == (
            "t1",
            Severity.WARNING,
            "t2",
            Severity.INFO,
        )
        assert "2 other attempts at the task called tools" in warning.message
        assert report.scanners["reward_without_tools"].runs == 2


def test_two_questions_with_the_same_default_id_are_two_tasks(tmp_path: Path) -> None:
    asked = scored(*GUESS, exact=1.0)
    other = run_of(*LOOKED_UP, question="Another question?", scores={"exact": 1.0})
    write(tmp_path / "runs.jsonl", [asked, other])
    report = scan_runs([tmp_path / "runs.jsonl"], ScanConfig(scanners=("reward_without_tools",)))
    (only,) = report.scanners["reward_without_tools"].first
    assert only.severity is Severity.INFO


@pytest.mark.parametrize("limit", ["_MOST_TASKS", "_MOST_ATTEMPTS"])
def test_every_run_is_reported_once_however_few_attempts_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(f"coa.scan.stage.{limit}", 2)
    guess, looked_up = scored(*GUESS, exact=1.0), scored(*LOOKED_UP, exact=1.0)
    runs = [
        run.model_copy(update={"task": run.task.model_copy(update={"id": f"t{number}"}), "sample": sample})
        for number in range(5)
        for sample, run in enumerate((guess, looked_up, guess))
    ]
    write(tmp_path / "runs.jsonl", runs)
    found = scan_runs(tmp_path, ScanConfig(scanners=("reward_without_tools",))).scanners["reward_without_tools"]
    assert (found.runs, found.findings, len({one.run for one in found.first})) == (10, 10, 10)
    # Beyond two attempts, the third of a task is alone and no other attempt speaks against it.
    assert found.severities[Severity.WARNING] == (10 if limit == "_MOST_TASKS" else 5)


def test_a_very_long_answer_is_right_only_if_an_accepted_one_is_as_long() -> None:
    long = "Ada. " * 3_000
    assert notes(SCANNER, run_of(("answer", long))) == []
    task = Task(id="t", question="Write her name 3,000 times.", answer=long)
    assert note(SCANNER, run_of(("answer", long), task=task)).message.startswith("right ")
    boxed = run_of(("answer", long + r"\boxed{Ada}"))
    assert note(SCANNER, boxed).message.startswith("right ")


def test_a_very_long_answer_is_not_normalised(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def counted(text: str) -> str:
        lengths.append(len(text))
        return text

    monkeypatch.setattr("coa.runtime.many.normalise", counted)
    assert notes(SCANNER, run_of(("answer", "Ida " * 2_000))) == [] and max(lengths) == 7_999
    lengths.clear()
    assert notes(SCANNER, run_of(("answer", "Ida " * 3_000))) == [] and max(lengths, default=0) < 10_000
