"""A team run beside the trajectory made of it, with a reason for each rewriting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from typer.testing import CliRunner

from coa.cli import app
from coa.distill import DistillConfig, Explanation, explain
from coa.distill.atif_writer import to_atif
from coa.distill.convert import convert, convert_with_reasons
from coa.distill.splice import MomentKind
from coa.distill.team_run import EvaluatorVerdict, Note, Purpose, TeamRun
from coa.errors import StoreError
from coa.trajectory import Task, load_profile
from support.team_runs import team_runs
from support.told_teams import agent, asks, called, member, plans, result, team, thinks, tower


def written(folder: Path, **runs: TeamRun) -> Path:
    for name, run in runs.items():
        task = Task(id=name, question=run.task.question, answer=run.task.answer)
        (folder / f"{name}.json").write_text(json.dumps(to_atif(run.model_copy(update={"task": task}))))
    return folder


def whys(found: Explanation) -> str:
    return "\n".join(
        f"{row.agent} | {row.said} | {[step.agent for step in row.steps]} | {'; '.join(row.why)}" for row in found.rows
    )


def busy() -> TeamRun:
    searcher = agent(
        "searcher",
        plans("Look.\n1. search"),
        thinks("I look.", asks("s1", "look_up", query="one"), asks("s2", "web_search", query="two")),
        result("s1", "x" * 30_000),
        result("s2", "HTTP 500", ok=False),
        thinks("The second failed. Never mind. I report."),
        answer="330",
    )
    checker = agent("checker", thinks("The page names it."), answer="330 m is correct.")
    return team(
        Note(role="user", text="Go on."),
        plans("The height is needed.\n\n## Plan\n1. ask"),
        thinks("I ask the searcher.", member("a", "searcher", task="Find it.")),
        result("a", "Error: down", ok=False),
        thinks("It is down. I ask again.", member("b", "searcher", task="Find it.")),
        called("b", searcher),
        result("b", "330", report_of=("searcher",)),
        thinks("Check it.", member("c", "checker", answer="330 m")),
        called("c", checker),
        result("c", "correct", report_of=("checker",)),
        thinks("330 m", purpose=Purpose.ANSWER),
    )


def test_each_rewriting_has_its_reason(tmp_path: Path) -> None:
    (found,) = explain(DistillConfig(), [written(tmp_path, busy=busy())], "busy")
    said = whys(found)
    for line in (
        "manager | Go on. | [] | no agent wrote it: a message of the user",
        "['think', 'plan'] | manager plans; divided: the profile requires a thought before a plan",
        "manager | I ask the searcher. | ['think'] | kept as a thought",
        "manager | searcher Find it. | [] | a hand-over to searcher that failed; a single model has none: Error: down",
        "manager | It is down. I ask again. | [] | it comments on a hand-over that failed, and asks again",
        "manager | searcher Find it. | [] | a hand-over: the run of searcher takes its place",
        "searcher | Look.\n1. search | ['think'] | the profile allows no plan here",
        'searcher | look_up {"query": "one"} | [\'web_search\'] | look_up is web_search because of its name',
        "['observation'] | shortened from 30,000 to",
        "['web_search'] | another call of the same reply, which has one thought, before the first call; web_search is",
        "['think', 'reflection'] | it comments on the error before it; divided",
        "grades derived from what the team did next",
        "checker | 330 m | [] | the answer that checker was given to check",
        "['suggested_answer', 'think', 'double_check'] | checker verifies; the answer that was checked becomes",
        "score derived from the verifier's words",
        "manager | 330 m | [] | it is the answer, which is a step of its own",
        "manager | 330 m | ['answer'] | the answer of the team",
        "manager | 330 | [] | the report repeats what the run before it found",
    ):
        assert line in said, line
    assert found.handovers[0] == "manager asked searcher: failed: Error: down"
    assert found.dropped is not None and "too_few_calls" in found.dropped and "--set" in found.advice
    (kept,) = explain(DistillConfig(), [written(tmp_path, tower=tower())], "tower")
    assert kept.dropped is None and kept.advice == ""


def test_every_step_is_explained_once() -> None:
    for profile in map(load_profile, ("web", "nano", "all")):
        made = convert_with_reasons(busy(), profile)
        assert made.trajectory == convert(busy(), profile)
        indices = [index for one in made.rewritings for index in one.steps]
        assert sorted(indices) == list(range(len(made.trajectory.steps)))


@given(run=team_runs())
def test_whatever_a_team_did_nothing_is_without_a_reason(run: TeamRun) -> None:
    made = convert_with_reasons(run, load_profile("web"))
    # Calls that were answered together share one step.
    assert {index for one in made.rewritings for index in one.steps} == set(range(len(made.trajectory.steps)))
    for one in made.rewritings:
        if not one.steps and one.moment.kind is not MomentKind.CANDIDATE:
            assert any(one.why) or (one.moment.kind is MomentKind.CHECK and not one.moment.text), one


def test_a_run_is_found_by_task_file_or_a_part_of_them(tmp_path: Path) -> None:
    folder = written(tmp_path, alpha=tower(), beta=tower(), beta2=busy())
    config = DistillConfig()
    assert [one.task for one in explain(config, [folder], "alpha")] == ["alpha"]
    assert [one.task for one in explain(config, [folder], "alpha.json")] == ["alpha"]
    assert [one.task for one in explain(config, [folder], "beta")] == ["beta"]  # the exact one
    assert sorted(one.task for one in explain(config, [folder], "bet")) == ["beta", "beta2"]
    with pytest.raises(StoreError, match="no run has the task id or file 'gamma'") as error:
        explain(config, [folder], "gamma")
    assert error.value.hint is not None and "alpha, beta" in error.value.hint
    (folder / "bad.json").write_text('{"a": 1}')
    with pytest.raises(StoreError, match=r"bad\.json.*cannot be read: no known trace format"):
        explain(config, [folder], "bad.json")


def test_an_evaluators_verdict_is_explained_too(tmp_path: Path) -> None:
    run = team(thinks("I know."), EvaluatorVerdict(judge="orm", score=0.9, text="Good."), thinks("330 m"))
    (found,) = explain(DistillConfig(), [written(tmp_path, judged=run)], "judged")
    assert "orm judges what comes before it" in whys(found) and "derived from the evaluator's number" in whys(found)


@pytest.mark.parametrize("width", [60, 160])
def test_the_command_prints_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    folder = written(tmp_path, busy=busy())
    done = CliRunner().invoke(app, ["distill", str(folder), "--explain", "busy"])
    assert done.exit_code == 0, done.output
    flat = " ".join(done.output.replace("│", " ").split())
    assert ("│" in done.output) == (width == 160)
    assert "I ask the searcher." in flat and "<web_search>" in flat and "coa distill drops this run." in flat
    assert sorted(path.name for path in tmp_path.iterdir()) == ["busy.json"]  # nothing is written


def test_the_command_prints_json(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["distill", str(written(tmp_path, busy=busy())), "--explain", "busy", "--json"])
    found = json.loads(done.output)
    assert found["task"] == "busy" and found["rows"][0]["kind"] == "left_out" and found["dropped"]
    assert [step["agent"] for step in found["rows"][1]["steps"]] == ["think", "plan"]
