"""The demo as a list of public commands: that they exist, that it goes on where it stopped, and its result."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from coa.cli import app
from coa.cli.dashboard import Dashboard, chart
from coa.demo.commands import Printed, clock, in_words, run_stages, time_left
from coa.demo.recipes import RECIPES, DemoStage, stages_of
from coa.demo.result import goals, new_question, short_table
from coa.errors import CoaError, FolderError
from coa.trajectory import Step, Task, Trajectory, observation, write

run = CliRunner().invoke


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_stage_is_a_command_that_there_is(recipe: str, tmp_path: Path) -> None:
    for stage in stages_of(RECIPES[recipe], tmp_path, 7):
        assert run(app, [*stage.command, "--help"]).exit_code == 0, stage.command
    shown = run(app, ["demo", "--plan", "--out", str(tmp_path)]).stdout
    assert shown.count("\n") == len(stages_of(RECIPES["full"], tmp_path, 7)) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("option", "folder"), [((), "runs/demo"), (("--quick",), "runs/demo-quick")])
def test_each_recipe_has_a_folder_of_its_own(option: tuple[str, ...], folder: str) -> None:
    assert run(app, ["demo", "--plan", *option]).stdout.startswith(f"coa world build --seed 7 --out {folder}/world\n")


def test_a_stage_that_fails_stops_the_demo_and_the_next_start_goes_on_with_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, there = tmp_path / "demo", tmp_path / "runs.jsonl"
    stages = [
        DemoStage("one", "says its version", ("--version",), 1),
        DemoStage("two", "looks at a file", ("inspect", str(there), "--no-pager"), 1),
    ]
    with pytest.raises(CoaError, match="coa inspect"):
        run_stages(stages, out, {"seed": 7}, Printed(print))
    assert list(json.loads((out / "demo.json").read_text())["seconds"]) == ["one"]
    write(there, [_attempt("a", "4")])
    capfd.readouterr()
    run_stages(stages, out, {"seed": 7}, Printed(print))
    printed = capfd.readouterr().out
    assert printed.count("finished before") == 1 and "print(2 + 2)" in printed
    assert list(json.loads((out / "demo.json").read_text())["seconds"]) == ["one", "two"]


def test_a_stage_that_was_begun_before_gets_other_options(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out, there = tmp_path / "demo", tmp_path / "runs.jsonl"
    stages = [DemoStage("look", "looks at a file", ("inspect", str(there), "--no-pager"), 1, again=("--task", "b"))]
    with pytest.raises(CoaError):
        run_stages(stages, out, {"seed": 7}, Printed(print))
    write(there, [_attempt("a", "4"), _attempt("b", "5")])
    capfd.readouterr()
    run_stages(stages, out, {"seed": 7}, Printed(print))
    printed = capfd.readouterr().out
    assert "task b" in printed and "task a" not in printed


def test_ctrl_c_waits_for_the_stage_to_save_what_it_has(tmp_path: Path) -> None:
    """As a shell does it: the signal goes to the demo and to its stage."""
    script = f"""
