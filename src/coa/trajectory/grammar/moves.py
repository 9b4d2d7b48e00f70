"""Which steps may come next without leading to a dead end, and the shortest way to the answer."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from heapq import heappop, heappush
from typing import Final, NamedTuple

from coa.trajectory.profile import Kind
from coa.trajectory.protocol import State

_TOOL_COST: Final = 100
"""Cost of a tool call, so high that a way to the answer uses tools only if there is no other way."""
_MOST: Final = 2_000
"""Number of states after which a search is given up; limits on agents can produce very many."""


class Move(NamedTuple):
    """The next step: which agent acts, and which verdict it must give (None: either)."""

    tag: str
    outcome: bool | None = None


def moves(state: State, tools: Collection[str]) -> tuple[Move, ...]:
    """Every legal step from which a way leads to the answer. Only the given tools are used."""
    found: dict[str, list[Move]] = {}
    for move, after in _next(state, tools):
        if after.done or home(after, tools) is not None:
            found.setdefault(move.tag, []).append(move)
    return tuple(Move(ways[0].tag) if len(ways) > 1 else ways[0] for ways in found.values())


def home(state: State, tools: Collection[str]) -> tuple[Move, ...] | None:
    """The shortest legal way to the answer, including the answer; None if there is none."""
    seen: set[tuple[object, ...]] = set()
    waiting: list[tuple[int, int, State, tuple[Move, ...]]] = [(0, 0, state, ())]
    number = 0
    while waiting and len(seen) < _MOST:
        cost, _, here, way = heappop(waiting)
        if here.done:
            return way
        if key(here) in seen:
            continue
        seen.add(key(here))
        for move, after in _next(here, tools):
            number += 1
            extra = _TOOL_COST if move.tag in here.profile.tools else 1
            heappush(waiting, (cost + extra, number, after, (*way, move)))
    return None


def key(state: State) -> tuple[object, ...]:
    """The part of a state that decides what may follow."""
    agents = state.profile.agents
    counted = tuple((tag, min(count, agents[tag].max or 0)) for tag, count in state.counts.items() if agents[tag].max)
    return (state.allowed, state.thought, state.waiting, state.covered, state.done, tuple(sorted(counted)))


def _next(state: State, tools: Collection[str]) -> Iterator[tuple[Move, State]]:
    for tag in state.legal():
        agent = state.profile.agents[tag]
        if agent.kind is Kind.TOOL:
            if tag in tools:
                yield Move(tag), replace(state.after(tag), waiting=None)
        elif agent.verdict is None:
            yield Move(tag), state.after(tag)
        else:
            for outcome in (True, False):
                yield Move(tag, outcome), state.after(tag, outcome)
