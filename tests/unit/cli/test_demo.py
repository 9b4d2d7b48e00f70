"""The demo as a list of public commands: that they exist, that it goes on where it stopped, and its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coa.cli import app
from coa.cli.demo import RECIPES, Stage, run_stages, stages_of
from coa.cli.demo_page import demo_page
from coa.errors import CoaError
from coa.trajectory import Step, Task, Trajectory, observation, write

run = CliRunner().invoke


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_stage_is_a_command_that_there_is(recipe: str, tmp_path: Path) -> None:
    for stage in stages_of(RECIPES[recipe], tmp_path, 7):
        assert run(app, [*stage.command, "--help"]).exit_code == 0, stage.command
    shown = run(app, ["demo", "--plan", "--out", str(tmp_path)]).stdout
    assert shown.count("\n") == len(stages_of(RECIPES["full"], tmp_path, 7)) and list(tmp_path.iterdir()) == []


def test_a_stage_that_fails_stops_the_demo_and_the_next_start_goes_on_with_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, there = tmp_path / "demo", tmp_path / "runs.jsonl"
    stages = [
        Stage("one", "says its version", ("--version",), 1),
        Stage("two", "looks at a file", ("inspect", str(there), "--no-pager"), 1),
    ]
    with pytest.raises(CoaError, match="coa inspect"):
        run_stages(stages, out, {"seed": 7})
    assert list(json.loads((out / "demo.json").read_text())["seconds"]) == ["one"]
    write(there, [_attempt("a", "4")])
    capfd.readouterr()
    run_stages(stages, out, {"seed": 7})
    told = capfd.readouterr().out
    assert told.count("done before") == 1 and "print(2 + 2)" in told
    assert list(json.loads((out / "demo.json").read_text())["seconds"]) == ["one", "two"]


def test_a_folder_is_of_one_recipe_and_one_seed(tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text('{"recipe": "full", "seed": 7, "seconds": {}}')
    for other in (["--quick"], ["--seed", "8"]):
        refused = run(app, ["demo", "--out", str(tmp_path), *other])
        assert isinstance(refused.exception, CoaError) and "recipe full, seed 7" in str(refused.exception)


def _attempt(name: str, answer: str) -> Trajectory:
    steps = (
        Step(agent="plan", text="add"),
        Step(agent="code", text="\n```py\nprint(2 + 2)\n```\n"),
        observation("4"),
        Step(agent="answer", text=answer),
    )
    task = Task(id=name, question="2 + 2 <b>?", answer="4")
    return Trajectory(task=task, profile="atlas", steps=steps, stop="answered").scored("exact", float(answer == "4"))


def test_the_page_tells_success_the_funnel_what_was_learnt_and_shows_runs(tmp_path: Path) -> None:
    for name, answers in (("team", "44"), ("base", "33"), ("sft", "43"), ("rl", "44")):
        write(tmp_path / "eval" / name / "trajectories.jsonl", [_attempt(str(n), a) for n, a in enumerate(answers)])
    folders = [str(tmp_path / "eval" / name) for name in ("team", "base", "sft", "rl")]
    assert run(app, ["compare", *folders, "--all", "--out", str(tmp_path / "comparison")]).exit_code == 0
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "report.json").write_text('{"stages": [{"stage": "quality", "in": 3, "kept": 2}]}')
    for name, key in (("sft", "loss"), ("rl", "reward")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(
            "".join(json.dumps({"step": n, key: 1 / n}) + "\n" for n in (1, 2))
        )
    page = demo_page(tmp_path)
    assert "100.0%" in page and "50.0%" in page and "quality" in page and page.count("<svg") >= 4
    assert "base: 3" in page and "rl: 4" in page, "the same question before and after"
    assert "2 + 2 &lt;b&gt;?" in page and "<b>" not in page
