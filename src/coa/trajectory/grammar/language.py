"""All steps of a profile as one automaton over bytes. A grammar is a state of this automaton.

Constrained decoding has to know two things after every token: which tokens may come next, and whether the step can
still end within the tokens that are left. So the rules of a step (its content, its closing tag, no other tag inside)
are compiled into one deterministic automaton. A row of `table` has the next state for each of the 256 bytes, and
`distance` has the number of bytes from each state to the end of the step. The number of states is finite, so the
distance is known for all of them. The automaton works on bytes because tokens may cut a character into bytes.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Lock
from typing import Final

from coa.trajectory.grammar.contents import OTHER, WRITABLE, ContentGrammar, State, content
from coa.trajectory.grammar.moves import Move
from coa.trajectory.profile import Profile

DEAD: Final = 0
DONE: Final = 1
FAR: Final = 32_000
"""The distance of states from which a step cannot end; more bytes than any step needs."""
_WIDTH: Final = 256


@dataclass(frozen=True)
class Grammar:
    """What may be written from a state on, until a step is complete."""

    language: Language
    start: int
    tight: bool = False
    """Whether only the shortest way to the end is allowed."""

    @property
    def distance(self) -> int:
        """Number of bytes until the step can end, which is an upper bound of the tokens."""
        return self.language.distance[self.start]

    def after(self, text: str) -> Grammar | None:
        """The grammar of what may follow the text; None if the text is not allowed or ends the step."""
        state = self.language.walk(self.start, text.encode())
        return replace(self, start=state) if state not in (DEAD, DONE) else None

    def admits(self, text: str, *, whole: bool) -> bool:
        """Whether the text is a step, or unless `whole` may begin one. A cut character at the end is ignored then."""
        state = self.language.walk(self.start, text.rstrip("\ufffd").encode() if not whole else text.encode())
        return state == DONE or (not whole and state != DEAD)

    def closing(self) -> Grammar:
        """A grammar that ends the step as soon as possible."""
        return replace(self, tight=True)


class Language:
    """The automaton of a profile. It grows when new steps are needed; existing states never change."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._tags = _Tags(profile.tags)
        self.table = array("i", [DEAD] * _WIDTH * 2)
        """The next state for each byte, row by row."""
        self.distance = [FAR, 0]
        self.other = [DEAD, DEAD]
        """The next state after a whole character that is not ASCII."""
        self._steps: dict[tuple[str, bool | None], int] = {}
        self._entries: dict[tuple[str, ...], int] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self.distance)

    def grammar(self, ways: Sequence[Move], *, ends_line: bool) -> Grammar | None:
        """The grammar of one of these steps, on a new line or directly after the last. None if none can be written."""
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
        """A state from which each of these texts leads to its state."""
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
        """The state directly after the opening tag of a step."""
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
        """Compute the distance of each new state to the end, over ASCII characters."""
        reached = deque([DONE])
        while reached:
            state = reached.popleft()
            for earlier in before.get(state, ()):
                if self.distance[earlier] == FAR:
                    self.distance[earlier] = self.distance[state] + 1
                    reached.append(earlier)

    def _prune(self, numbers: Iterable[int]) -> None:
        """Remove transitions from which the step cannot end."""
        for number in numbers:
            for at in range(number * _WIDTH, (number + 1) * _WIDTH):
                if self.distance[self.table[at]] == FAR:
                    self.table[at] = DEAD

    def _spell(self, wide: Iterable[tuple[int, int]]) -> None:
        """Add characters beyond ASCII as the bytes of valid UTF-8 (RFC 3629)."""
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
    ("1", 0x80, 0xBF, ""), ("2", 0x80, 0xBF, "1"), ("3", 0x80, 0xBF, "2"),
    ("E0", 0xA0, 0xBF, "1"), ("ED", 0x80, 0x9F, "1"), ("F0", 0x90, 0xBF, "2"), ("F4", 0x80, 0x8F, "2"),
)  # fmt: skip
"""What may follow a leading byte, as (name, first byte, last byte, name of what follows)."""
_LEADS: Final = (
    (0xC2, 0xDF, "1"), (0xE0, 0xE0, "E0"), (0xE1, 0xEC, "2"), (0xED, 0xED, "ED"),
    (0xEE, 0xEF, "2"), (0xF0, 0xF0, "F0"), (0xF1, 0xF3, "3"), (0xF4, 0xF4, "F4"),
)  # fmt: skip
"""Leading bytes, as (first byte, last byte, name of what follows)."""
_CLOSED: Final = "closed"


class _Element:
    """From the end of an opening tag to the end of its closing tag. The state is (content, tag being spelled, number of
    characters of the closing tag so far); content is None if only the closing tag can follow."""

    def __init__(self, tag: str, inside: ContentGrammar, tags: _Tags) -> None:
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
    """Detects tags, in every form that the parser accepts. The state is the tag being spelled."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._begun = frozenset(name[:n] for name in self._names for n in range(1, len(name) + 1))

    def step(self, spelling: str, char: str) -> str | None:
        """None if a tag is complete."""
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
        # Once the name begins, the form of the opening does not matter any more.
        return "=" + name + char.lower() if name + char.lower() in self._begun else ""


def language(profile: Profile) -> Language:
    """The language of a profile. Profiles with equal agents share one."""
    agents = tuple(
        (tag, agent.shape.model_dump_json(), agent.verdict.model_dump_json() if agent.verdict else "")
        for tag, agent in profile.agents.items()
    )
    return _shared(_Key(agents, profile))


@dataclass(frozen=True, eq=False)
class _Key:
    """Hashes what a language depends on, and carries the profile for the first call."""

    agents: tuple[tuple[str, str, str], ...]
    profile: Profile

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other.agents == self.agents

    def __hash__(self) -> int:
        return hash(self.agents)


@lru_cache(maxsize=32)
def _shared(key: _Key) -> Language:
    return Language(key.profile)
