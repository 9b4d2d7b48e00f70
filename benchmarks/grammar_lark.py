"""The steps of a profile in the Lark notation of llguidance, each as one terminal, which is what it reads fastest.

Its own converter from GBNF gives a rule for every state, which takes 30 times as long for each token. Forms that no
shipped profile has are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from coa.trajectory import Profile
from coa.trajectory.profile import Agent, GradeVerdict, ScoreVerdict, Verdict
from coa.trajectory.shapes import Form, Shape

_OTHERS = r"\u{80}-\u{10FFFF}"
_ANY = rf"[\t\n\x20-\x7E{_OTHERS}]"
_IN_LINE = rf"[\t\x20-\x7E{_OTHERS}]"
_FILLED = rf"[\x21-\x7E{_OTHERS}]"


def to_lark(profile: Profile, tags: Iterable[str]) -> str:
    """A grammar whose text is one step of one of these agents."""
    steps = {tag: f"STEP_{tag.upper()}" for tag in tags}
    names = "|".join(map(_any_case, sorted(profile.tags)))
    spelled = rf"(<[ \t]{{0,2}}\/[ \t]{{0,2}}|<[ \t]{{0,4}})({names})[ \t]{{0,2}}>"
    lines = [f"start: {' | '.join(f's_{tag}' for tag in steps)}", f"TAGGED: /{_ANY}*{spelled}{_ANY}*/"]
    for tag, terminal in steps.items():
        lines += [
            f"s_{tag}: {terminal}",
            f'{terminal}: "<{tag}>" (({_body(profile.agents[tag])}) & ~TAGGED) "</{tag}>"',
        ]
    return "\n".join(lines) + "\n"


def _body(agent: Agent) -> str:
    shaped = _shaped(agent.shape)
    return shaped if agent.verdict is None else f"({shaped}) & /{_judged(agent.verdict)}/"


def _shaped(shape: Shape) -> str:
    match shape.form:
        case Form.TEXT:
            return rf"/[ \t\n]*{_FILLED}{_ANY}*/"
        case Form.LINE:
            return rf"/[ \t]*{_FILLED}{_IN_LINE}*/"
        case Form.LIST:
            return rf"/{_IN_LINE}*/ & /{_ANY}*[^ \t{_escaped(shape.separator)}]{_ANY}*/"
        case Form.CODE:
            return f"/{_fenced(shape)}/"
        case Form.BOXED:
            return _boxed()
        case Form.JSON:
            if any(field.type != "string" or not field.required for field in shape.fields.values()):
                raise NotImplementedError("fields that are not strings or not required")
            string = r'"([^"\\\n\t\x00-\x1F\x7F]|\\["\\\/nt])*"'
            fields = ", ?".join(rf'"{name}": ?{string}' for name in shape.fields)
            return rf"/\n```json\n\{{{fields}\}}\n```\n/"


def _fenced(shape: Shape) -> str:
    no_tick, filled = rf"[\t\x20-\x5F\x61-\x7E{_OTHERS}]", rf"[\x21-\x5F\x61-\x7E{_OTHERS}]"
    line = rf"[ \t]*(`{{1,2}}({no_tick}{_IN_LINE}*)?|{filled}{_IN_LINE}*)\n"
    block = rf"([ \t]*\n)*{line}([ \t]*\n|{line})*```\n"
    return rf"\n```{shape.language}\n{block}" + (rf"(```sh\n{block})?" if shape.stdin else "")


def _boxed() -> str:
    item = rf"[\t\x20-\x5B\x5D-\x7A\x7C\x7E{_OTHERS}]|\\[a-zA-Z{_OTHERS}]"
    inside = f"({item})*"
    for _ in range(3):
        inside = rf"({item}|\{{{inside}\}})*"
    before = rf"(/{_ANY}*/ & ~/{_ANY}*\\boxed\{{{_ANY}*/)"
    return rf"{before} /\\boxed\{{/ (/{inside}/ & /{_ANY}*{_FILLED}{_ANY}*/) /\}}/"


def _judged(verdict: Verdict) -> str:
    if isinstance(verdict, ScoreVerdict):
        groups = [[f"{verdict.label}: {n}" for n in range(max(verdict.low, 0), verdict.high + 1)]]
    else:
        assert isinstance(verdict, GradeVerdict)
        groups = [[f"{point}: {grade}" for grade in verdict.grades] for point in verdict.points]
    return rf"({_IN_LINE}*\n)*" + r"\n".join(f"({'|'.join(map(_escaped, group))})" for group in groups)


def _escaped(text: str) -> str:
    return "".join(char if char.isalnum() else rf"\x{ord(char):02x}" for char in text)


def _any_case(name: str) -> str:
    """Not the flag `i`, which takes the Kelvin sign for a k."""
    return "".join(f"[{char.lower()}{char.upper()}]" if char.isalpha() else re.escape(char) for char in name)
