"""Who may follow whom, worked by hand for each profile."""

from __future__ import annotations

import pytest

from coa.trajectory import Author, Rule, State, Step, check, load_profile, observation
from support.builders import WEB, make_trajectory, web_run


def rules(*parts: tuple[str, str], profile: str = "web") -> list[tuple[int, Rule]]:
    found = check(make_trajectory(*parts).steps, load_profile(profile))
    return [(violation.step, violation.rule) for violation in found]


CODE = "```py\nprint(1)\n```"
GOOD = {
    "mhqa": [
        ("think", ""),
        ("plan", "p"),
        ("think", ""),
        ("wiki_search", "q"),
        ("observation", "r"),
        ("think", ""),
        ("reflection", "r"),
        ("think", ""),
        ("answer", "a"),
    ],
    "code": [
        ("plan", "p"),
        ("think", ""),
        ("code", CODE),
        ("observation", "1"),
        ("reflection", "r"),
        ("think", ""),
        ("code", CODE),
        ("observation", "1"),
        ("reflection", "ok"),
        ("think", ""),
        ("answer", CODE),
    ],
    "math": [("plan", "p"), ("think", ""), ("answer", "\\boxed{4}")],
    "nano": [
        ("web_search", "q"),
        ("observation", "r"),
        ("crawl_page", "u | v"),
        ("observation", "r"),
        ("code", CODE),
        ("observation", "1"),
        ("suggested_answer", "a"),
        ("double_check", "score: 4"),
        ("answer", "a"),
    ],
    "all": [
        ("think", ""),
        ("plan", "p"),
        ("think", ""),
        ("code", CODE),
        ("observation", "1"),
        ("think", ""),
        ("visual_inspector", '```json\n{"file_path": "a.png", "question": "?"}\n```'),
        ("observation", "2"),
        ("think", ""),
        ("suggested_answer", "a"),
        ("think", ""),
        ("double_check", "Score: 3/4"),
        ("think", ""),
        ("answer", "a"),
    ],
}


@pytest.mark.parametrize("profile", GOOD)
def test_well_formed_runs_break_no_rule(profile: str) -> None:
    assert rules(*GOOD[profile], profile=profile) == []
    assert check(web_run().steps, WEB) == ()


START = [("think", ""), ("plan", "p"), ("think", "")]
SEARCH = [("web_search", "q"), ("observation", "r"), ("think", "")]
END = [("suggested_answer", "a"), ("think", ""), ("double_check", "score: 4"), ("think", ""), ("answer", "a")]
BROKEN = {
    "no plan first": ([("think", ""), *SEARCH, *END], [(1, Rule.ORDER)]),
    "no thought before the plan": ([("plan", "p"), *START[2:], *SEARCH, *END], [(0, Rule.MISSING_THOUGHT)]),
    "plan straight to answer": ([*START, ("answer", "a")], [(3, Rule.ORDER)]),
    "call without an answer": ([*START, SEARCH[0], ("think", ""), *END], [(4, Rule.MISSING_OBSERVATION)]),
    "no answer": ([*START, *SEARCH], [(6, Rule.NO_ANSWER)]),
    "after the answer": ([*START, *SEARCH, *END, ("think", "more")], [(11, Rule.AFTER_ANSWER)]),
    "unknown agent": ([*START, ("bake", "x"), *SEARCH, *END], [(3, Rule.UNKNOWN_AGENT)]),
    "empty query": ([*START, ("web_search", " "), *SEARCH[1:], *END], [(3, Rule.SHAPE)]),
    "low score, then the answer": (
        [*START, *SEARCH, *END[:2], ("double_check", "score: 2"), ("think", ""), ("answer", "a")],
        [(10, Rule.VERDICT_IGNORED)],
    ),
    "no score": (
        [*START, *SEARCH, *END[:2], ("double_check", "fine"), ("think", ""), ("answer", "a")],
        [(8, Rule.VERDICT_UNREADABLE)],
    ),
    "poor progress, then a search": (
        [*START, *SEARCH, ("reflection", "trajectory progress: poor"), ("think", ""), *SEARCH, *END],
        [(8, Rule.VERDICT_IGNORED)],
    ),
    "observation after the answer": (
        [*START, *SEARCH, *END, ("observation", "x")],
        [(11, Rule.UNEXPECTED_OBSERVATION)],
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_each_slip_is_found_where_it_is(case: str) -> None:
    parts, expected = BROKEN[case]
    assert rules(*parts) == expected


def test_calls_in_a_row_need_one_thought_before_the_first() -> None:
    call = SEARCH[:2]
    assert rules(*START, *call, *call, *SEARCH, *END) == []
    assert rules(*START, *call, *END) == [(5, Rule.MISSING_THOUGHT)]  # the suggestion is no call
    assert rules(*START[:2], *call, *SEARCH, *END) == [(2, Rule.MISSING_THOUGHT), (4, Rule.MISSING_THOUGHT)]
    good = ("reflection", "trajectory progress: good")
    assert rules(*START, *SEARCH, good, *SEARCH, *END) == [(7, Rule.MISSING_THOUGHT)]


def test_good_reflection_leaves_the_way_open() -> None:
    good = ("reflection", "information conflict: good\ntool effectiveness: average\ntrajectory progress: good")
    assert rules(*START, *SEARCH, good, ("think", ""), *SEARCH, *END) == []


def test_a_second_plan_in_code_is_once_too_often() -> None:
    parts = [("plan", "p"), ("plan", "p"), ("think", ""), ("answer", CODE)]
    assert rules(*parts, profile="code") == [(1, Rule.ORDER), (1, Rule.TOO_OFTEN)]


def test_an_observation_that_the_model_wrote_is_a_forgery() -> None:
    steps = (*web_run().steps[:4], Step(agent="observation", text="I am sure"), *web_run().steps[5:])
    found = [violation.rule for violation in check(steps, WEB)]
    assert found[0] is Rule.FORGED_OBSERVATION and Rule.MISSING_OBSERVATION in found


def test_the_environment_may_not_act_for_the_model() -> None:
    steps = [step.model_copy(update={"author": Author.ENVIRONMENT}) for step in web_run().steps[:2]]
    assert [violation.rule for violation in check(steps, WEB)][:2] == [Rule.FOREIGN_AUTHOR] * 2


def legal(*steps: Step) -> set[str]:
    state = State.begin(WEB)
    for step in steps:
        state, _ = state.advance(step)
    return set(state.legal())


def test_the_legal_next_tags() -> None:
    think, plan, search = (Step(agent=agent, text="x") for agent in ("think", "plan", "web_search"))
    assert legal() == {"think"}  # everyone needs a thought first
    assert legal(think) == {"plan"}
    assert legal(think, plan, think) == {"web_search", "crawl_page", "suggested_answer"}
    assert legal(think, plan, think, search) == set()
    # One thought is enough for calls in a row; everyone else needs a new one.
    assert legal(think, plan, think, search, observation("r")) == {"think", "web_search", "crawl_page"}
    assert legal(think, plan, search, observation("r")) == {"think"}
    checked = Step(agent="double_check", text="score: 1")
    assert legal(think, plan, think, Step(agent="suggested_answer", text="a"), think, checked, think) == {"plan"}
    assert legal(*web_run().steps) == set()
    code = State.begin(load_profile("code"))
    assert set(code.legal()) == {"think", "plan"}
