"""A model that goes round in circles: the same steps again and again, or the same words within one step.

Steps are compared by agent and text; what the environment answered is left out. Short thoughts ("Done.") are repeated
in healthy runs and do not count by themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from coa.scan.finding import Note, Severity
from coa.scan.steps import quotation
from coa.trajectory import Author, Kind, Profile, Trajectory

_LONGEST_CYCLE: Final = 6
_MIN_TEXT: Final = 40
"""Number of characters that a repeated thought must have; a cycle without a tool call, twice as many in all."""
_THOUGHTS: Final = 3
_TAIL: Final = 2_000
_PROBE: Final = 16
_MIN_REPEATS: Final = 5
_MIN_REPEATED: Final = 100
"""Number of characters that the repetitions within a step must have together."""


class _Spoken(NamedTuple):
    place: int
    agent: str
    text: str


class Loops:
    name = "loops"
    about = "the same thought, the same cycle of steps, or the same words within a step, again and again"

    def scan(self, trajectory: Trajectory, profile: Profile) -> Iterator[Note]:
        spoken = [
            _Spoken(index, step.agent, " ".join(step.text.split()))
            for index, step in enumerate(trajectory.steps)
            if step.author is Author.MODEL
        ]
        lost = not (trajectory.answer or "").strip()
        severity = Severity.ERROR if lost else Severity.WARNING
        ending = "; the run has no answer" if lost else ""
        cycle = _cycle(spoken, frozenset(profile.tools))
        if cycle is not None:
            start, period, times = cycle
            what = " > ".join(step.agent for step in spoken[start : start + period])
            words = next((step.text for step in spoken[start : start + period] if step.text), "")
            message = f"{times} times in a row: {what}, with {quotation(words)}{ending}"
            yield Note(spoken[start + period].place, severity, message, kind="cycle of steps")
        else:
            yield from _same_thoughts(spoken, profile, severity, ending)
        for step in spoken:
            agent = profile.agents.get(step.agent)
            if agent is not None and agent.kind is Kind.TOOL and agent.shape.fenced:
                continue  # programs hold tables and literals
            if (repeated := repetition(step.text)) is not None:
                unit, times = repeated
                message = f"this step ends with {quotation(unit)} {times} times{ending}"
                yield Note(step.place, severity, message, kind="words within a step")


def _cycle(spoken: Sequence[_Spoken], tools: frozenset[str]) -> tuple[int, int, int] | None:
    """Start, length and repetitions of the cycle that repeats over the most steps.

    Without a tool call in it, it must have some text.
    """
    keys = [hash((step.agent, step.text)) for step in spoken]
    best: tuple[int, int, int] | None = None
    for period in range(1, min(_LONGEST_CYCLE, len(keys) // 2) + 1):
        needed = 3 if period < 3 else 2
        at = period
        while at < len(keys):
            if keys[at] != keys[at - period]:
                at += 1
                continue
            start = at - period
            while at < len(keys) and keys[at] == keys[at - period]:
                at += 1
            times = (at - start) // period
            turn = spoken[start : start + period]
            said = times * sum(len(step.text) for step in turn)
            telling = said >= 2 * _MIN_TEXT or any(step.agent in tools for step in turn)
            if times >= needed and telling and (best is None or times * period > best[1] * best[2]):
                best = (start, period, times)
    return best


def _same_thoughts(spoken: Sequence[_Spoken], profile: Profile, severity: Severity, ending: str) -> Iterator[Note]:
    counts = Counter(
        step.text
        for step in spoken
        if step.agent == profile.thought and len(step.text) >= _MIN_TEXT
    )  # fmt: skip
    for text, count in counts.items():
        if count >= _THOUGHTS:
            places = [step.place for step in spoken if step.text == text]
            message = f"the thought {quotation(text)} comes {count} times{ending}"
            yield Note(places[1], severity, message, kind="same thought")


def repetition(text: str) -> tuple[str, int] | None:
    """What a text repeats at its end, and how often; None if it does not.

    The last few characters must come up several times. The distance between the last two of these places is the length
    of what is repeated, if anything is.
    """
    tail = text[-_TAIL:]
    if len(tail) < _MIN_REPEATED:
        return None
    probe = tail[-_PROBE:]
    before = tail.rfind(probe, 0, len(tail) - 1)
    if before < 0:
        return None
    unit = tail[before + _PROBE :]
    if len({character for character in unit if character.isalpha()}) < 3:
        return None
    times, end = 0, len(tail)
    while end >= len(unit) and tail.startswith(unit, end - len(unit)):
        times, end = times + 1, end - len(unit)
    return (unit.strip(), times) if times >= _MIN_REPEATS and times * len(unit) >= _MIN_REPEATED else None
