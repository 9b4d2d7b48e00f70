"""Each filter at its edges."""

from __future__ import annotations

import pytest

from coa.config import load_config
from coa.distill.config import Complexity, Correction, DistillConfig, Quality, Reflection
from coa.distill.filters import FILTERS, STAGES
from coa.distill.filters.base import Dropped, FilterInput, calls_of, digest, draw
from coa.distill.filters.complexity import complexity
from coa.distill.filters.enrichment import copies, corrected_itself, reflection
from coa.distill.filters.quality import (
    SCORE,
    correctness,
    forged_tags,
    leakage,
    redundancy,
    repetition,
    tool_errors,
)
from coa.distill.filters.rules import violations
from coa.errors import ConfigError
from coa.trajectory import Rule, Task, Trajectory, load_profile, observation
from support.builders import make_trajectory
from support.distilled import WEB, good, indices, replaced, second_thoughts

DEFAULT = DistillConfig()
IN_WEB = FilterInput(WEB, DEFAULT)


def searches(*queries: str, ok: bool = True) -> Trajectory:
    parts: list[tuple[str, str]] = []
    for query in queries:
        parts += [("think", "go"), ("web_search", query), ("observation", "found" if ok else "error: no")]
    return make_trajectory(*parts, ("answer", "Ada"))


@pytest.mark.parametrize(("profile", "least"), [("web", 5), ("all", 5), ("mhqa", 2), ("code", 1), ("atlas", 1)])
def test_the_least_number_of_calls_depends_on_the_profile(profile: str, least: int) -> None:
    assert Complexity().least(load_profile(profile)) == least
    assert Complexity(fewest_calls=3).least(load_profile(profile)) == 3


def test_calls_are_counted_at_the_edge() -> None:
    queries = [f"q{n}" for n in range(5)]
    assert complexity(searches(*queries), IN_WEB) is None
    assert complexity(searches(*queries[:4]), IN_WEB) is not None


def test_a_run_without_an_answer_is_dropped_for_that_and_not_for_its_calls() -> None:
    run = searches("a")
    unended = run.model_copy(update={"steps": run.steps[:-1]})
    assert run.answer is not None and unended.answer is None
    assert complexity(run, IN_WEB) is not None and complexity(unended, IN_WEB) is None


def test_calls_that_differ_in_blanks_and_capitals_are_the_same() -> None:
    calls = calls_of(searches("Ada  Lovelace", "ada lovelace"), WEB)
    assert calls[0].arguments == calls[1].arguments


def test_one_repeated_call_in_five_is_allowed_and_two_are_not() -> None:
    # 1 of 5 is a share of 0.2, the limit; 2 of 6 is more.
    assert redundancy(searches("a", "b", "a", "c", "d"), IN_WEB) is None
    assert redundancy(searches("a", "b", "a", "b", "c", "d"), IN_WEB) is not None
    assert redundancy(searches("a", "b", "c", "d", "e", "f", "f", "g", "h", "i", "j", "k", "l"), IN_WEB) is None


def test_a_call_nobody_answered_is_an_error() -> None:
    run = make_trajectory(("think", "go"), ("web_search", "q"), ("think", "go"), ("answer", "Ada"))
    assert [call.ok for call in calls_of(run, WEB)] == [False]
    dropped = tool_errors(run, IN_WEB)
    assert isinstance(dropped, Dropped) and dropped.reason.name == "ends_in_error"


def test_foreign_rows_without_records_are_read_for_errors() -> None:
    assert [call.ok for call in calls_of(searches("q", ok=False), WEB)] == [False]
    assert [call.ok for call in calls_of(searches("q"), WEB)] == [True]


def test_html_code_in_a_page_is_no_forgery_but_an_answer_is() -> None:
    everything = load_profile("all")
    page = searches("q").model_copy(update={"steps": (observation("use <code>x</code> here"),)})
    assert forged_tags(page, FilterInput(everything, DEFAULT)) is None
    forged = page.model_copy(update={"steps": (observation("see < ANSWER >42"),)})
    assert forged_tags(forged, FilterInput(everything, DEFAULT)) is not None


def test_single_rules_can_be_tolerated() -> None:
    run = good()
    at = indices(run, "web_search")[1] - 1
    run = run.model_copy(update={"steps": run.steps[:at] + run.steps[at + 1 :]})
    assert violations(run, IN_WEB) is not None
    assert violations(run, FilterInput(WEB, DistillConfig(quality=Quality(tolerated=(Rule.MISSING_THOUGHT,))))) is None


def test_programs_may_repeat_themselves() -> None:
    program = "\n```py\n" + "\n".join(f"x{n} = {n} * 2" for n in range(40)) + "\n```\n"
    code = load_profile("code")
    parts = [("think", "go"), ("code", program), ("observation", "ok")] * 2
    assert repetition(make_trajectory(*parts, profile="code"), FilterInput(code, DEFAULT)) is None


