"""All steps of a profile as one automaton over bytes, and a place in it as a grammar.

Deterministic and with finitely many states, so that the shortest way to the end of a step is known everywhere: a
decoder that has so many tokens left can tell which token still lets the step end in time.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Lock
from typing import Final

from coa.trajectory.grammar.contents import OTHER, WRITABLE, Content, State, content
from coa.trajectory.grammar.moves import Move
from coa.trajectory.profile import Profile

DEAD: Final = 0
DONE: Final = 1
FAR: Final = 32_000
"""More bytes than any step needs to end."""
_WIDTH: Final = 256


@dataclass(frozen=True)
class Grammar:
    """What may be written from a state on, until a step is complete."""

    language: Language
    start: int
    tight: bool = False
    """Only the shortest way to the end."""

    @property
    def distance(self) -> int:
        """Bytes, and therefore at most tokens, that the step needs to end."""
        return self.language.distance[self.start]

    def after(self, text: str) -> Grammar | None:
        """What may follow that text; None where it was not allowed."""
        state = self.language.walk(self.start, text.encode())
        return replace(self, start=state) if state not in (DEAD, DONE) else None

    def admits(self, text: str, *, whole: bool) -> bool:
        """Whether the text is a step, or may begin one. A character cut in two at the end is nobody's fault."""
        state = self.language.walk(self.start, text.rstrip("\ufffd").encode() if not whole else text.encode())
        return state == DONE or (not whole and state != DEAD)

    def closing(self) -> Grammar:
        """End the step as soon as possible."""
        return replace(self, tight=True)


class Language:
    """Grows as steps are asked for; states never change once they are there."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._tags = _Tags(profile.tags)
        self.table = array("i", [DEAD] * _WIDTH * 2)
        """Row by row: where each byte leads."""
        self.distance = [FAR, 0]
        self.other = [DEAD, DEAD]
        """Where a character that is not ASCII leads, as a whole."""
        self._steps: dict[tuple[str, bool | None], int] = {}
        self._entries: dict[tuple[str, ...], int] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self.distance)

    def grammar(self, ways: Sequence[Move], *, ends_line: bool) -> Grammar | None:
        """One of these steps; on a line of its own or right after the one before. None where no step can be written."""
        with self._lock:
            reached = {f"<{way.tag}>": self._step(way) for way in ways}
            openings = {text: state for text, state in reached.items() if self.distance[state] < FAR}
            if not ends_line:
                openings |= {"\n" + text: state for text, state in openings.items()}
            return Grammar(self, self._entry(openings)) if openings else None

    def walk(self, state: int, spelled: bytes) -> int:
        for byte in spelled:
            state = self.table[state * _WIDTH + byte]
        return state

    def _entry(self, openings: Mapping[str, int]) -> int:
        """A state from which any of these texts leads to its own state."""
        key = tuple(f"{text}{state}" for text, state in sorted(openings.items()))
        if key not in self._entries:
            begun = sorted({text[:n] for text in openings for n in range(len(text))})
            numbers = {text: self._add() for text in begun}
            for text in sorted({*begun, *openings} - {""}):
                at = numbers[text] if text in numbers else openings[text]
                self.table[numbers[text[:-1]] * _WIDTH + ord(text[-1])] = at
            for text in sorted(begun, key=len, reverse=True):
                row = self.table[numbers[text] * _WIDTH : (numbers[text] + 1) * _WIDTH]
                self.distance[numbers[text]] = 1 + min(self.distance[state] for state in row)
            self._entries[key] = numbers[""]
        return self._entries[key]

    def _step(self, way: Move) -> int:
        """The state right after a step's opening tag."""
        key = (way.tag, way.outcome)
        if key not in self._steps:
            inside = content(self._profile.agents[way.tag], outcome=way.outcome)
            self._steps[key] = self._build(_Element(way.tag, inside, self._tags))
        return self._steps[key]

    def _build(self, element: _Element) -> int:
        numbers: dict[State, int] = {element.start: self._add()}
        found: deque[State] = deque(numbers)
        before: dict[int, list[int]] = {DONE: []}
        wide: list[tuple[int, int]] = []
        while found:
            state = found.popleft()
            number = numbers[state]
            for char in WRITABLE:
                after = element.step(state, char)
                if after is None:
                    continue
                if after not in numbers and after != _CLOSED:
                    numbers[after] = self._add()
                    found.append(after)
                target = DONE if after == _CLOSED else numbers[after]
                if char == OTHER:
                    wide.append((number, target))
                else:
                    self.table[number * _WIDTH + ord(char)] = target
                    before.setdefault(target, []).append(number)
        self._measure(before)
        self._prune(numbers.values())
        self._spell({(number, target) for number, target in wide if self.distance[target] < FAR})
        return numbers[element.start]

    def _measure(self, before: Mapping[int, Sequence[int]]) -> None:
        """How far it is from each new state to the end, along ASCII."""
        reached = deque([DONE])
        while reached:
            state = reached.popleft()
            for earlier in before.get(state, ()):
                if self.distance[earlier] == FAR:
                    self.distance[earlier] = self.distance[state] + 1
                    reached.append(earlier)

    def _prune(self, numbers: Iterable[int]) -> None:
        """Take away what leads nowhere."""
        for number in numbers:
            for at in range(number * _WIDTH, (number + 1) * _WIDTH):
                if self.distance[self.table[at]] == FAR:
                    self.table[at] = DEAD

    def _spell(self, wide: Iterable[tuple[int, int]]) -> None:
        """Characters beyond ASCII as the bytes of UTF-8, only those that are valid (RFC 3629)."""
        tails: dict[int, Mapping[str, int]] = {}
        for number, target in sorted(wide):
            self.other[number] = target
            if target not in tails:
                tails[target] = self._tails(target)
            for first, last, tail in _LEADS:
                for byte in range(first, last + 1):
                    self.table[number * _WIDTH + byte] = tails[target][tail]

    def _tails(self, target: int) -> Mapping[str, int]:
        names = {"": target}
        for name, first, last, following in _TAILS:
            names[name] = state = self._add()
            self.distance[state] = self.distance[names[following]] + 1
            for byte in range(first, last + 1):
                self.table[state * _WIDTH + byte] = names[following]
        return names

    def _add(self) -> int:
        self.table.extend([DEAD] * _WIDTH)
        self.other.append(DEAD)
        self.distance.append(FAR)
        return len(self.distance) - 1


