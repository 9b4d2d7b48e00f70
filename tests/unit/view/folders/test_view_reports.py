"""The pages of comparisons, distillations, samplings, the demo, and folders without a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coa.compare import compare
from coa.distill.filters import STAGES
from coa.distill.filters.base import Dropped, Reason
from coa.distill.funnel import Funnel
from coa.distill.report import write_report
from coa.sampling.difficulty import Fate, Rules
from coa.trajectory import Score, Step, Task, Trajectory, Usage, write
from coa.view.folders import folder_view
from coa.view.folders.parts import FolderView
from support.builders import web_run

CONFIG = {"stage": "eval", "scorer": "exact", "samples": 1, "benchmark": {"name": "exam", "tasks": 5}}


def run(task: int, value: float) -> Trajectory:
    return Trajectory(
        task=Task(id=f"t{task}", question="Who?", answer="Ada", meta={"family": "one_hop"}), profile="web",
        steps=(Step(agent="answer", text="Ada"),), scores={"exact": Score(value=value)},
        usage=Usage(prompt_tokens=90, completion_tokens=10, tool_calls=1),
    )  # fmt: skip


def two_evaluations(root: Path) -> Path:
    """The first solves tasks 0 and 1, the second 1, 2 and 3."""
    for name, right in (("a", (0, 1)), ("b", (1, 2, 3))):
        write(root / "eval" / name / "trajectories.jsonl", [run(task, float(task in right)) for task in range(5)])
        (root / "eval" / name / "config.json").write_text(json.dumps(CONFIG))
    compare([root / "eval" / "a", root / "eval" / "b"], root / "comparison")
    return root / "comparison"


def parts(view: FolderView, title: str) -> list[Any]:
    return next(list(section["parts"]) for section in view["sections"] if section["title"] == title)


def titles(view: FolderView) -> list[str]:
    return [section["title"] for section in view["sections"]]


def test_a_comparison_shows_its_runs_and_where_they_disagree(tmp_path: Path) -> None:
    view = folder_view(two_evaluations(tmp_path))
    assert (view["kind"], view["problems"]) == ("compare", [])
    assert [(fact["label"], fact["value"], fact["href"]) for fact in view["facts"]] == [
        ("a", "40.0%", "in/../eval/a"),
        ("b", "60.0%", "in/../eval/b"),
    ]
    only_a, only_b = parts(view, "Tasks on which two runs disagree")
    assert only_a["title"] == "Right in a, not in b: 1"
    assert [(line["text"], line["href"]) for line in only_b["lines"]] == [
        ("Show these tasks side by side", "compare?in=..%2Feval%2Fa&in=..%2Feval%2Fb&only=01"),
        ("t2", "tasks?task=t2"),
        ("t3", "tasks?task=t3"),
    ]
    (differences,) = parts(view, "Differences")
    assert differences["rows"][0][2]["text"].startswith("+20.0 points [")
    tokens, _ = parts(view, "What a success took")
    assert [row["note"].split()[0] for row in tokens["rows"]] == ["250", "167"]  # 500 tokens by 2 and by 3


def test_a_run_that_is_not_there_any_more_has_no_link(tmp_path: Path) -> None:
    folder = two_evaluations(tmp_path)
    (tmp_path / "eval" / "b").rename(tmp_path / "moved")
    view = folder_view(folder)
    assert [fact["href"] for fact in view["facts"]] == ["in/../eval/a", ""]
    _, only_b = parts(view, "Tasks on which two runs disagree")
    assert only_b["lines"][0]["text"] == "t2"


@pytest.mark.parametrize("key", ["runs", "pairs", "shared_tasks", "tasks_left_out"])
@pytest.mark.parametrize("value", [None, 3, [1], [{"name": "a"}]])
def test_a_damaged_comparison_keeps_what_can_be_read(key: str, value: object, tmp_path: Path) -> None:
    folder = two_evaluations(tmp_path)
    report = json.loads((folder / "report.json").read_text())
    (folder / "report.json").write_text(json.dumps({**report, key: value}))
    view = folder_view(folder)
    assert view["kind"] == "compare"
    assert titles(view) or key == "runs"


def test_a_distillation_shows_its_funnel_and_reasons(tmp_path: Path) -> None:
    found = Funnel()
    trajectory = web_run(
        meta={"source": {"format": "recorded", "file": "a.json", "place": "1"}, "roles": {"bob": "act"}}
    )
    for _ in range(4):
        found.read(trajectory, converted=True)
    stage = STAGES[0]
    reason = Reason("too short", "give longer runs")
    found.drop(stage, Dropped(reason, "2 calls"), trajectory)
    found.kept, found.rows = 3, 3
    settings = {"profile": "web", "scorer": "rules", "config": {"correction": {"copies": 2}}}
    write_report(tmp_path, found, settings, ["Length was not measured."])
    (tmp_path / "config.json").write_text('{"stage": "distill"}')
    view = folder_view(tmp_path)
    assert (view["kind"], view["problems"]) == ("distill", [])
    (funnel,) = parts(view, "From the team's runs to training data")
    assert [row["note"] for row in funnel["rows"]][:2] == ["4", "3 (−1)"]
    bars, examples = parts(view, "Why runs were dropped")
    assert bars["rows"][0]["label"] == f"{stage.name}: too short"
    assert examples["lines"][0]["text"] == "t1: Who? — 2 calls [a.json 1]"
    assert "Length was not measured." in view["notices"]
    assert {fact["label"]: fact["value"] for fact in view["facts"]}["Kept"] == "3"


def test_a_distillation_that_runs_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"stage": "distill", "profile": "web"}')
    view = folder_view(tmp_path)
    assert view["problems"] == ["There is no report.json yet: it is written when the distillation ends."]
    assert titles(view) == ["Settings"]


def test_a_sampling_shows_how_often_tasks_were_solved(tmp_path: Path) -> None:
    dropped = {Fate.ALWAYS_SOLVED.value: 2, Fate.NEVER_SOLVED.value: 1}
    rules = Rules(samples=2, no_tools_samples=0).model_dump(mode="json")
    report = {"settings": {}, "rules": rules, "tasks": 10, "kept": 7, "dropped": dropped, "attempts": 20,
              "solved_with_tools": [1, 7, 2], "solved_without_tools": [0], "unscored_attempts": 0}  # fmt: skip
    (tmp_path / "report.json").write_text(json.dumps(report))
    (tmp_path / "config.json").write_text('{"stage": "sample"}')
    write(tmp_path / "with-tools" / "trajectories.jsonl", [web_run()])
    view = folder_view(tmp_path)
    assert (view["kind"], view["problems"]) == ("sample", [])
    funnel, _ = parts(view, "From tasks to kept tasks")
    assert funnel["rows"][-1]["note"] == "7 (−1)"
    (histogram,) = parts(view, "How often tasks were solved")
    assert [row["note"] for row in histogram["rows"]] == ["1", "7", "2"]
    assert parts(view, "Attempts")[0]["rows"] == [[{"text": "Attempts with tools", "href": "in/with-tools"}]]


def test_the_demo_links_all_of_its_parts(tmp_path: Path) -> None:
    root = two_evaluations(tmp_path).parent
    (root / "demo.json").write_text('{"recipe": "quick", "seed": 7, "seconds": {"sft": 61.2, "odd": 3}, "begun": "rl"}')
    for name in ("sft", "rl"):
        (root / name).mkdir()
        (root / name / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0, "success": 0.5, "model_tokens": 90}\n')
    view = folder_view(root)
    assert (view["kind"], view["problems"]) == ("demo", [])
    assert [fact["value"] for fact in view["facts"]] == ["40.0%", "60.0%"]
    (stages,) = parts(view, "How it was made")
    assert [[cell["text"] for cell in row] for row in stages["rows"]] == [
        ["sft", "Supervised fine-tuning", "0:01:01"],
        ["rl", "Reinforcement learning", "running"],
        ["compare", "Comparison of all of them", ""],
        ["odd", "odd", "0:00:03"],
    ]
    assert stages["rows"][0][1]["href"] == "in/sft"
    curves = parts(view, "Training")
    assert [(plot["title"], plot["series"][0]["href"]) for plot in curves] == [
        ("Fine-tuning: loss", ""),
        ("Reinforcement learning: success", "in/rl/step/{x}"),
        ("Reinforcement learning: length", "in/rl/step/{x}"),
    ]


def test_a_demo_that_has_just_begun_shows_its_stages(tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text('{"recipe": "quick", "seed": 7, "seconds": {}, "begun": "world"}')
    view = folder_view(tmp_path)
    assert view["problems"] == ["There is no comparison yet: it is the last stage of the demo."]
    assert titles(view) == ["How it was made"]


def test_a_folder_of_runs_has_figures_too(tmp_path: Path) -> None:
    write(tmp_path / "trajectories.jsonl", [run(task, float(task < 2)) for task in range(4)])
    view = folder_view(tmp_path)
    assert (view["kind"], view["problems"]) == ("run", [])
    assert {fact["label"]: fact["value"] for fact in view["facts"]}["pass@1"] == "50.0%"
    assert "Why attempts did not succeed" in titles(view)


def test_any_folder_has_a_view(tmp_path: Path) -> None:
    assert folder_view(tmp_path / "missing")["problems"] == []
    (tmp_path / "config.json").write_text('{"stage": "something new", "setting": 3}')
    view = folder_view(tmp_path)
    assert (view["kind"], titles(view)) == ("something new", ["Settings"])


@pytest.mark.parametrize("stage", ["eval", "distill", "sample", "sft", "rl", "compare", "teach"])
@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"\xff\xfe", b'{"results": 1, "stages": 2, "runs": 3, "pairs": 4}']
)
def test_nothing_in_a_folder_raises(stage: str, content: bytes, tmp_path: Path) -> None:
    for name in ("report.json", "metrics.jsonl", "trajectories.jsonl", "scores.jsonl"):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "config.json").write_text(json.dumps({"stage": stage, "config": 7, "benchmark": 8, "samples": "x"}))
    view = folder_view(tmp_path)
    assert view["title"]
    json.dumps(view, allow_nan=False)


def test_a_comparison_says_which_tasks_its_figures_are_over(tmp_path: Path) -> None:
    folder = two_evaluations(tmp_path)
    assert folder_view(folder)["about"] == "a, b on 5 common tasks."
    write(tmp_path / "eval" / "b" / "trajectories.jsonl", [run(5, 1.0), run(6, 1.0)])
    compare([tmp_path / "eval" / "a", tmp_path / "eval" / "b"], tmp_path / "all", every_task=True)
    view = folder_view(tmp_path / "all")
    assert view["about"].startswith("a, b. 5 tasks are in all runs. The figures of each run are over all tasks of")
    own = {section["title"]: section["about"] for section in view["sections"]}
    assert own["Success"] == "The figures of each run are over all tasks of that run: a 5, b 7."
