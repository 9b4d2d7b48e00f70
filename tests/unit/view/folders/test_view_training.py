"""Curves of training runs, and families over time."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from coa.trajectory import Score, Task, write
from coa.trajectory.types import FrozenDict
from coa.view.folders import FamilyRow, folder_view
from coa.view.folders.families import families_plot, family_rows
from coa.view.folders.metric_panels import RL, curve_sections, values_of
from coa.view.folders.parts import FolderView
from support.builders import web_run


def training(folder: Path, stage: str, rows: list[dict[str, Any]], **settings: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"stage": stage, "config": {"model": "tiny", **settings}}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def plots(view: FolderView) -> dict[str, Any]:
    return {part["title"]: part for one in view["sections"] for part in one["parts"] if part["type"] == "plot"}


def facts(view: FolderView) -> dict[str, tuple[str, str]]:
    return {fact["label"]: (fact["value"], fact["note"]) for fact in view["facts"]}


def test_an_sft_run_has_its_loss_and_how_far_it_is(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": 4 / step, "lr": 1e-4, "time": 100.0 * step} for step in range(1, 5)]
    rows.append({"step": 4, "held_out_loss": 1.5, "time": 401.0})
    view = folder_view(training(tmp_path / "sft", "sft", rows, max_steps=10))
    assert (view["kind"], view["problems"]) == ("sft", [])
    # Six steps of 100.33 s are left: the last row of step 4 is a second late.
    assert facts(view)["Step"] == ("4 of 10", "about 10:02 left at the latest pace")
    assert facts(view)["Loss"] == ("1", "4 at step 1")
    loss = plots(view)["Loss"]
    assert [series["name"] for series in loss["series"]] == ["training", "held-out"]
    assert [value for *_, value in loss["linear"]["drawings"][1]["points"]] == ["1.5"]
    assert loss["series"][0]["href"] == ""


def test_a_finished_run_is_called_finished(tmp_path: Path) -> None:
    folder = training(tmp_path / "sft", "sft", [{"step": 2, "loss": 1.0}], max_steps=2)
    (folder / "model").mkdir()
    assert facts(folder_view(folder))["Step"] == ("2 of 2", "finished")


def test_a_run_without_a_figure_says_so(tmp_path: Path) -> None:
    view = folder_view(training(tmp_path / "rl", "rl", []))
    assert view["problems"] == ["There are no figures in metrics.jsonl yet: the first step has not ended."]
    assert facts(view)["Step"][0] == "0"


def test_known_metrics_have_their_panel_and_others_their_own() -> None:
    rows = [{"step": 1, "reward": 0.1, "kl": 0.2, "policy_kl": 0.3, "novel": 4, "text": "x", "flag": True, "time": 9.0}]
    found = {section["title"]: [part["title"] for part in section["parts"]] for section in curve_sections(rows, RL)}
    assert found == {"Reward and success": ["Reward"], "Policy": ["KL"], "Other": ["novel"]}


def test_points_of_rl_lead_to_the_attempts_behind_them(tmp_path: Path) -> None:
    rows = [{"step": 1, "reward": 0.5, "success": 0.5}, {"step": 1, "held_out_success": 0.4}]
    folder = training(tmp_path / "rl", "rl", rows)
    write(folder / "groups" / "step-0001.jsonl", [web_run()])
    view = folder_view(folder)
    assert view["steps"] == [1]
    success = plots(view)["Success"]
    assert [(series["name"], series["href"]) for series in success["series"]] == [
        ("attempts", "step/{x}"),
        ("held-out tasks", ""),
    ]


def test_a_step_without_an_update_is_a_gap_but_a_rare_metric_has_none() -> None:
    rows: list[dict[str, Any]] = [{"step": step, "loss": 1.0} for step in range(1, 11)]
    del rows[4]["loss"]
    rows[6]["loss"] = None
    rows[0]["held_out"] = rows[9]["held_out"] = 0.5
    assert [step for step, value in values_of(rows, "loss") if value is None] == [5, 7]
    assert values_of(rows, "held_out") == [(1, 0.5), (10, 0.5)]
    assert values_of(rows, "unknown") == []


def test_families_are_counted_step_by_step() -> None:
    rows = [FamilyRow(1, "one_hop", True), FamilyRow(1, "one_hop", False), FamilyRow(2, "one_hop", True),
            FamilyRow(2, "code", False), FamilyRow(2, "code", None), FamilyRow(2, "", True)]  # fmt: skip
    plot = families_plot(rows)
    assert plot is not None
    assert [series["name"] for series in plot["series"]] == ["code", "one hop"]
    shown = [[(x, value) for _, _, x, value in drawing["points"]] for drawing in plot["linear"]["drawings"]]
    assert shown == [[("2", "0.0%")], [("1", "50.0%"), ("2", "100.0%")]]


def test_many_families_are_cut_to_those_with_most_attempts() -> None:
    rows = [FamilyRow(1, f"f{number:02}", True) for number in range(14) for _ in range(number + 1)]
    plot = families_plot(rows)
    assert plot is not None
    assert [series["name"] for series in plot["series"]] == [f"f{number:02}" for number in range(4, 14)]
    assert "The 4 families with the fewest attempts are left out." in plot["about"]


def test_families_are_read_from_the_files_of_groups(tmp_path: Path) -> None:
    for step, value in ((1, 0.0), (12, 1.0)):
        task = Task(id="t", question="Who?", meta=FrozenDict({"family": "one_hop"}))
        run = web_run(scores={"success": Score(value=value), "reward": Score(value=value)})
        write(tmp_path / "groups" / f"step-{step:04}.jsonl", [run.model_copy(update={"task": task})])
    (tmp_path / "groups" / "step-x.jsonl").touch()
    assert list(family_rows(tmp_path)) == [FamilyRow(1, "one_hop", False), FamilyRow(12, "one_hop", True)]


def test_infinite_metrics_do_not_break_a_curve(tmp_path: Path) -> None:
    folder = tmp_path / "rl"
    training(folder, "rl", [{"step": 1, "loss": 1.0}])
    with (folder / "metrics.jsonl").open("a") as out:
        out.write(f'{{"step": 2, "loss": {10**400}}}\n{{"step": 3, "loss": 1e999}}\n{{"step": 4, "loss": 2.0}}\n')
    shown = plots(folder_view(folder))["Loss"]["linear"]["drawings"][0]["points"]
    assert all(math.isfinite(y) for _, y, _, _ in shown)


def test_runs_on_held_out_tasks_are_linked(tmp_path: Path) -> None:
    folder = training(tmp_path / "rl", "rl", [{"step": 1, "loss": 1.0}])
    write(folder / "agent" / "step-10" / "trajectories.jsonl", [web_run()])
    write(folder / "agent" / "step-2" / "trajectories.jsonl", [web_run()])
    (looks,) = [one for one in folder_view(folder)["sections"] if one["title"] == "Held-out runs"]
    (table,) = looks["parts"]
    assert table["type"] == "table"
    assert [row[0] for row in table["rows"]] == [
        {"text": "step 2", "href": "in/agent/step-2"},
        {"text": "step 10", "href": "in/agent/step-10"},
    ]
