"""What a run has written so far, and who wrote it.

After the prompt, a run is one long assistant turn with two authors. The model writes steps such as
`<think>...</think>`; the environment writes observations, and sometimes an opening that the model has to continue.
`Transcript` holds four views of this turn, which grow together:

- the text, in pieces by author: what a chat server is sent;
- the ledger, the token ids of the prompt and the turn: what a token server is sent and what is trained on. Ids that
  the model sampled are kept as sampled, because decoding and tokenising them again may give other ids;
- the steps that the parser reads in the text: what the trajectory records;
- the state of the protocol after these steps: which agent may act next.

The one difficulty is a generation that reaches its token limit in the middle of a step. Its text is in the transcript,
but what it means is known only when the rest is there. `UnfinishedGeneration` remembers where it began; the next
generation is read together with it, and the steps read then take the place of the preliminary ones. Text and ledger
are not affected: they only ever grow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from pydantic import JsonValue

from coa.models.base import Context, Finish, Generation, first_stop
from coa.trajectory import (
    Author,
    Ledger,
    Message,
    Parser,
    Profile,
    State,
    Step,
    Stop,
    Tokenizer,
    Tokens,
    TurnEnd,
    attribute,
)
from coa.trajectory.codec import canonical
from coa.trajectory.grammar import Grammar
from coa.trajectory.types import FrozenDict

_NO_TOKENS: Final = Tokens(ids=(), logprobs=())


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What one call of the model may write. The answer is read with the same request in hand."""

    stop: tuple[str, ...]
    """Stop strings. The model writes one of them itself and nothing after it."""
    max_tokens: int
    opening: str = ""
    """What the environment has just written for the model to continue, such as `<answer>`."""
    grammar: Grammar | None = None
    """What may be written, where the model is held to the protocol."""
    step_grammar: Grammar | None = None
    """The same for the whole step: `grammar` may begin in the middle of one."""
    reason: Stop | None = None
    """Of a step on the shortest path to the answer: why the run has to end."""


@dataclass(frozen=True, slots=True)
class UnfinishedGeneration:
    """What the model wrote since a point of the transcript, and the run as it stood at that point."""

    first_step: int
    """Number of steps before it."""
    state: State
    ends_line: bool
    request: GenerationRequest
    """The last one that it was written for."""
    text: str = ""
    tokens: Tokens | None = _NO_TOKENS
    """None where the model did not report the ids."""


