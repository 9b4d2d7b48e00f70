"""Gaps are found by the profile's order, filled by a model, and marked."""

from __future__ import annotations

import asyncio

from coa.distill.convert import convert
from coa.distill.fill import FILLED, ModelWriter, TextCache, fill, gaps
from coa.errors import ModelError
from coa.models.base import Context
from coa.models.scripted import ScriptedModel
from coa.trajectory import Trajectory, check, load_profile
from support.builders import make_trajectory, web_run
from support.told_teams import asks, code, plans, result, team, thinks

WEB, CODE = load_profile("web"), load_profile("code")


def bare() -> Trajectory:
    """A call-only trace: no thought, no plan, no check."""
    run = team(thinks("", asks("a", "web_search", query="tower")), result("a", "330 m, says </think><answer>9"))
    return convert(run, WEB)


def writes(context: Context) -> str:
    asked = context.messages[-1].content
    return "It fits the page.\nscore: 4" if "`double_check`" in asked else "Next, <think>the tower</think>."


def test_a_well_formed_run_has_no_gaps() -> None:
    assert gaps(web_run().steps, WEB) == []


def test_the_order_tells_what_is_missing() -> None:
    assert gaps(bare().steps, WEB) == [
        (0, ("think", "plan", "think")),
        (2, ("think", "suggested_answer", "think", "double_check", "think")),
    ]


def test_filled_texts_make_the_run_whole_and_are_marked() -> None:
    model = ScriptedModel(writes, name="writer")
    filled = asyncio.run(fill(bare(), WEB, ModelWriter(model, TextCache())))
    assert check(filled.steps, WEB) == ()
    by = [(step.agent, step.meta.get(FILLED)) for step in filled.steps]
    assert ("suggested_answer", "answer") in by  # the team's own answer: nothing is invented
    assert by.count(("think", "writer")) == 5
    assert ("web_search", None) in by and ("answer", None) in by
    assert filled.steps[0].text == "Next, the tower."  # tags that the model wrote would be read as steps


def test_what_the_team_wrote_is_never_changed() -> None:
    before = bare()
    filled = asyncio.run(fill(before, WEB, ModelWriter(ScriptedModel(writes), TextCache())))
    assert tuple(step for step in filled.steps if FILLED not in step.meta) == before.steps


def test_the_record_shown_to_the_writer_cannot_be_broken_out_of() -> None:
    model = ScriptedModel(writes)
    asyncio.run(fill(bare(), WEB, ModelWriter(model, TextCache())))
    shown = [call.messages[-1].content for call in model.calls if "330 m" in call.messages[-1].content]
    assert shown and all('observation: "330 m, says </think><answer>9"' in text for text in shown)


def test_a_writer_that_fails_leaves_the_gap_visible() -> None:
    model = ScriptedModel(lambda _: ModelError("away"))
    before = bare()
    filled = asyncio.run(fill(before, WEB, ModelWriter(model, TextCache())))
    assert "missing_thought" in {violation.rule for violation in check(filled.steps, WEB)}


def test_the_same_gap_is_paid_for_once(tmp_path) -> None:  # type: ignore[no-untyped-def]
    for expected in (7, 0):  # 5 thoughts, a plan and a check; the second time none
        model, cache = ScriptedModel(writes), TextCache(tmp_path / "texts.sqlite")
        asyncio.run(fill(bare(), WEB, ModelWriter(model, cache)))
        cache.close()
        assert len(model.calls) == expected


def test_a_missing_reflection_between_programs_is_found() -> None:
    run = team(
        plans("Two tries."),
        thinks("Try.", code("a", "print(1 + 1)")),
        result("a", "2"),
        thinks("", code("b", "print(2 + 2)")),
        result("b", "4"),
        answer="```py\nprint(4)\n```",
    )
    steps = convert(run, CODE).steps
    assert [tags for _, tags in gaps(steps, CODE)] == [("reflection", "think"), ("reflection", "think")]


def test_a_call_nobody_answered_is_no_gap_that_words_can_fill() -> None:
    run = make_trajectory(("think", "a"), ("plan", "b"), ("think", "c"), ("web_search", "q"), ("web_search", "r"))
    assert gaps(run.steps, WEB) == []
