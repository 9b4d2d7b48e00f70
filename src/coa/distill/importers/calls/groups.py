"""Stints joined into runs of teams: by what the caller gave (run, trace), by hand-overs, and by pipelines.

In a pipeline nobody calls anybody: a program sends the answer of one agent to the next. So a stint that no call started
belongs to the run of an earlier stint whose answer stands in its request, or whose answer contains its request.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final

from coa.distill.importers.calls.exchange import normal
from coa.distill.importers.calls.naming import prompt
from coa.distill.importers.calls.phrases import Phrases, words
from coa.distill.importers.calls.stints import Stint, asked_in, news

_TELLING: Final = 4
"""Number of words from which on a repeated text shows that one agent's words reached another."""


class _Groups:
    """Union of sets, by their smallest member."""

    def __init__(self, size: int) -> None:
        self._above = list(range(size))
        self._first: dict[Hashable, int] = {}

    def top(self, member: int) -> int:
        while self._above[member] != member:
            self._above[member] = self._above[self._above[member]]
            member = self._above[member]
        return member

    def join(self, one: int, other: int) -> None:
        one, other = sorted((self.top(one), self.top(other)))
        self._above[other] = one

    def share(self, member: int, key: Hashable) -> None:
        self.join(member, self._first.setdefault(key, member))


def grouped_runs(stints: list[Stint]) -> list[list[Stint]]:
    """The stints of each run, in the order in which they began."""
    groups = _Groups(len(stints))
    place = {id(stint): number for number, stint in enumerate(stints)}
    for number, stint in enumerate(stints):
        groups.share(number, ("thread", id(stint.thread)))
        if stint.parent is not None:
            groups.join(number, place[id(stint.parent)])
        if stint.run is not None:
            groups.share(number, ("run", stint.run))
        for exchange in stint.exchanges:
            if exchange.trace is not None and stint.run is None:
                groups.share(number, ("trace", exchange.trace))
    _join_pipelines(stints, groups, place)
    found: dict[int, list[Stint]] = {}
    for number, stint in enumerate(stints):
        found.setdefault(groups.top(number), []).append(stint)
    return list(found.values())


def _join_pipelines(stints: list[Stint], groups: _Groups, place: dict[int, int]) -> None:
    taken: set[tuple[int, Hashable]] = set()
    for later, rivals in _pipelines(stints):
        for earlier in rivals.values():
            # Several runs of one pipeline may say the same: each earlier stint passes its words on once to each agent.
            same = (prompt(later.first.asked.system).fingerprint, later.request())
            free = [one for one in earlier if (groups.top(place[id(one)]), same) not in taken] or earlier
            chosen = free[0]
            later.evidence = later.evidence or "pipeline"
            later.rivals = max(later.rivals, len({groups.top(place[id(one)]) for one in free}) - 1)
            groups.join(place[id(chosen)], place[id(later)])
            taken.add((groups.top(place[id(chosen)]), same))


def _pipelines(stints: list[Stint]) -> Iterator[tuple[Stint, dict[Hashable, list[Stint]]]]:
    """Stints that no call started, with the stints whose answers reached them, by what these say."""
    uncalled = [stint for stint in stints if stint.call is None and stint.entered is None]
    answers, requests = Phrases[Stint](), Phrases[Stint]()
    for stint in stints:
        said = words(stint.answer() or "")
        if len(said) >= _TELLING:
            answers.add(said, stint)
    for stint in uncalled:
        asked = words(stint.request())
        if len(asked) >= _TELLING:
            requests.add(asked, stint)
    passed: dict[int, list[Stint]] = {}
    for earlier in stints:
        for _, later in requests.within(words(earlier.answer() or "")):
            passed.setdefault(id(later), []).append(earlier)
    for later in uncalled:
        heard = words(asked_in(news(later.first)))
        found = dict.fromkeys([*(one for _, one in answers.within(heard)), *passed.get(id(later), [])])
        by_words: dict[Hashable, list[Stint]] = {}
        for earlier in sorted(found, key=lambda stint: stint.last.ended):
            if earlier.thread is not later.thread and earlier.run == later.run and _before(earlier, later):
                by_words.setdefault(normal(earlier.answer() or ""), []).append(earlier)
        if by_words:
            yield later, by_words


def _before(earlier: Stint, later: Stint) -> bool:
    return earlier.last.began < later.first.began and earlier.last.ended < later.first.ended