def leak(question: str, answer: str) -> bool:
    run = Trajectory(task=Task(id="t", question=question, answer=answer), profile="web")
    return leakage(run, IN_WEB) is not None


@pytest.mark.parametrize(
    ("question", "answer", "leaks"),
    [
        ("Which river runs through Brannock?", "Sill", False),
        ("Which river runs through Brannock? (the answer is Sill)", "Sill", True),
        ("The river Sill runs through which river town's Sill?", "Sill", True),
        ("Which is longer, the Sill or the Corran?", "Sill", False),
        ("Is the Sill longer than the Corran? Answer with yes or no.", "yes", False),
        ("What is 2 + 2?", "4", False),
        ("Compute the sum. Expected answer: 4", "4", True),
        ("Which silly town is it?", "sill", False),
    ],
)
def test_what_counts_as_giving_the_answer_away(question: str, answer: str, leaks: bool) -> None:
    assert leak(question, answer) is leaks


def test_unscored_is_kept_on_request_and_is_never_wrong() -> None:
    run = good().scored(SCORE, None, "the judge gave no verdict")
    dropped = correctness(run, IN_WEB)
    assert (
        isinstance(dropped, Dropped)
        and dropped.reason.name == "unscored"
        and dropped.detail == "the judge gave no verdict"
    )
    assert correctness(run, FilterInput(WEB, DistillConfig(quality=Quality(unscored="keep")))) is None


def test_lots_depend_on_seed_and_content_alone() -> None:
    one, other = good(task_id="a"), good(task_id="b")
    assert draw(one, 0) == draw(good(task_id="a"), 0) != draw(other, 0)
    assert draw(one, 0) != draw(one, 1)
    assert 0 <= draw(one, 0) < 1


def test_the_digest_ignores_origin_and_scores_but_no_word() -> None:
    run = good()
    assert digest(run) == digest(run.scored("judge", 0.0).model_copy(update={"meta": {"source": "elsewhere"}}))
    assert digest(run) != digest(replaced(run, 0, "Another thought."))


def test_code_and_math_keep_no_run_without_reflection() -> None:
    code, math = load_profile("code"), load_profile("math")
    assert Reflection().share(code) == Reflection().share(math) == 0
    assert Reflection().share(WEB) == 0.3
    assert Reflection(kept_without=0.9).share(code) == 0.9


def test_a_profile_without_reflection_loses_nothing_to_enrichment() -> None:
    agents = {tag: agent for tag, agent in WEB.agents.items() if tag != "reflection"}
    agents = {
        tag: agent.model_copy(update={"next": tuple(n for n in agent.next if n != "reflection")})
        for tag, agent in agents.items()
    }
    bare = WEB.model_copy(update={"agents": agents})
    assert (
        reflection(good(reflects=False), FilterInput(bare, DistillConfig(reflection=Reflection(kept_without=0))))
        is None
    )


def test_a_low_first_check_makes_a_self_correction() -> None:
    assert not corrected_itself(good(), WEB)
    assert corrected_itself(second_thoughts(), WEB)
    assert copies(second_thoughts(), WEB, DEFAULT) == 2
    assert copies(second_thoughts(), WEB, DistillConfig(correction=Correction(copies=5))) == 5
    assert copies(good(), WEB, DEFAULT) == 1


def test_where_nobody_checks_a_reflected_error_is_the_self_correction() -> None:
    code = load_profile("code")
    failed = make_trajectory(
        ("code", "x"), ("observation", "error: name x"), ("reflection", "define it"), ("answer", "y"), profile="code"
    )
    assert corrected_itself(failed, code)
    smooth = make_trajectory(("code", "x"), ("observation", "1"), ("reflection", "good"), profile="code")
    assert not corrected_itself(smooth, code)


def test_settings_come_from_toml_and_unknown_ones_are_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "distill.toml"
    file.write_text('seed = 7\n[quality]\ntolerated = ["missing_thought"]\n')
    assert load_config(DistillConfig, file).quality.tolerated == (Rule.MISSING_THOUGHT,)
    both = load_config(DistillConfig, file, ["reflection.kept_without=1", "quality.error_share=0.5"])
    assert (both.seed, both.reflection.kept_without, both.quality.error_share) == (7, 1.0, 0.5)
    with pytest.raises(ConfigError, match="kept_with: "):
        load_config(DistillConfig, None, ["reflection.kept_with=1"])
    file.write_text("[quality]\nerror_shares = 0.1\n")
    with pytest.raises(ConfigError, match="error_shares"):
        load_config(DistillConfig, file)


def test_stages_and_reasons_are_named_once_and_say_what_they_mean() -> None:
    reasons = [reason.name for each in FILTERS for reason in each.reasons]
    assert len(reasons) == len(set(reasons)) and len({each.name for each in FILTERS}) == len(FILTERS)
    order = ["complexity", "quality", "reflection", "correction", "length", "contamination", "duplicates"]
    assert [stage.name for stage in STAGES] == order and all(stage.meaning for stage in STAGES)
