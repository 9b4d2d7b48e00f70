"""The page of an evaluation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coa.evaluate.attempts import attempt_of, by_task
from coa.evaluate.folder import Folder
from coa.evaluate.report import make_report, write_report
from coa.trajectory import Score, Step, Stop, Task, Trajectory, Usage, observation, write
from coa.trajectory.types import Failure, FailureSite
from coa.view.folders import folder_view
from coa.view.folders.parts import FolderView

CONFIG = {"stage": "eval", "samples": 2, "scorer": "exact", "benchmark": {"name": "exam", "tasks": 2}, "select": None}


def attempt(task: str, sample: int, value: float | None, *, stop: Stop = Stop.ANSWERED, **rest: Any) -> Trajectory:
    answered = rest.pop("answer", "Ada")
    steps = (Step(agent="answer", text=answered),) if answered is not None else ()
    family = {"t1": "one_hop", "t2": "two_hop"}[task]
    scores = (
        {} if value is None and stop is Stop.FAILED else {"exact": Score(value=value, reason=rest.pop("reason", ""))}
    )
    return Trajectory(
        task=Task(id=task, question="Who?", answer="Ada", meta={"family": family}), profile="web", steps=steps,
        sample=sample, scores=scores, stop=stop, usage=Usage(prompt_tokens=80, completion_tokens=20, cost=0.5), **rest,
    )  # fmt: skip


def attempts() -> list[Trajectory]:
    """One right answer in four: the others are wrong, out of tokens, and failed."""
    failure = Failure(site=FailureSite.MODEL, message="the server is gone")
    return [
        attempt("t1", 0, 1.0),
        attempt("t1", 1, 0.0, answer="Bob"),
        attempt("t2", 0, 0.0, stop=Stop.TOKENS, answer=None),
        attempt("t2", 1, None, stop=Stop.FAILED, answer=None, failure=failure),
    ]


def evaluation(folder: Path, runs: Sequence[Trajectory], *, report: bool = True) -> FolderView:
    write(folder / "trajectories.jsonl", runs)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    if report:
        tasks = by_task(attempt_of(run, "exact") for run in runs)
        write_report(Folder(folder), make_report(tasks.items(), CONFIG))
    return folder_view(folder)


def part(view: FolderView, title: str, kind: str = "bars") -> Any:
    (found,) = [section for section in view["sections"] if section["title"] == title]
    return next(part for part in found["parts"] if part["type"] == kind)


def facts(view: FolderView) -> dict[str, str]:
    return {fact["label"]: fact["value"] for fact in view["facts"]}


def test_success_and_what_it_took(tmp_path: Path) -> None:
    view = evaluation(tmp_path / "eval", attempts())
    assert (view["kind"], view["problems"]) == ("eval", [])
    shown = facts(view)
    # One of four attempts is right, so a success took all four: 400 tokens and 2.
    assert shown["pass@1"] == "25.0%"
    assert shown["Tokens per success"] == "400"
    assert shown["Cost per success"] == "2"
    assert [row["label"] for row in part(view, "Success")["rows"]][:2] == ["pass@1", "avg@2"]
    figures = view["figures"]
    assert figures is not None
    assert (figures["attempts"], figures["right"], figures["metrics"]["pass@2"]["value"]) == (4, 1, 0.5)


def test_pass_at_k_is_a_curve(tmp_path: Path) -> None:
    view = evaluation(tmp_path / "eval", attempts())
    curve = part(view, "Success", "plot")
    assert [(x, value) for _, _, x, value in curve["linear"]["drawings"][0]["points"]] == [
        ("1", "25.0%"),
        ("2", "50.0%"),
    ]


def test_every_attempt_that_is_not_right_has_one_cause_and_a_link(tmp_path: Path) -> None:
    view = evaluation(tmp_path / "eval", attempts())
    rows = {row["label"]: (row["note"], row["href"]) for row in part(view, "Why attempts did not succeed")["rows"]}
    assert rows == {
        "wrong answer": ("1 (33.3%)", "runs?outcome=wrong"),
        "out of tokens": ("1 (33.3%)", "runs?stop=tokens&outcome=unanswered"),
        "failed in the model": ("1 (33.3%)", "runs?stop=failed"),
    }
    said = part(view, "Why attempts did not succeed", "lines")
    assert [line["text"] for line in said["lines"]] == ["1 × failed in the model: the server is gone"]


def test_equal_messages_are_counted_together(tmp_path: Path) -> None:
    failure = Failure(site=FailureSite.SANDBOX, message="no room")
    runs = [attempt("t1", n, None, stop=Stop.FAILED, answer=None, failure=failure) for n in range(2)]
    unscored = [attempt("t2", n, None, reason="no verdict") for n in range(2)]
    view = evaluation(tmp_path / "eval", [*runs, *unscored])
    said = part(view, "Why attempts did not succeed", "lines")
    assert {line["text"] for line in said["lines"]} == {
        "2 × failed in the sandbox: no room",
        "2 × not scored: no verdict",
    }


def test_families_and_ends_lead_to_their_runs(tmp_path: Path) -> None:
    view = evaluation(tmp_path / "eval", attempts())
    families = part(view, "Families")["rows"]
    assert [(row["label"], row["note"], row["href"]) for row in families] == [
        ("one_hop", "50.0% of 2", "runs?family=one_hop"),
        ("two_hop", "0.0% of 2", "runs?family=two_hop"),
    ]
    ends = {row["label"]: row["href"] for row in part(view, "How runs ended")["rows"]}
    assert ends == {"answered": "runs?stop=answered", "failed": "runs?stop=failed", "out of tokens": "runs?stop=tokens"}


def test_tool_errors_are_counted_by_tool_and_kind(tmp_path: Path) -> None:
    run = attempt("t1", 0, 1.0)
    steps = (Step(agent="code", text="1/0"), observation("no", meta={"ok": False, "error": "timeout"}), *run.steps)
    view = evaluation(tmp_path / "eval", [run.model_copy(update={"steps": steps}), attempt("t2", 0, 1.0)])
    (row,) = part(view, "Tool errors")["rows"]
    assert (row["label"], row["note"], row["href"]) == ("code: timeout", "1", "runs?tool_error=1&agent=code")


def test_an_evaluation_that_runs_is_computed_from_its_attempts(tmp_path: Path) -> None:
    done = evaluation(tmp_path / "done", attempts())
    running = evaluation(tmp_path / "running", attempts(), report=False)
    assert running["figures"] == done["figures"]
    assert running["problems"] == ["There is no report.json yet: the figures are computed from the attempts so far."]
    write(tmp_path / "done" / "trajectories.jsonl", [attempt("t1", 2, 1.0)])
    more = folder_view(tmp_path / "done")["figures"]
    assert more is not None and (more["attempts"], more["right"]) == (5, 2)


def test_an_evaluation_without_an_attempt_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    view = folder_view(tmp_path)
    assert view["kind"] == "eval"
    assert view["problems"] == ["There is no report.json yet: there is no attempt yet."]


@pytest.mark.parametrize("broken", ["results", "spent", "stops", "agents", "breakdown", "timing", "benchmark"])
@pytest.mark.parametrize("value", [None, 7, "x", [], {"x": {"y": 1}}])
def test_a_damaged_part_of_a_report_leaves_the_others(broken: str, value: object, tmp_path: Path) -> None:
    folder = tmp_path / "eval"
    whole = evaluation(folder, attempts())
    report = json.loads((folder / "report.json").read_text())
    (folder / "report.json").write_text(json.dumps({**report, broken: value}))
    view = folder_view(folder)
    lost = {section["title"] for section in whole["sections"]} - {section["title"] for section in view["sections"]}
    assert len(lost) <= 2
    assert {"Why attempts did not succeed", "Settings"} <= {section["title"] for section in view["sections"]}


def test_a_damaged_report_is_named_once(tmp_path: Path) -> None:
    evaluation(tmp_path / "eval", attempts())
    (tmp_path / "eval" / "report.json").write_text("{")
    view = folder_view(tmp_path / "eval")
    (problem,) = view["problems"]
    assert problem.startswith("report.json is damaged") and problem.endswith("computed from the attempts.")
    assert facts(view)["pass@1"] == "25.0%"


def test_one_attempt_is_singular(tmp_path: Path) -> None:
    view = evaluation(tmp_path / "eval", attempts()[:3])
    (note,) = [fact["note"] for fact in view["facts"] if fact["label"] == "Tasks"]
    assert note == "1 attempt right, 1 attempt missing"