class Transcript:
    """Of one run. `listen` is called with each step of the model's when it is appended."""

    def __init__(
        self,
        profile: Profile,
        tokenizer: Tokenizer | None,
        prompt: tuple[Message, ...],
        listen: Callable[[Step], None] | None,
    ) -> None:
        self.prompt = prompt
        self.tokenizer = tokenizer
        self.steps: list[Step] = []
        self.state = State.begin(profile)
        self.unfinished: UnfinishedGeneration | None = None
        """The last generation, if its token limit cut it off and nothing was written after it."""
        self._profile = profile
        self._listen = listen
        self._pieces: list[tuple[Author, str]] = []
        self._ledger = Ledger(tokenizer) if tokenizer is not None else None
        self._turn_ends: list[TurnEnd] = []
        self._reported_tokens = 0

    def open(self) -> None:
        """Tokenise the prompt."""
        if self._ledger is not None:
            self._ledger.open(self.prompt)

    @property
    def tokens(self) -> int:
        """Length in tokens, prompt included; without a tokenizer, what the model reported after its last call."""
        return len(self._ledger) if self._ledger is not None else self._reported_tokens

    @property
    def ends_line(self) -> bool:
        """Whether the next step begins a line: the text is empty, or its last character is a line break."""
        return not self._pieces or self._pieces[-1][1].endswith("\n")

    def context(self) -> Context:
        """All of it, as a model reads it."""
        turns = [
            (author is Author.MODEL, "".join(text for _, text in pieces))
            for author, pieces in groupby(self._pieces, key=lambda piece: piece[0])
        ]
        return Context(
            messages=self.prompt,
            text="".join(text for _, text in self._pieces),
            ids=self._ledger.ids if self._ledger is not None else None,
            turns=turns,
        )

    def recorded(self) -> tuple[Sequence[Step], Sequence[TurnEnd]]:
        """Steps and ends of turns for the trajectory.

        Steps taken from a stream that was cut off have no ids. Training takes the ids of all steps or of none, so one
        such step takes them from the others.
        """
        if any(step.meta.get("partial") for step in self.steps):
            return [step.model_copy(update={"tokens": None}) for step in self.steps], ()
        return self.steps, self._turn_ends

    # ---- the model writes

    def append_generation(
        self, generation: Generation, request: GenerationRequest, *, partial: bool = False
    ) -> tuple[Step, ...]:
        """Read what the model wrote into steps, each with the ids it was sampled as, and append them.

        `partial` marks the steps as taken from a stream that was cut off.
        """
        start = self.unfinished or self._start(request)
        del self.steps[start.first_step :]
        self.state = start.state
        text = start.text + generation.text
        tokens = generation.tokens if start.tokens is _NO_TOKENS else _joined(start.tokens, generation.tokens)
        stopped = first_stop(text, request.stop)
        end = stopped[0] if stopped else len(text)
        parser = Parser(self._profile, given=request.opening, ends_line=start.ends_line)
        parser.feed(text[:end])
        parser.finish(text[end:])  # what the last token spelled beyond the stop string
        steps = parser.steps
        if tokens is not None and self._ledger is not None and steps:
            steps = self._with_tokens(steps, tokens, ends_line=start.ends_line)
        if meta := _provenance(generation, request, partial=partial):
            steps = tuple(step.model_copy(update={"meta": FrozenDict({**step.meta, **meta})}) for step in steps)
        for step in steps:
            self._append(step)
            if self._listen is not None:
                self._listen(step)
        if generation.ended is not None:
            token, logprob = generation.ended
            self._turn_ends.append(TurnEnd(before=len(self.steps), id=token, logprob=logprob))
        cut = generation.finish is Finish.LENGTH and not request.opening and not stopped
        self.unfinished = replace(start, request=request, text=text, tokens=tokens) if cut else None
        self._write_generation(generation, partial=partial)
        return steps

    def _start(self, request: GenerationRequest) -> UnfinishedGeneration:
        """A generation of which nothing has been written but its opening."""
        before = self._pieces[:-1] if request.opening else self._pieces
        ends_line = not before or before[-1][1].endswith("\n")
        return UnfinishedGeneration(len(self.steps), self.state, ends_line, request)

    def _with_tokens(self, steps: Sequence[Step], tokens: Tokens, *, ends_line: bool) -> tuple[Step, ...]:
        """Divide the sampled ids among the steps that they spell."""
        assert self.tokenizer is not None
        surfaces = []
        for step in steps:
            surface = canonical(step, self._profile, ends_line=ends_line) if step.surface is None else step.surface
            surfaces.append(surface[step.given :])
            ends_line = surface.endswith("\n") if surface else ends_line
        shares = attribute(self.tokenizer, tokens.ids, tokens.logprobs, surfaces)
        return tuple(step.model_copy(update={"tokens": share}) for step, share in zip(steps, shares, strict=True))

    def _write_generation(self, generation: Generation, *, partial: bool) -> None:
        text, tokens, last = generation.text, generation.tokens, len(self.steps) - 1
        if text:
            self._pieces.append((Author.MODEL, text))
        if self._ledger is None:
            if not partial:
                self._reported_tokens = generation.usage.prompt_tokens + generation.usage.completion_tokens
        elif tokens is not None:
            self._ledger.append_sampled(tokens, step=last, text=text)
        elif text:
            self._ledger.append(Author.MODEL, text, step=last)

    # ---- the environment writes

    def append_step(self, step: Step) -> None:
        """A whole step of the environment's."""
        text = canonical(step, self._profile, ends_line=self.ends_line)
        self._append(step)
        self._write_environment(text, len(self.steps) - 1)

    def append_opening(self, tag: str) -> str:
        """The opening tag of a step that the model has to fill in; returns what was written."""
        text = f"<{tag}>" if self.ends_line else f"\n<{tag}>"
        self._write_environment(text, len(self.steps))
        return text

    def _write_environment(self, text: str, step: int) -> None:
        self.unfinished = None
        self._pieces.append((Author.ENVIRONMENT, text))
        if self._ledger is not None:
            self._ledger.append(Author.ENVIRONMENT, text, step=step)

    def _append(self, step: Step) -> None:
        self.steps.append(step)
        self.state, _ = self.state.advance(step)


def _joined(one: Tokens | None, other: Tokens | None) -> Tokens | None:
    if one is None or other is None:
        return None
    logprobs = None if one.logprobs is None or other.logprobs is None else one.logprobs + other.logprobs
    return Tokens(ids=one.ids + other.ids, logprobs=logprobs)


def _provenance(generation: Generation, request: GenerationRequest, *, partial: bool) -> dict[str, JsonValue]:
    """What a step's meta says of how it came about, for whoever trains on it."""
    meta: dict[str, JsonValue] = {}
    if generation.constrained:
        meta["constrained"] = True
        if generation.log_kept is not None:
            meta["log_kept"] = round(generation.log_kept, 6)
        if request.reason is not None:
            meta["led"] = str(request.reason)
    if partial:
        meta["partial"] = True
    return meta
