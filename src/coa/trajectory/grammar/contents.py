r"""What may be written between two tags, as state machines that read one character at a time.

Each machine has a start state, `step` (the next state, or None if the character is not allowed) and `ends` (whether the
content may end in a state). States are small hashable values, which `language` numbers. Nothing that `shapes.read`
would have to repair is allowed. Characters are ASCII or `OTHER`, which represents all other characters, because no rule
distinguishes those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from coa.trajectory.grammar.json_object import JsonObject
from coa.trajectory.profile import Agent, GradeVerdict, ScoreVerdict, Verdict
from coa.trajectory.shapes import Form, Shape

OTHER: Final = "\u00e9"
WRITABLE: Final = ("\t", "\n", *map(chr, range(0x20, 0x7F)), OTHER)
"""All characters that may be written: no carriage returns and no other control characters."""
_BLANK: Final = " \t\n"
State = Any
"""Any hashable value; its form differs from machine to machine."""


class ContentGrammar(Protocol):
    @property
    def start(self) -> State: ...

    def step(self, state: State, char: str) -> State | None: ...

    def ends(self, state: State) -> bool: ...


def content(agent: Agent, *, outcome: bool | None = None) -> ContentGrammar:
    """The machine of an agent. With `outcome`, only verdicts that pass (True) or fail (False) are allowed."""
    shaped = _shaped(agent.shape)
    return shaped if agent.verdict is None else Both(shaped, _judged(agent.verdict, outcome))


def _shaped(shape: Shape) -> ContentGrammar:
    match shape.form:
        case Form.TEXT:
            return Words()
        case Form.LINE:
            return Words(lines=False)
        case Form.LIST:
            return Words(lines=False, besides=shape.separator)
        case Form.CODE:
            return Fenced(shape.language, stdin=shape.stdin)
        case Form.JSON:
            return JsonObject({name: (field.type, field.required) for name, field in shape.fields.items()})
        case Form.BOXED:
            return Boxed()


def _judged(verdict: Verdict, outcome: bool | None) -> ContentGrammar:
    if isinstance(verdict, ScoreVerdict):
        scale = range(max(verdict.low, 0), verdict.high + 1)
        scores = [n for n in scale if outcome is None or (n >= verdict.pass_at) is outcome]
        return LastLines([[f"{verdict.label}: {n}" for n in scores]])
    assert isinstance(verdict, GradeVerdict)
    grades = verdict.grades if outcome is None else verdict.grades[:-1] if outcome else verdict.grades[-1:]
    lines = [[f"{point}: {grade}" for grade in grades] for point in verdict.points]
    # One bad grade anywhere decides, so with a fixed outcome no free text may come before the grades.
    return LastLines(lines, free=outcome is None)


@dataclass(frozen=True)
class Words:
    """Free text that is not empty. The state is whether it has content so far."""

    lines: bool = True
    besides: str = ""
    """Characters that do not count as content."""
    start: State = False

    def step(self, state: State, char: str) -> State | None:
        if char == "\n" and not self.lines:
            return None
        return state or (char not in _BLANK and char not in self.besides)

    def ends(self, state: State) -> bool:
        return bool(state)


class LastLines:
    """Any lines, then one line of each group in order, such as `score: 3`, as the last lines. State: (group, line)."""

    def __init__(self, groups: Sequence[Sequence[str]], *, free: bool = True) -> None:
        self._groups = [frozenset(group) for group in groups]
        self._begun = [{line[:n] for line in group for n in range(len(line) + 1)} for group in self._groups]
        self._free = free
        self.start: State = (0, "")

    def step(self, state: State, char: str) -> State | None:
        group, line = state
        if char == "\n":
            if line in self._groups[group] and group + 1 < len(self._groups):
                return (group + 1, "")
            return (0, "") if group == 0 and self._free else None
        if line is not None and line + char in self._begun[group]:
            return (group, line + char)
        return (0, None) if group == 0 and self._free else None

    def ends(self, state: State) -> bool:
        group, line = state
        return group + 1 == len(self._groups) and line in self._groups[group]


class Fenced:
    """A fenced program on separate lines, and a second fence with its input if the shape allows one.

    The head of a line is what it begins with: nothing yet, blanks (" "), one or two backticks after either, or "x" for
    an ordinary line. `filled` is whether the lines before have content.
    """

    def __init__(self, language: str, *, stdin: bool) -> None:
        self._openings = (f"\n```{language}\n", "```sh\n") if stdin else (f"\n```{language}\n",)
        self.start: State = ("opening", 0, 0)

    def step(self, state: State, char: str) -> State | None:
        match state:
            case ("opening", int(block), int(at)):
                opening = self._openings[block]
                if char != opening[at]:
                    return None
                return ("opening", block, at + 1) if at + 1 < len(opening) else ("block", block, "", False)
            case ("block", int(block), str(head), bool(filled)):
                return self._in_block(block, head, filled, char)
            case ("fenced", int(block)):
                return ("closed", block) if char == "\n" else None
            case ("closed", int(block)) if block + 1 < len(self._openings) and char == "`":
                return ("opening", block + 1, 1)
        return None

    def _in_block(self, block: int, head: str, filled: bool, char: str) -> State | None:
        if char == "`" and head != "x":
            if head.endswith("``"):
                return (
                    ("fenced", block) if head == "``" and filled else None
                )  # a closing fence is not indented, and the block is not empty
            return ("block", block, head + "`", filled)
        if char == "\n":
            return ("block", block, "", filled or "`" in head)
        if char in _BLANK and not head.strip():
            return ("block", block, " ", filled)
        return ("block", block, "x", True)

    def ends(self, state: State) -> bool:
        return isinstance(state, tuple) and state[0] == "closed"


class Boxed:
    """Free text that ends with the result in a box with balanced braces."""

    _OPENING: Final = "\\boxed{"
    _DEEPEST: Final = 4
    start: State = ("text", 0)

    def step(self, state: State, char: str) -> State | None:
        match state:
            case ("text", int(at)):
                at = at + 1 if char == self._OPENING[at] else int(char == "\\")
                return ("text", at) if at < len(self._OPENING) else ("box", 1, False)
            case ("box", int(depth), bool(filled)):
                return self._in_box(depth, filled, char)
            case ("escape", int(depth)) if char.isalpha():
                return ("box", depth, True)
        return None

    def _in_box(self, depth: int, filled: bool, char: str) -> State | None:
        if char == "\n":
            return None
        if char == "\\":
            return ("escape", depth)
        if char == "{":
            return ("box", depth + 1, filled) if depth < self._DEEPEST else None
        if char == "}" and depth == 1:
            return ("closed",) if filled else None
        return ("box", depth - 1 if char == "}" else depth, filled or char not in _BLANK)

    def ends(self, state: State) -> bool:
        return bool(state == ("closed",))


@dataclass(frozen=True)
class Both:
    """What two machines both allow."""

    one: ContentGrammar
    other: ContentGrammar

    @property
    def start(self) -> State:
        return (self.one.start, self.other.start)

    def step(self, state: State, char: str) -> State | None:
        first, second = state
        after_one, after_other = self.one.step(first, char), self.other.step(second, char)
        return None if after_one is None or after_other is None else (after_one, after_other)

    def ends(self, state: State) -> bool:
        first, second = state
        return self.one.ends(first) and self.other.ends(second)
