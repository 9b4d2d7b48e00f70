"""The grammar of a step: whatever it lets through is read without a repair, and it always knows the way to the end."""

from __future__ import annotations

import random
import re

import pytest

from coa.trajectory import Form, Parser, Profile, Reading, Shape, State, load_profile
from coa.trajectory.grammar import Grammar, Move, home, language, moves, to_gbnf
from coa.trajectory.grammar.language import DEAD, DONE
from coa.trajectory.profile import Agent, Kind, shipped, with_tool
from coa.trajectory.shapes import ArgumentField, FieldType, read
from coa.trajectory.types import Step

SHAPES = {
    "text": Shape(),
    "line": Shape(form=Form.LINE),
    "list": Shape(form=Form.LIST, separator="|"),
    "code": Shape(form=Form.CODE),
    "code with stdin": Shape(form=Form.CODE, stdin=True),
    "json": Shape(form=Form.JSON),
    "json with fields": Shape(
        form=Form.JSON,
        fields={
            "name": ArgumentField(),
            "count": ArgumentField(type=FieldType.INTEGER),
            "share": ArgumentField(type=FieldType.NUMBER, required=False),
            "sure": ArgumentField(type=FieldType.BOOLEAN, required=False),
            "more": ArgumentField(type=FieldType.OBJECT),
            "items": ArgumentField(type=FieldType.ARRAY, required=False),
        },
    ),
    "boxed": Shape(form=Form.BOXED),
}


def grammar(profile: Profile, tag: str, outcome: bool | None = None) -> Grammar:
    made = language(profile).grammar([Move(tag, outcome)], ends_line=True)
    assert made is not None
    return made


def walk(made: Grammar, rng: random.Random, most: int = 300) -> str:
    """A random text of the grammar: any byte that is allowed, and from `most` on only such as lead towards the end.

    Bytes that mean something are tried often, or the walk would hardly ever meet them.
    """
    lang, state, spelled = made.language, made.start, bytearray()
    while state != DONE:
        ways = [(b, after) for b in range(256) if (after := lang.table[state * 256 + b]) != DEAD]
        if len(spelled) >= most:
            ways = [way for way in ways if lang.distance[way[1]] < lang.distance[state]]
        telling = [way for way in ways if chr(way[0]) in '<>/`\n{}[]",:\\|thinkcodeansw 19']
        byte, state = rng.choice(telling if telling and rng.random() < 0.7 else ways)
        spelled.append(byte)
    return spelled.decode()  # strictly: invalid UTF-8 would raise


def with_shape(shape: Shape) -> Profile:
    return with_tool(load_profile("nano"), "thing", title="thing", does="does.", shape=shape)


@pytest.mark.parametrize("name", SHAPES)
def test_whatever_a_shape_lets_through_is_read_without_a_repair(name: str) -> None:
    profile, rng = with_shape(SHAPES[name]), random.Random(name)
    for most in [0, 5, 40, 200] * 25:
        text = walk(grammar(profile, "thing"), rng, most)
        parser = Parser(profile)
        parser.feed(text)
        parser.finish()
        [step] = parser.steps
        assert step.agent == "thing" and not step.repairs, text
        reading = read(SHAPES[name], step.text)
        assert isinstance(reading, Reading) and not reading.repairs, text
        assert any(reading.arguments.values()) or name.startswith("json"), text


@pytest.mark.parametrize("profile", shipped())
def test_every_agent_of_every_profile_writes_what_the_protocol_takes(profile: str) -> None:
    chosen, rng = load_profile(profile), random.Random(profile)
    for tag, agent in chosen.agents.items():
        for outcome in (None, True, False) if agent.verdict else (None,):
            for most in (0, 10, 60, 200):
                text = walk(grammar(chosen, tag, outcome), rng, most)
                parser = Parser(chosen)
                parser.feed(text)
                parser.finish()
                [step] = parser.steps
                assert step.agent == tag and not step.repairs and step.text.strip(), text
                if agent.verdict:
                    verdict = agent.verdict.holds(step.text)
                    assert verdict is not None and (outcome is None or verdict is outcome), text


@pytest.mark.parametrize(
    "text",
    [
        "<think>so</plan>",
        "<think>a <plan>b</think>",
        "<think>a </ THINK\t>b</think>",
        "<think>a <   observation>b</think>",
        "<think>a\r\nb</think>",
        "<think></think>",
        "<think> \n</think>",
        "<Think>a</think>",
        "so <think>a</think>",
        "<think>a</think> ",
        "<think>a</think>\n<plan>b</plan>",
    ],
)
def test_what_would_need_a_repair_is_not_let_through(text: str) -> None:
    assert not grammar(load_profile("nano"), "think").admits(text, whole=True)


