"""One signature for all scorers, the cascade, and what a run's score says."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from coa.errors import ModelError, ScoringError
from coa.models.scripted import ScriptedModel
from coa.scoring import (
    PureScorer,
    Scorer,
    Verdict,
    agreement,
    agreement_of,
    exact_match,
    register,
    score_trajectory,
    scorer_for,
    scorer_names,
    verdict_of,
)
from coa.scoring.auto import rules_for
from coa.scoring.registry import _FACTORIES
from coa.trajectory import CodeTests, Failure, FailureSite, Stop, Task
from support.builders import make_trajectory

RIGHT = '{"reason": "same", "verdict": "correct"}'
WRONG = '{"reason": "other", "verdict": "incorrect"}'


def task(gold: str | list[str], question: str = "?", profile: str | None = None, **meta: object) -> Task:
    return Task(id="t", question=question, answer=gold, profile=profile, meta=meta)


def ask(scorer: Scorer, asked: Task, answer: str | None) -> Verdict:
    async def one() -> Verdict:
        try:
            return await scorer.score(asked, answer)
        finally:
            await scorer.close()

    return asyncio.run(one())


@pytest.mark.parametrize("name", ["exact", "f1", "numeric", "choice", "math", "auto"])
def test_every_scorer_knows_no_answer_from_no_gold(name: str) -> None:
    assert ask(scorer_for(name), task("B"), None).value == 0.0
    assert ask(scorer_for(name), task("B"), " \n").value == 0.0
    assert ask(scorer_for(name), task([]), "B").value is None
    assert ask(scorer_for(name), task(" "), "B").value is None


@pytest.mark.parametrize("name", ["exact", "f1", "numeric", "choice", "math", "auto"])
def test_a_gold_is_right_by_every_scorer_that_can_read_it(name: str) -> None:
    gold, question = ("B", "?\nA. x\nB. y") if name == "choice" else ("42", "?")
    assert ask(scorer_for(name), task(gold, question), gold).value == 1.0


def test_an_unknown_scorer_is_named_with_those_there_are() -> None:
    assert {"auto", "choice", "exact", "f1", "judge", "math", "numeric"} <= set(scorer_names())
    with pytest.raises(ScoringError, match="exact, f1"):
        scorer_for("exakt")
    with pytest.raises(ScoringError, match="--judge URL"):
        scorer_for("judge")


@pytest.mark.parametrize(
    ("asked", "rules"),
    [
        (task("Rome"), ["exact", "numeric"]),
        (task(r"\frac{1}{2}"), ["exact", "numeric", "math"]),
        (task("5", profile="math"), ["math"]),
        (task("5", ability="math"), ["math"]),
        (task("B", "?\nA. x\nB. y"), ["choice", "exact"]),
        (Task(id="t", question="?", tests=CodeTests(functional="assert f(1)")), ["code"]),
    ],
)
def test_the_task_decides_which_rules_are_asked(asked: Task, rules: list[str]) -> None:
    assert rules_for(asked) == rules


def test_a_profile_of_ones_own_may_say_that_its_answers_are_mathematics(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('extends = "web"\nanswers = "math"\n')
    assert rules_for(task("5", profile=str(mine))) == ["math"]
    assert rules_for(task("5", profile="web")) == rules_for(task("5", profile="gone.toml")) == ["exact", "numeric"]


@pytest.mark.parametrize(
    ("gold", "answer", "value", "rule", "calls"),
    [
        ("Rome", "rome", 1.0, "exact", 0),
        ("1000 m", "1 km", 1.0, "numeric", 0),
        ("1000", "1001", 0.0, "numeric", 0),  # both are plain numbers: nothing to ask a judge
        ("Rome", "the eternal city", 1.0, "judge", 1),
        ("42", "forty-two", 1.0, "judge", 1),
    ],
)
def test_the_cascade_asks_the_judge_last_and_says_who_decided(
    gold: str, answer: str, value: float, rule: str, calls: int
) -> None:
    judge = ScriptedModel(lambda context: RIGHT)
    verdict = ask(scorer_for("auto", judge=judge), task(gold), answer)
    assert (verdict.value, verdict.rule, len(judge.calls)) == (value, rule, calls)


def test_without_a_judge_the_last_rule_that_found_no_match_counts() -> None:
    verdict = ask(scorer_for("auto"), task("Rome"), "the eternal city")
    assert verdict.value == 0.0 and verdict.rule == "exact" and verdict.detail["tried"] == ["exact", "numeric"]


def test_a_judge_without_a_verdict_leaves_it_unscored_though_exact_found_no_match() -> None:
    judge = ScriptedModel(lambda context: ModelError("gone"))
    verdict = ask(scorer_for("auto", judge=judge), task("Rome"), "the eternal city")
    assert verdict.value is None and verdict.rule == "judge"


def test_a_number_before_a_set_is_not_that_number() -> None:
    # HLE 181: the rule for numbers took the set for a unit.
    assert ask(scorer_for("auto"), task("2"), r"$2\mathbb{Z}$").value == 0.0
    assert ask(scorer_for("auto"), task("2"), "2n").value == ask(scorer_for("auto"), task("2n"), "2").value == 0.0


def test_mathematics_in_the_cascade() -> None:
    verdict = ask(scorer_for("auto"), task(r"\frac{1}{2}"), r"\boxed{\frac{2}{4}}")
    assert verdict.value == 1.0 and verdict.rule == "math"


def test_a_task_with_tests_is_left_to_the_scorer_for_code(monkeypatch: pytest.MonkeyPatch) -> None:
    with_tests = Task(id="t", question="?", tests=CodeTests(functional="assert f(1)"))
    monkeypatch.delitem(_FACTORIES, "code", raising=False)
    judge = ScriptedModel(lambda context: RIGHT)
    missing = ask(scorer_for("auto", judge=judge), with_tests, "print(1)")
    assert missing.value is None and not judge.calls

    class Runs:
        name = "code"

        async def score(self, asked: Task, answer: str | None) -> Verdict:
            return Verdict(1.0, "all tests passed", "code")

        async def close(self) -> None:
            pass

    monkeypatch.setitem(_FACTORIES, "code", _FACTORIES["exact"])
    register("code", lambda means: Runs())
    assert ask(scorer_for("auto"), with_tests, "print(1)").value == 1.0


def test_a_scorer_that_breaks_leaves_one_answer_unscored() -> None:
    def broken(asked: Task, answer: str) -> Verdict:
        raise ZeroDivisionError("oh")

    verdict = asyncio.run(verdict_of(PureScorer("mine", broken), task("x"), "y"))
    assert verdict.value is None and verdict.broken and "ZeroDivisionError: oh" in verdict.reason
    assert asyncio.run(verdict_of(PureScorer("mine", broken), task("x"), "x")).value is None
    endless = PureScorer("mine", lambda asked, answer: Verdict(float("nan"), ""))
    assert asyncio.run(verdict_of(endless, task("x"), "y")).value is None


def test_an_answer_that_breaks_a_scorer_which_reads_the_gold_is_wrong() -> None:
    def by_integer(asked: Task, answer: str) -> Verdict:
        return Verdict(float(int(answer) == int(asked.answer[0])), "compared")

    scorer = PureScorer("mine", by_integer)
    verdict = asyncio.run(verdict_of(scorer, task("7"), "seven"))
    assert verdict.value == 0.0 and "ValueError" in verdict.reason and not verdict.certain
    assert asyncio.run(verdict_of(scorer, task("seven"), "7")).value is None  # the gold breaks it too


@pytest.mark.parametrize("text", ["**" + "a" * 100_000, "```python\n" * 10_000, "`" + " " * 100_000 + "a"])
def test_a_long_answer_is_read_in_linear_time(text: str) -> None:
    # The square of the length would take minutes, which no run of this test would survive.
    assert exact_match(text, text) and ask(scorer_for("exact"), task("b"), text).value == 0.0


def test_a_function_of_ones_own_is_a_scorer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_scorers.py").write_text(
        "def half(task, answer):\n    return 0.5\n"
        "async def length(task, answer):\n    return len(answer) if answer else None\n"
        "def words(task, answer):\n    return 'good'\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert ask(scorer_for("my_scorers:half"), task("x"), "y").value == 0.5
    assert ask(scorer_for("my_scorers:length"), task("x"), "yes").value == 3.0
    assert ask(scorer_for("my_scorers:length"), task("x"), None).value is None
    assert ask(scorer_for("my_scorers:words"), task("x"), "y").value is None
    with pytest.raises(ScoringError, match="module:function"):
        scorer_for("my_scorers:nothing")


def test_another_packages_entry_point_is_a_scorer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "graders-1.dist-info"
    info.mkdir()
    (tmp_path / "graders.py").write_text("def near(task, answer):\n    return 0.25\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: graders\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[coa.scorers]\nnear = graders:near\nexact = graders:near\ngone = graders:no\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert "near" in scorer_names()
    assert ask(scorer_for("near"), task("x"), "y").value == 0.25
    assert ask(scorer_for("exact"), task("x"), "x").value == 1.0  # a name of ours cannot be taken
    with pytest.raises(ScoringError, match="gone of graders:no cannot be loaded"):
        scorer_for("gone")


def test_a_scored_run_keeps_the_value_and_who_decided() -> None:
    run = asyncio.run(score_trajectory(make_trajectory(("answer", "ada.")), scorer_for("auto")))
    assert run.scores["auto"].value == 1.0 and run.scores["auto"].reason.startswith("exact: ")
    named = asyncio.run(score_trajectory(run, scorer_for("f1"), name="words"))
    assert set(named.scores) == {"auto", "words"}


def test_a_run_that_ended_without_an_answer_is_wrong_and_one_that_broke_is_unscored() -> None:
    silent = make_trajectory(("think", "hm"), stop=Stop.UNANSWERED)
    assert asyncio.run(score_trajectory(silent, scorer_for("exact"))).scores["exact"].value == 0.0
    failure = Failure(site=FailureSite.MODEL, message="connection lost")
    broke = make_trajectory(("think", "hm"), stop=Stop.FAILED, failure=failure)
    score = asyncio.run(score_trajectory(broke, scorer_for("exact"))).scores["exact"]
    assert score.value is None and "connection lost" in score.reason
    stopped = make_trajectory(("think", "hm"), stop=Stop.INTERRUPTED)
    assert asyncio.run(score_trajectory(stopped, scorer_for("exact"))).scores["exact"].value is None


def test_agreement_by_hand() -> None:
    pairs = [(1.0, 1.0)] * 4 + [(0.0, 0.0)] * 3 + [(1.0, 0.0)] * 2 + [(0.0, 1.0)]
    found = agreement([*pairs, (None, 1.0), (0.0, None), (None, None)])
    assert (found.both_right, found.both_wrong, found.only_first, found.only_second) == (4, 3, 2, 1)
    assert (found.first_unscored, found.second_unscored, found.neither) == (1, 1, 1)
    assert found.compared == 10 and found.rate == pytest.approx(0.7)
    # chance: 0.6 * 0.5 + 0.4 * 0.5 = 0.5; (0.7 - 0.5) / (1 - 0.5)
    assert found.kappa == pytest.approx(0.4)
    assert agreement([]).rate is None and agreement([(1.0, 1.0)]).kappa is None


def test_agreement_is_taken_over_runs_that_both_scored() -> None:
    run = make_trajectory(("answer", "Ada"))
    runs = [run.scored("judge", 1.0).scored("exact", 0.0), run.scored("judge", 1.0), run.scored("exact", 1.0)]
    found = agreement_of(runs, "judge", "exact")
    assert (found.only_first, found.compared) == (1, 1)