from pathlib import Path
from coa.demo import commands as stages
stages.sys = type("sys", (), {{"executable": {str(tmp_path / "stage")!r}}})
done = stages.run_stages(
    [stages.DemoStage("slow", "saves", (), 1)], Path({str(tmp_path / "demo")!r}), {{"seed": 7}}, stages.Printed(print)
)
raise SystemExit(done is None)
"""
    stage = tmp_path / "stage"
    stage.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, signal, sys, time\n"
        f"at = pathlib.Path({str(tmp_path)!r})\n"
        "def save(*_):\n    time.sleep(1)\n    (at / 'saved').touch()\n    sys.exit(1)\n"
        "signal.signal(signal.SIGINT, save)\n(at / 'ready').touch()\ntime.sleep(60)\n"
    )
    stage.chmod(0o755)
    demo = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    try:
        while not (tmp_path / "ready").exists():
            assert demo.poll() is None
            time.sleep(0.02)
        os.killpg(demo.pid, signal.SIGINT)
        assert demo.wait(30) != 0 and (tmp_path / "saved").exists()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(demo.pid, signal.SIGKILL)
    assert json.loads((tmp_path / "demo" / "demo.json").read_text()) == {"seed": 7, "seconds": {}, "begun": "slow"}


def test_the_screen_shows_stages_curves_and_the_last_line(tmp_path: Path) -> None:
    out, file = tmp_path / "demo", io.StringIO()
    screen = Console(file=file, width=80, color_system=None)
    stages = [
        DemoStage("sft", "Fine-tune", ("--version",), 10),
        DemoStage("eval-sft", "Evaluate", (), 10),
        DemoStage("rl", "Learn", ("--version",), 10),
        DemoStage("compare", "Compare", (), 5),
    ]
    for folder, rows in (
        ("sft", '{"loss": 2.0}\n{"loss": 0.5}\n{"lo'),
        ("rl", '{"success": 0.25}\n{"success": 0.5}\n'),
    ):
        (out / folder).mkdir(parents=True)
        (out / folder / "metrics.jsonl").write_text(rows)
    report = out / "eval" / "sft" / "report.json"
    report.parent.mkdir(parents=True)
    report.write_text('{"results": {"metrics": {"pass@1": {"value": 0.415}}}}')
    dashboard = Dashboard(out, screen)
    dashboard.stage(stages, {"sft": 61.0, "eval-sft": 5.0}, stages[2], "coa rl")
    log = dashboard.output(stages[2])
    assert log is not None
    with log:
        log.write(b"first\nstep 2/9\x1b[2J\n")
    screen.print(dashboard.screen())
    shown = file.getvalue()
    assert "2 of 4 stages done" in shown and "41.5% solved" in shown and " 1:01\n" in shown
    assert "█▁  2.00 → 0.50, 2 steps" in shown and "▁█  25% → 50%, 2 steps" in shown
    assert "now: step 2/9" in shown and "\x1b" not in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_what_a_stage_prints_goes_to_its_log_and_the_end_of_it_into_the_error(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    stages = [DemoStage("look", "Look", ("inspect", str(tmp_path / "nothing"), "--no-pager"), 1)]
    dashboard = Dashboard(out, Console(file=io.StringIO()))
    with pytest.raises(CoaError, match="nothing") as refused:
        run_stages(stages, out, {"seed": 7}, dashboard)
    log = out / "logs" / "look.log"
    assert log.read_text().strip() in str(refused.value) and str(log) in str(refused.value)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 24), (120, 40)])
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_screen_fits_the_terminal_and_keeps_its_columns(
    recipe: str, width: int, height: int, tmp_path: Path
) -> None:
    file = io.StringIO()
    screen = Console(file=file, width=width, height=height, color_system=None)
    stages = stages_of(RECIPES[recipe], tmp_path, 7)
    for folder, key in (("sft", "loss"), ("rl", "success")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "metrics.jsonl").write_text("".join(f'{{"{key}": {n / 100}}}\n' for n in range(80)))
    dashboard = Dashboard(tmp_path, screen)
    dashboard.stage(stages, {stage.name: 4_000.0 for stage in stages[:-2]}, stages[-2], "coa teach")
    log = dashboard.output(stages[-2])
    assert log is not None
    with log:
        log.write(b"x" * 300)
    screen.print(dashboard.screen())
    lines = file.getvalue().splitlines()
    assert len(lines) < height and all(len(line) <= width for line in lines)
    table = lines[2 : 2 + len(stages)]
    assert [line[0] for line in table] == ["✓"] * (len(stages) - 2) + ["▶", " "]
    assert all(line.rstrip().endswith("1:06:40") for line in table[:-2])
    if width >= 80:
        assert all(stage.about in line for stage, line in zip(stages, table, strict=True))


def test_a_chart_keeps_the_first_and_the_last_value() -> None:
    assert chart([0.0, 1.0]) == ["▁█"] and chart([3.0, 3.0]) == ["▁▁"]
    assert chart([float(value) for value in range(1_000)], width=8) == ["▁▂▃▄▅▆▇█"]


def test_a_chart_of_several_rows_stacks_its_blocks() -> None:
    # Two rows are 16 steps: 0 is the lowest block, 8 of 16 one block of the upper row, 1 fills both.
    assert chart([0.0, 0.5, 1.0], rows=2) == [" ▁█", "▁██"]


def test_the_time_left_follows_the_pace_of_this_machine() -> None:
    stages = [DemoStage("one", "", (), 100), DemoStage("two", "", (), 200), DemoStage("three", "", (), 50)]
    assert time_left(stages, {}) == 350
    assert time_left(stages, {"one": 300.0}) == 3 * 250  # three times as slow as elsewhere
    assert time_left(stages, {"one": 300.0, "two": 600.0, "three": 150.0}) == 0


def test_the_time_left_shrinks_while_a_stage_runs_and_grows_with_one_that_takes_too_long() -> None:
    stages = [DemoStage("one", "", (), 100), DemoStage("two", "", (), 200), DemoStage("three", "", (), 50)]
    assert time_left(stages, {"one": 100.0}, stages[1], 60) == 140 + 50
    # 100 s as expected and 500 s instead of 200: twice as slow, so the last stage takes 100 s.
    assert time_left(stages, {"one": 100.0}, stages[1], 500) == 100


def test_times_are_printed_as_people_read_them() -> None:
    assert [clock(seconds) for seconds in (7, 61, 3_725)] == ["0:07", "1:01", "1:02:05"]
    assert [in_words(seconds) for seconds in (10, 50, 340)] == [
        "less than a minute",
        "about 1 minute",
        "about 6 minutes",
    ]


def _pair(
    first: str, second: str, low: float, tokens: tuple[float, float, float], tasks: int = 200
) -> dict[str, object]:
    value, bottom, top = tokens
    return {
        "first": first,
        "second": second,
        "tasks": tasks,
        "success": {"value": 0.1, "low": low, "high": 0.2},
        "tokens_per_success": {"value": value, "low": bottom, "high": top},
    }


def test_a_goal_is_reached_when_the_whole_interval_is_beyond_it() -> None:
    some = (0.05, 0.04, 0.06)
    found = goals({"pairs": [_pair("base", "sft", 0.01, some), _pair("sft", "rl", -0.01, some)]})
    assert [goal.reached for goal in found] == [True, False]
    assert found[0].line() == "shown:     fine-tuning solves more questions: +10.0 points [+1.0, +20.0]"
    assert found[1].line() == "not shown: RL solves more again: +10.0 points [-1.0, +20.0]"
    # 84.6 % below: a ratio of 0.154 at its upper end, on 200 tasks.
    for tokens, tasks, reached in (((0.1, 0.09, 0.15), 200, True), ((0.1, 0.09, 0.16), 200, False), (some, 199, False)):
        assert [goal.reached for goal in goals({"pairs": [_pair("team", "rl", 0, tokens, tasks)]})] == [reached]


def test_a_folder_is_of_one_recipe_and_one_seed(tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text('{"recipe": "full", "seed": 7, "seconds": {}}')
    for other, said in (
        (["--quick"], "recipe was 'full' and is now 'quick'"),
        (["--seed", "8"], "seed was 7 and is now 8"),
    ):
        refused = run(app, ["demo", "--out", str(tmp_path), *other])
        assert isinstance(refused.exception, FolderError) and said in str(refused.exception)


def _attempt(name: str, answer: str) -> Trajectory:
    steps = (
        Step(agent="plan", text="add"),
        Step(agent="code", text="\n```py\nprint(2 + 2)\n```\n"),
        observation("4"),
        Step(agent="answer", text=answer),
    )
    task = Task(id=name, question="2 + 2 <b>?", answer="4")
    return Trajectory(task=task, profile="atlas", steps=steps, stop="answered").scored("exact", float(answer == "4"))


def test_the_table_names_all_four_and_their_success(tmp_path: Path) -> None:
    for name, answers in (("team", "44"), ("base", "33"), ("sft", "43"), ("rl", "44")):
        write(tmp_path / "eval" / name / "trajectories.jsonl", [_attempt(str(n), a) for n, a in enumerate(answers)])
    folders = [str(tmp_path / "eval" / name) for name in ("team", "base", "sft", "rl")]
    assert run(app, ["compare", *folders, "--all", "--out", str(tmp_path / "comparison")]).exit_code == 0
    found = json.loads((tmp_path / "comparison" / "report.json").read_text())
    columns, rows = short_table(found)
    assert [row[0] for row in rows] == ["team", "untrained", "fine-tuned", "after RL"]
    assert rows[2][1:3] == ["2", "50.0% [9, 91]"] and all(len(row) == len(columns) for row in rows)
    assert len(goals(found)) == 3


def test_a_demo_that_is_done_ends_with_lines_that_fit_a_small_terminal_and_three_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    out = tmp_path / "demo"
    for name, answers in (("team", "44"), ("base", "33"), ("sft", "43"), ("rl", "44")):
        runs = [_attempt(str(n), a) for n, a in enumerate(answers)]
        asked = [
            one.model_copy(update={"task": one.task.model_copy(update={"meta": {"family": "sum"}})}) for one in runs
        ]
        write(out / "eval" / name / "trajectories.jsonl", asked)
    folders = [str(out / "eval" / name) for name in ("team", "base", "sft", "rl")]
    assert run(app, ["compare", *folders, "--all", "--out", str(out / "comparison")]).exit_code == 0
    new = Task(id="new", question="What is it?", answer="12", meta={"family": "sum"})
    (out / "world" / "tasks").mkdir(parents=True)
    (out / "world" / "tasks" / "test.jsonl").write_text(new.model_dump_json() + "\n")
    seconds = {stage.name: 30.0 for stage in stages_of(RECIPES["quick"], out, 7)}
    (out / "demo.json").write_text(json.dumps({"recipe": "quick", "seed": 7, "seconds": seconds, "begun": ""}))
    done = run(app, ["demo", "--quick", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert done.stdout.count("finished before, in 0:30") == len(seconds) and "\x1b" not in done.stdout
    last = done.stdout[done.stdout.index("Results on questions") :].splitlines()
    assert len(last) < 24 and max(len(line.replace(str(out), "runs/demo-quick")) for line in last) <= 80, done.stdout
    assert "The demo took about 5 minutes. Three things to try next:" in last
    commands = [words for line in last if (words := line.split()) and words[0] == "coa"]
    assert [words[1] for words in commands] == ["demo", "view", "run", "serve"]
    assert "   The right answer: 12. It solved 2 of 2 such questions." in last


@pytest.mark.parametrize(("sums", "asked"), [(1, "sum-new"), (0, "hop-new")])
def test_the_question_to_try_is_new_and_of_a_kind_that_the_model_can_do(sums: int, asked: str, tmp_path: Path) -> None:
    def task(name: str, family: str) -> Task:
        return Task(id=name, question=name, answer="1", meta={"family": family})

    tasks = [task(f"{kind}-{name}", family) for kind, family in (("sum", "arithmetic"), ("hop", "one_hop"))
             for name in ("old", "new")]  # fmt: skip
    runs = [Trajectory(task=one, profile="atlas").scored("auto", sums if one.id == "sum-old" else 1)
            for one in tasks if one.id.endswith("old")]  # fmt: skip
    (tmp_path / "eval" / "rl").mkdir(parents=True)
    (tmp_path / "world" / "tasks").mkdir(parents=True)
    write(tmp_path / "eval" / "rl" / "trajectories.jsonl", runs)
    (tmp_path / "world" / "tasks" / "test.jsonl").write_text("".join(one.model_dump_json() + "\n" for one in tasks))
    assert new_question(tmp_path) == (asked, "The right answer: 1. It solved 1 of 1 such question.")