@pytest.mark.parametrize(
    "text",
    [
        "<think>if a < b and c</d: <b>x</b> <thinking> </planet></think>",
        "<think>a </thin</think>",
        "<think><</think>",
        "<think>naïve 思考 🧪</think>",
        "<think><\\plan>b<\\/plan></think>",
    ],
)
def test_other_angle_brackets_and_letters_are_free(text: str) -> None:
    assert grammar(load_profile("nano"), "think").admits(text, whole=True)


def test_a_step_begins_on_the_line_before_only_where_that_is_open() -> None:
    lang = language(load_profile("nano"))
    middle, start = (lang.grammar([Move("plan")], ends_line=ends) for ends in (False, True))
    assert middle is not None and start is not None
    assert middle.admits("\n<plan>a</plan>", whole=True) and middle.admits("<plan>a</plan>", whole=True)
    assert start.admits("<plan>a</plan>", whole=True) and not start.admits("\n<plan>a</plan>", whole=True)


def test_the_distance_is_the_length_of_the_shortest_ending() -> None:
    made = grammar(load_profile("nano"), "code")
    assert made.distance == len("<code>\n```py\nx\n```\n</code>")
    inside = made.after("<code>\n```py\nprint(1)")
    assert inside is not None and inside.distance == len("\n```\n</code>")
    assert to_gbnf(inside.closing()) == 'root ::= "\\u000A\\u0060\\u0060\\u0060\\u000A\\u003C\\u002Fcode\\u003E"\n'
    assert made.after("<plan>") is None


@pytest.mark.parametrize("name", shipped())
def test_servers_cannot_read_the_letters_after_an_escape_as_part_of_it(name: str) -> None:
    profile = load_profile(name)
    made = language(profile).grammar([Move(tag) for tag in profile.agents], ends_line=True)
    assert made is not None
    rules = to_gbnf(made)
    assert not re.search(r"\\(?!u[0-9A-F]{4})", rules)  # xgrammar takes \x3Cc for U+03CC
    assert re.findall(r"\[\^.{6}", rules) and set(re.findall(r"\[\^(.{6})", rules)) == {r"\u0000"}  # never a NUL


def test_of_two_verdicts_only_the_last_score_counts() -> None:
    web = load_profile("web")
    text = "<double_check>score: 1\nbut then\nscore: {}</double_check>"
    passing, failing = grammar(web, "double_check", True), grammar(web, "double_check", False)
    assert passing.admits(text.format(3), whole=True) and not failing.admits(text.format(3), whole=True)
    assert failing.admits(text.format(2), whole=True) and not passing.admits(text.format(2), whole=True)
    assert not passing.admits(text.format(5), whole=True)


def _agent(**fields: object) -> Agent:
    return Agent.model_validate({"title": "t", "does": "d.", "kind": Kind.ROLE, **fields})


def _counted() -> Profile:
    """`check` may be done twice and draft once: a check that fails after the draft is used up would be a corner."""
    verdict = {"read": "score", "passed": ["answer"], "failed": ["draft", "check"]}
    agents = {
        "draft": _agent(next=("check",), max=1),
        "check": _agent(next=("draft", "check", "answer"), max=2, verdict=verdict),
        "answer": _agent(kind=Kind.ANSWER),
    }
    return Profile(name="counted", about="", start=("draft", "check"), agents=agents, prompt="p")


def test_a_verdict_that_would_lead_into_a_corner_cannot_be_written() -> None:
    state = State.begin(_counted()).after("draft")
    assert moves(state, ()) == (Move("check"),)  # it may fail: one check is left
    assert moves(state.after("check", False), ()) == (Move("check", True),)


def test_the_way_home_is_legal_and_avoids_tools() -> None:
    web = load_profile("web")
    state, _ = State.begin(web).after("think").after("plan").advance(Step(agent="think", text="hm"))
    way = home(state, web.tools)
    assert way is not None
    tags = [move.tag for move in way]
    assert tags == ["suggested_answer", "think", "double_check", "think", "answer"]
    assert way[2].outcome is True
    assert home(State.begin(load_profile("mhqa")), ()) is None  # nothing but a search may begin


def test_profiles_that_write_alike_share_a_language() -> None:
    one, other = (with_shape(SHAPES["json with fields"]) for _ in range(2))
    assert language(one) is language(other) is not language(load_profile("nano"))
