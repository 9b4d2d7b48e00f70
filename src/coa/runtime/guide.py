"""Constrained decoding from the run's side: which step may come next, in how many tokens, and the way home.

A step at a time: what may follow a step depends on what it says (its verdict), and a step of its own is also what
training data tokenises. The decoder is the model's own business; without one that can, a run does not come here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from pydantic import JsonValue

from coa.choices import Constrain
from coa.errors import ModelError
from coa.models.base import Constrained, Model
from coa.trajectory import Profile, State
from coa.trajectory.grammar import Grammar, Move, home, language, moves
from coa.trajectory.grammar.moves import key

_TASTE: Final = 8
"""Tokens beyond the bare minimum that make a step worth opening."""


@dataclass(frozen=True, slots=True)
class Course:
    """One step to be written: what it may look like and how many tokens it has."""

    grammar: Grammar
    whole: Grammar
    """Of the step from its beginning on, where a part of it has been written."""
    tokens: int
    stop: tuple[str, ...]


def constrained(model: Model, when: Constrain) -> Constrained | None:
    """The model, if it is to be constrained; an error if it must be and cannot."""
    if when is Constrain.NEVER or (when is Constrain.AUTO and not getattr(model, "constrained_by_default", False)):
        return None
    reason = model.unconstrainable if isinstance(model, Constrained) else f"{model.name} takes no grammar"
    if reason is None and isinstance(model, Constrained):
        return model
    if when is Constrain.AUTO:
        return None
    raise ModelError(
        f"this model cannot be held to the protocol: {reason}",
        hint="use --constrain never, a local model, or vLLM, SGLang or llama.cpp in token mode",
    )


class Guide:
    """For one run."""

    def __init__(self, profile: Profile, tools: Collection[str]) -> None:
        self._profile = profile
        self._language = language(profile)
        self._tools = [tag for tag in profile.tools if tag in tools]
        self._ways: dict[tuple[object, ...], tuple[tuple[Move, ...], tuple[Move, ...] | None]] = {}

    def next(self, state: State, *, ends_line: bool, room: int, calls: bool) -> Course | None:
        """Any step that is legal now, in at most half of the room; None if there is no room for one.

        `calls` tells whether tools may still be called.
        """
        ways, _ = self._known(state, calls=calls)
        return self._course(ways, ends_line, room // 2)

    def home(self, state: State, *, ends_line: bool, room: int, calls: bool) -> Course | None:
        """The next step on the shortest way to the answer, with its share of the room."""
        _, way = self._known(state, calls=calls)
        if not way:
            return None
        bare = [self._bare(move) for move in way]
        spare = room - sum(bare)
        return None if spare < 0 else self._course(way[:1], ends_line, bare[0] + spare // len(way))

    def way_home(self, state: State, *, calls: bool) -> tuple[int, int]:
        """How many steps the shortest way to the answer has, and how many tokens it takes at least."""
        _, way = self._known(state, calls=calls)
        return len(way or ()), sum(map(self._bare, way or ()))

    @property
    def farthest(self) -> int:
        """Tokens that the way home takes at most, wherever the run stands."""
        return max((tokens for _, tokens in self._ways_home), default=0)

    @property
    def most_steps(self) -> int:
        """Steps that it takes at most."""
        return max((steps for steps, _ in self._ways_home), default=1)

    @cached_property
    def _ways_home(self) -> list[tuple[int, int]]:
        start = State.begin(self._profile)
        states = [start]
        for tag, agent in self._profile.agents.items():
            for outcome in (True, False) if agent.verdict else (None,):
                states.append(replace(start.after(tag, outcome), waiting=None, counts={}))
        return [self.way_home(state, calls=True) for state in states]

    def leads(self, state: State, *, calls: bool) -> bool:
        """Whether any legal way leads on from here."""
        return bool(self._known(state, calls=calls)[0])

    def _known(self, state: State, *, calls: bool) -> tuple[tuple[Move, ...], tuple[Move, ...] | None]:
        at = (calls, *key(state))
        if at not in self._ways:
            tools = self._tools if calls else []
            found, way = moves(state, tools), home(state, tools)
            if way is None and calls:  # some profiles know no way without a tool that is not there: it will say so
                found, way = moves(state, self._profile.tools), home(state, self._profile.tools)
            self._ways[at] = (found, way)
        return self._ways[at]

    def _course(self, ways: Collection[Move], ends_line: bool, tokens: int) -> Course | None:
        possible = [way for way in ways if self._bare(way) + _TASTE <= tokens] if len(ways) > 1 else list(ways)
        grammar = self._language.grammar(possible, ends_line=ends_line) if possible else None
        if grammar is None or grammar.distance > tokens:
            return None
        return Course(grammar, grammar, tokens, tuple(f"</{way.tag}>" for way in possible))

    def _bare(self, way: Move) -> int:
        """Tokens that a step takes at least, so that any tokenizer can write it."""
        grammar = self._language.grammar([way], ends_line=True)
        return grammar.distance if grammar else 1 << 30


def mark(log_kept: float | None, led: str | None) -> Mapping[str, JsonValue]:
    """What a constrained step's meta says of how it came about, for whoever trains on it."""
    made: dict[str, JsonValue] = {"constrained": True}
    if log_kept is not None:
        made["log_kept"] = round(log_kept, 6)
    if led is not None:
        made["led"] = str(led)
    return made