_TAILS: Final = (
    ("1", 0x80, 0xBF, ""),
    ("2", 0x80, 0xBF, "1"),
    ("3", 0x80, 0xBF, "2"),
    ("E0", 0xA0, 0xBF, "1"),
    ("ED", 0x80, 0x9F, "1"),
    ("F0", 0x90, 0xBF, "2"),
    ("F4", 0x80, 0x8F, "2"),
)
"""What may follow a leading byte: (name, from, to, what comes then)."""
_LEADS: Final = (
    (0xC2, 0xDF, "1"),
    (0xE0, 0xE0, "E0"),
    (0xE1, 0xEC, "2"),
    (0xED, 0xED, "ED"),
    (0xEE, 0xEF, "2"),
    (0xF0, 0xF0, "F0"),
    (0xF1, 0xF3, "3"),
    (0xF4, 0xF4, "F4"),
)
_CLOSED: Final = "closed"


class _Element:
    """From behind an opening tag to the end of its closing tag. The state is (content, tag being spelled, how much of
    the closing tag is there); content is None once only the closing tag can come."""

    def __init__(self, tag: str, inside: Content, tags: _Tags) -> None:
        self._closing = f"</{tag}>"
        self._content = inside
        self._tags = tags
        self.start: State = (inside.start, "", 0)

    def step(self, state: State, char: str) -> State | None:
        inside, spelling, closed = state
        if char == "<":
            closed = int(inside is not None and self._content.ends(inside))
        else:
            closed = closed + 1 if closed and self._closing[closed] == char else 0
        if closed == len(self._closing):
            return _CLOSED
        spelling = self._tags.step(spelling, char)
        inside = None if inside is None else self._content.step(inside, char)
        return None if spelling is None or (inside is None and not closed) else (inside, spelling, closed)


class _Tags:
    """Watches for tags, as loosely written as the reader takes them; what is kept is the tag being spelled."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._begun = frozenset(name[:n] for name in self._names for n in range(1, len(name) + 1))

    def step(self, spelling: str, char: str) -> str | None:
        """None when a tag is complete."""
        if char == "<":
            return "<"
        if not spelling:
            return ""
        name = spelling.strip("=</ ")
        blanks = len(spelling) - len(spelling.rstrip(" "))
        if char in " \t":
            most = 2 if name in self._names or "/" in spelling else 0 if name else 4
            return spelling + " " if blanks < most else ""
        if char == ">":
            return None if name in self._names else ""
        if char == "/" and not name:
            return "</" if "/" not in spelling and blanks <= 2 else ""
        if name and blanks:
            return ""
        # How the opening was written no longer matters once the name begins.
        return "=" + name + char.lower() if name + char.lower() in self._begun else ""


def language(profile: Profile) -> Language:
    """The language of a profile; profiles that write alike share one."""
    agents = tuple(
        (tag, agent.shape.model_dump_json(), agent.verdict.model_dump_json() if agent.verdict else "")
        for tag, agent in profile.agents.items()
    )
    return _shared(_Key(agents, profile))


@dataclass(frozen=True, eq=False)
class _Key:
    """Hashes what a language depends on; brings the profile along for the first who asks."""

    agents: tuple[tuple[str, str, str], ...]
    profile: Profile

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other.agents == self.agents

    def __hash__(self) -> int:
        return hash(self.agents)


@lru_cache(maxsize=32)
def _shared(key: _Key) -> Language:
    return Language(key.profile)
