"""A run whose model is held to the protocol: which step it may write next, and the shortest legal path to the answer.

Constrained decoding keeps a model from sampling any token that a grammar does not allow. Here the grammar is the
profile's protocol, and it is applied one step at a time: what may follow a step depends on what it says (its verdict),
so the grammar of the next step is known only when this one has been read. The decoder itself belongs to the model;
this file decides what to ask of it. Three situations call for a request:

- The run goes on (`next_request`). Any step that is legal now and from which the answer can still be reached may
  come, if it fits into the tokens that are left once the path to the answer is kept back.
- A budget has run out (`request_toward_answer`). The model may not simply stop, because a legal run ends with an
  answer, and the protocol may demand other steps before it. The next step of the shortest path is the only one that
  may come. `Budget` has kept back the tokens that the longest of these paths needs.
- The token limit cut a step in two. Our local decoder ends a step in time, but a server that applies a grammar does
  not look ahead to the limit. The model may only end that step, in as few tokens as possible. A tool call that was cut
  or ended in this way is not made (`cut_inside`): half a program computes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from coa.choices import Constrain
from coa.errors import ModelError
from coa.models.base import Constrained, Finish, Generation, Model
from coa.runtime.budget import Budget, PathLength
from coa.runtime.transcript import GenerationRequest, Transcript, UnfinishedGeneration
from coa.trajectory import Profile, State, Stop
from coa.trajectory.grammar import Move, home, language, moves
from coa.trajectory.grammar.moves import key

_WORTHWHILE_TOKENS: Final = 8
"""Tokens beyond the bare minimum that make a step worth opening."""
_PROGRAM_TOKENS: Final = 64
"""The same for a step with a program or a JSON object."""

_Path = tuple[Move, ...]


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
        hint="use --set constrain=never, a local model, or vLLM, SGLang or llama.cpp in token mode",
    )


class ProtocolConstraint:
    """For one run. `tools` are those that can be called in it."""

    def __init__(self, model: Constrained, profile: Profile, tools: Collection[str]) -> None:
        self.model = model
        self._profile = profile
        self._language = language(profile)
        self._tools = [tag for tag in profile.tools if tag in tools]
        self._known: dict[tuple[object, ...], tuple[_Path, _Path | None]] = {}

    def next_request(self, transcript: Transcript, budget: Budget, max_tokens: int) -> GenerationRequest | Stop | None:
        """For any legal step; the reason to stop if there is no room for one.

        None where the protocol allows nothing, as after steps that broke its rules: the model then writes freely.
        """
        if transcript.unfinished is not None:
            return self._rest_of_step(transcript.unfinished)
        legal, _ = self._moves(transcript.state, calls_left=budget.calls_left)
        if not legal:
            return None
        room = min(budget.constrained_room, max_tokens)
        return self._request(legal, transcript.ends_line, room) or budget.scarcest(room)

    def cut_inside(self, generation: Generation, request: GenerationRequest) -> bool:
        """Whether the token limit ended a tool call that the model would have continued."""
        tag = next((tag for tag in self._profile.tools if generation.text.lstrip().startswith(f"<{tag}>")), None)
        if tag is None or request.reason is not None:
            return False
        # Near the limit the decoder allows only tokens that lead to the end of the step, one byte each at worst.
        forced = len(f"\n```\n</{tag}>")
        return generation.finish is Finish.LENGTH or generation.usage.completion_tokens + forced >= request.max_tokens

    def request_toward_answer(self, transcript: Transcript, budget: Budget, reason: Stop) -> GenerationRequest | None:
        """For the next step of the shortest legal path to the answer; None if there is no path or no room for it."""
        if transcript.unfinished is not None:
            request = self._rest_of_step(transcript.unfinished)
            return request and replace(request, reason=reason)
        _, path = self._moves(transcript.state, calls_left=budget.calls_left)
        if not path:
            return None
        least = [self._min_tokens(move) for move in path]
        spare = budget.path_room(PathLength(len(path), sum(least))) - sum(least)
        if spare < 0:
            return None
        request = self._request(path[:1], transcript.ends_line, least[0] + spare // len(path))
        return request and replace(request, reason=reason)

    def longest_path(self) -> PathLength:
        """The most steps and the most tokens that the shortest path to the answer takes, wherever the run stands."""
        start = State.begin(self._profile)
        states = [start]
        for tag, agent in self._profile.agents.items():
            for verdict in (True, False) if agent.verdict else (None,):
                states.append(replace(start.after(tag, verdict), waiting=None, counts={}))
        paths = [self._moves(state, calls_left=True)[1] or () for state in states]
        return PathLength(max(map(len, paths)), max(sum(map(self._min_tokens, path)) for path in paths))

    def _moves(self, state: State, *, calls_left: bool) -> tuple[_Path, _Path | None]:
        """The steps that are legal now, and the shortest path to the answer; no tool if no call is left."""
        at = (calls_left, *key(state))
        if at not in self._known:
            tools = self._tools if calls_left else []
            legal, path = moves(state, tools), home(state, tools)
            if path is None and calls_left:
                # Some profiles have no path without a tool that is missing here. Calling it gets an observation that
                # says so, and the run goes on from there.
                legal, path = moves(state, self._profile.tools), home(state, self._profile.tools)
            self._known[at] = (legal, path)
        return self._known[at]

    def _request(self, choices: _Path, ends_line: bool, max_tokens: int) -> GenerationRequest | None:
        """For one of these steps; None if none of them fits into that many tokens."""
        if len(choices) > 1:
            choices = tuple(c for c in choices if self._min_tokens(c) + self._worthwhile(c) <= max_tokens)
        grammar = self._language.grammar(choices, ends_line=ends_line) if choices else None
        if grammar is None or grammar.distance > max_tokens:
            return None
        stop = tuple(f"</{move.tag}>" for move in choices)
        return GenerationRequest(stop, max_tokens, grammar=grammar, step_grammar=grammar)

    def _rest_of_step(self, unfinished: UnfinishedGeneration) -> GenerationRequest | None:
        """For the end of a step that the token limit cut in two; None if its grammar does not allow its beginning."""
        whole = unfinished.request.step_grammar
        rest = whole.after(unfinished.text) if whole is not None else None
        if rest is None:
            return None
        return GenerationRequest(unfinished.request.stop, rest.distance, grammar=rest.closing(), step_grammar=whole)

    def _worthwhile(self, move: Move) -> int:
        return _PROGRAM_TOKENS if self._profile.shape(move.tag).fenced else _WORTHWHILE_TOKENS

    def _min_tokens(self, move: Move) -> int:
        """Tokens that suffice for the step with any tokenizer: as many as the shortest one has bytes."""
        grammar = self._language.grammar([move], ends_line=True)
        return grammar.distance if grammar else 1 << 30
