"""What a run has written so far, and who wrote it.

After the prompt, a run is one long assistant turn with two authors. The model writes steps such as
`<think>...</think>`; the environment writes observations, and sometimes an opening that the model has to continue.
`Transcript` holds four views of this turn, which grow together:

- the text, in pieces by author: what a chat server is sent;
- the ledger, the token ids of the prompt and the turn: what a token server is sent and what is trained on. Ids that
  the model sampled are kept as sampled, because decoding and tokenising them again may give other ids;
- the steps that the parser reads in the text: what the trajectory records;
- the state of the protocol after these steps: which agent may act next.

Two things make this harder.

- A generation may end in the middle of a step, because it reached its token limit. What it means is known only when the
  rest is there. `UnfinishedGeneration` holds it until then: the next generation is read together with it, and the steps
  read then take the place of the preliminary ones. Text and ledger receive it when it is complete, so they only ever
  grow.
- A model may forget the closing tag of a tool call and write on, inventing the result. Where the text shows that the
  call is over, it is cut there (`_end_of_call`). What the model wrote behind the call is discarded: it is neither part
  of the context nor trained.

Where the environment writes behind a step that was never closed, it writes the closing tag first, so that the model
always reads a well-formed run. That tag is the environment's and is not trained.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from typing import Final

from pydantic import JsonValue

from coa.models.base import Context, Finish, Generation, Home
from coa.trajectory import (
    Author,
    Ledger,
    Message,
    Parser,
    Profile,
    Repair,
    RepairKind,
    State,
    Step,
    Stop,
    Tokenizer,
    Tokens,
    Trajectory,
    TurnEnd,
    attribute,
    pieces,
)
from coa.trajectory.codec import canonical, element
from coa.trajectory.codec.writer import Piece, patterns
from coa.trajectory.grammar import Grammar
from coa.trajectory.shapes import call_length, has_open_fence
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
    pauses: tuple[str, ...] = ()
    """Further stop strings, at which it is worth looking whether a tool call without a closing tag is over. If none is,
    the model goes on writing."""


@dataclass(frozen=True, slots=True)
class UnfinishedGeneration:
    """What the model wrote since a point of the transcript until it was cut off, and the run as it stood there."""

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
    """Of one run. `listen` is called with each step of the model's once nothing can change it any more."""

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
        """The last generation, if it was cut off and nothing was written after it."""
        self.discarded_tokens = 0
        """Tokens that the model wrote behind a tool call or in a call that did not fit, which are not in the run."""
        self._profile = profile
        self._listen = listen
        self._pieces: list[tuple[Author, str]] = []
        self._ledger = Ledger(tokenizer) if tokenizer is not None else None
        self._turn_ends: list[TurnEnd] = []
        self._reported_tokens = 0
        self._home = Home()

    def open(self) -> None:
        """Tokenise the prompt."""
        if self._ledger is not None:
            self._ledger.open(self.prompt)

    def restore(self, trajectory: Trajectory, reported_tokens: int) -> None:
        """Open it and write what a recorded run has written, as the run did: sampled ids as sampled, a text of the
        model's that has none as a whole, and each text of the environment's by itself."""
        self.open()
        tokenizer, written = self.tokenizer, list(pieces(trajectory.steps, self._profile))
        sampled = tokenizer is not None and trajectory.tokenizer == tokenizer.fingerprint
        for author, turn in groupby(written, key=lambda piece: piece.author):
            for text, index, tokens in _turn(list(turn), trajectory.steps if sampled else None, author):
                self._pieces.append((author, text))
                if self._ledger is not None and tokens is not None:
                    self._ledger.append_sampled(tokens, step=index, text=text)
                elif self._ledger is not None:
                    self._ledger.append(author, text, step=index)
        for step in trajectory.steps:
            self._append(step)
        self._turn_ends = list(trajectory.ends)
        self._reported_tokens = reported_tokens

    @property
    def tokens(self) -> int:
        """Length in tokens, prompt included; without a tokenizer, what the model reported after its last call."""
        return len(self._ledger) + len(self._unfinished_ids()) if self._ledger is not None else self._reported_tokens

    @property
    def ends_line(self) -> bool:
        """Whether the next step begins a line: the text is empty, or its last character is a line break."""
        if self.unfinished is not None and self.unfinished.text:
            return self.unfinished.text.endswith("\n")
        return not self._pieces or self._pieces[-1][1].endswith("\n")

    def context(self, opening: str = "") -> Context:
        """All of it, as a model reads it. `opening` is what the environment wrote for the model to continue."""
        pieces = self._pieces
        if self.unfinished is not None and self.unfinished.text:
            pieces = [*pieces, (Author.MODEL, self.unfinished.text)]
        turns = [
            (author is Author.MODEL, "".join(text for _, text in turn))
            for author, turn in groupby(pieces, key=lambda piece: piece[0])
        ]
        return Context(
            messages=self.prompt,
            text="".join(text for _, text in pieces),
            ids=self._ledger.ids + list(self._unfinished_ids()) if self._ledger is not None else None,
            turns=turns,
            thought=None if opening else self._thought_writer(),
            home=self._home,
        )

    def _thought_writer(self) -> Callable[[str], str] | None:
        """Writes a thought where the model goes on; None in the middle of a step, or if no agent thinks."""
        tag, unfinished = self._profile.thought, self.unfinished.text if self.unfinished is not None else ""
        if tag is None or (unfinished and not unfinished.rstrip().endswith(f"</{tag}>")):
            return None
        ends_line = unfinished.endswith("\n") if unfinished else self.ends_line
        return lambda text: element(tag, Author.MODEL, text, self._profile, ends_line=ends_line)

    def recorded(self) -> tuple[Sequence[Step], Sequence[TurnEnd]]:
        """Steps and ends of turns for the trajectory.

        Steps taken from a stream that was cut off have no ids. Training takes the ids of all steps or of none, so one
        such step takes them from the others.
        """
        if any(step.meta.get("partial") for step in self.steps):
            return [step.model_copy(update={"tokens": None}) for step in self.steps], ()
        return self.steps, self._turn_ends

    def _unfinished_ids(self) -> Sequence[int]:
        if self.unfinished is None or self.tokenizer is None:
            return ()
        tokens = self.unfinished.tokens
        return tokens.ids if tokens is not None else self.tokenizer.encode([self.unfinished.text])[0]

    # ---- the model writes

    def append_generation(
        self, generation: Generation, request: GenerationRequest, *, partial: bool = False
    ) -> tuple[Step, ...]:
        """Read what the model wrote into steps, each with the ids it was sampled as, and append them.

        `partial` marks the steps as taken from a stream that was cut off.
        """
        start = self.unfinished or self._start(request)
        self._rewind(start)
        text, tokens = self._joined_with(start, generation)
        new = len(start.text.rstrip("\ufffd"))  # where a character was cut in two, it begins in the new part
        stopped = _stopped(text, request.stop, after=new)
        steps, inside = self._read(text, stopped or len(text), start)
        ended, cut = generation.ended, False
        as_text = stopped is not None and inside in self._profile.tools and not self._closes_a_step(text[:stopped])
        over = generation.finish is not Finish.LENGTH and not as_text
        call_end = None if request.opening else self._end_of_call(steps, text, start.ends_line, over=over)
        if call_end is not None:
            discarded = text[call_end:]
            text, tokens = self._cut(text, tokens, call_end)
            steps, _ = self._read(text, call_end, start)
            steps = (*steps[:-1], _with_discarded(steps[-1], discarded, self._profile))
            self.discarded_tokens += ended is not None  # the end of the turn came behind what was discarded
            ended = None
        elif not request.opening:
            paused = as_text or (not stopped and _stopped(text, request.pauses, after=new) is not None)
            limited = generation.finish is Finish.LENGTH and (stopped is None or as_text)
            cut = limited or (generation.finish is Finish.STOP and paused)
        if meta := _provenance(generation, request, partial=partial):
            steps = tuple(step.model_copy(update={"meta": FrozenDict({**step.meta, **meta})}) for step in steps)
        steps = self._append_read(steps, tokens, ends_line=start.ends_line)
        if ended is not None:
            token, logprob = ended
            self._turn_ends.append(TurnEnd(before=len(self.steps), id=token, logprob=logprob))
        if not partial:
            self._reported_tokens = generation.usage.prompt_tokens + generation.usage.completion_tokens
        self.unfinished = replace(start, request=request, text=text, tokens=tokens)
        if not cut:
            self.write_unfinished()
        return steps

    def withdraw_call(self) -> bool:
        """Remove a tool call that the model has not finished; whether there was one.

        Half a program cannot be run, and an answer that follows it would follow half a step.
        """
        unfinished = self.unfinished
        if unfinished is None or not self.steps or self.steps[-1].agent not in self._profile.tools:
            return False
        kept = self.steps[unfinished.first_step : -1]
        end = sum(map(len, self._surfaces(kept, unfinished.ends_line)))
        text, tokens = self._cut(unfinished.text, unfinished.tokens, end)
        self._rewind(unfinished)
        steps = self._read(text, end, unfinished)[0] if kept else ()
        metas = [step.meta for step in kept]
        steps = tuple(step.model_copy(update={"meta": meta}) for step, meta in zip(steps, metas, strict=True))
        self._append_read(steps, tokens, ends_line=unfinished.ends_line)
        self.unfinished = replace(unfinished, text=text, tokens=tokens)
        self.write_unfinished()
        return True

    def _start(self, request: GenerationRequest) -> UnfinishedGeneration:
        """A generation of which nothing has been written but its opening."""
        before = self._pieces[:-1] if request.opening else self._pieces
        ends_line = not before or before[-1][1].endswith("\n")
        return UnfinishedGeneration(len(self.steps), self.state, ends_line, request)

    def _rewind(self, start: UnfinishedGeneration) -> None:
        del self.steps[start.first_step :]
        self.state = start.state

    def _read(self, text: str, end: int, start: UnfinishedGeneration) -> tuple[tuple[Step, ...], str | None]:
        """The steps of a text that ends at `end`, and the agent that was still writing there. What the last token
        spelled beyond the end is added to the last step's surface."""
        closing, opening = _closing_and_opening(start.request.opening)
        parser = Parser(self._profile, given=opening, ends_line=start.ends_line and not closing, quiet=True)
        parser.feed(text[:end])
        inside = parser.open_agent
        parser.finish(text[end:])
        steps = parser.steps
        if closing and steps:
            first = steps[0]
            surface = closing + (first.surface or "")
            steps = (first.model_copy(update={"surface": surface, "given": first.given + len(closing)}), *steps[1:])
        return steps, inside

    def _joined_with(self, start: UnfinishedGeneration, generation: Generation) -> tuple[str, Tokens | None]:
        """The text and ids of both. A limit may cut a character in two, so joined ids are decoded anew."""
        if start.tokens is _NO_TOKENS:
            return generation.text, generation.tokens
        tokens = _joined(start.tokens, generation.tokens)
        if tokens is None or self.tokenizer is None:
            return start.text + generation.text, tokens
        return self.tokenizer.decode(tokens.ids), tokens

    def _closes_a_step(self, text: str) -> bool:
        """Whether the closing tag at the end of a text belongs to a step that began at the start of a line.

        Inside a program without a closing fence this separates `<answer>...</answer>`, which is the next step, from
        a program that only contains the closing tag.
        """
        closing = text.rfind("</")
        tag = text[closing + 2 : -1]
        return closing >= 0 and re.search(rf"(?m)^[ \t]*<{re.escape(tag)}>", text[:closing]) is not None

    def _end_of_call(self, steps: Sequence[Step], text: str, ends_line: bool, *, over: bool) -> int | None:
        """Where the first tool call ends, if the model wrote on behind it; None if nothing has to be discarded.

        `over` says whether the model has stopped, so that a call at the end of the text is complete.
        """
        at = next((at for at, step in enumerate(steps) if step.agent in self._profile.tools), None)
        if at is None:
            return None
        call, last, unclosed = steps[at], at == len(steps) - 1, steps[at].has(RepairKind.MISSING_CLOSE)
        if last and not (unclosed and over):
            return None
        surfaces = self._surfaces(steps[: at + 1], ends_line)
        length = extent(surfaces[at], self._profile, call.agent) if unclosed else len(surfaces[at])
        end = sum(map(len, surfaces[:at])) + length
        return end if text[end:].strip() else None

    def _cut(self, text: str, tokens: Tokens | None, end: int) -> tuple[str, Tokens | None]:
        """The text up to `end`, and its ids. A token that begins before the end is kept whole."""
        if tokens is None or self.tokenizer is None:
            return text[:end], tokens
        kept, position = 0, 0
        for piece in self.tokenizer.split(tokens.ids):
            if position >= end:
                break
            position += len(piece)
            kept += 1
        self.discarded_tokens += len(tokens.ids) - kept
        logprobs = None if tokens.logprobs is None else tokens.logprobs[:kept]
        return text[:position], Tokens(ids=tokens.ids[:kept], logprobs=logprobs)

    def _surfaces(self, steps: Sequence[Step], ends_line: bool) -> list[str]:
        """What the model wrote of each step, character by character."""
        surfaces = []
        for step in steps:
            surface = canonical(step, self._profile, ends_line=ends_line) if step.surface is None else step.surface
            surfaces.append(surface[step.given :])
            ends_line = surface.endswith("\n") if surface else ends_line
        return surfaces

    def _append_read(self, steps: tuple[Step, ...], tokens: Tokens | None, *, ends_line: bool) -> tuple[Step, ...]:
        """Append steps that were read, with the sampled ids divided among the steps that they spell."""
        if tokens is not None and self.tokenizer is not None and steps:
            shares = attribute(self.tokenizer, tokens.ids, tokens.logprobs, self._surfaces(steps, ends_line))
            steps = tuple(step.model_copy(update={"tokens": share}) for step, share in zip(steps, shares, strict=True))
        for step in steps:
            self._append(step)
        return steps

    def write_unfinished(self) -> None:
        """Nothing will be added to the last generation: it becomes part of the text and the ledger."""
        written, self.unfinished = self.unfinished, None
        if written is None:
            return
        if self._listen is not None:
            for step in self.steps[written.first_step :]:
                self._listen(step)
        last = len(self.steps) - 1
        if written.text:
            self._pieces.append((Author.MODEL, written.text))
        if self._ledger is not None and written.tokens is not None:
            self._ledger.append_sampled(written.tokens, step=last, text=written.text)
        elif self._ledger is not None and written.text:
            self._ledger.append(Author.MODEL, written.text, step=last)

    # ---- the environment writes

    def append_step(self, step: Step) -> None:
        """A whole step of the environment's. A step of the model's that was never closed is closed first."""
        closing = self._missing_close()
        text = closing + canonical(step, self._profile, ends_line=self.ends_line and not closing)
        self._write_environment(text, len(self.steps))
        self._append(step.model_copy(update={"surface": text}) if closing else step)

    def append_opening(self, tag: str) -> str:
        """The opening tag of a step that the model has to fill in; returns what was written."""
        closing = self._missing_close()
        text = f"{closing}<{tag}>" if self.ends_line and not closing else f"{closing}\n<{tag}>"
        self._write_environment(text, len(self.steps))
        return text

    def _missing_close(self) -> str:
        """What closes the last step, if the model left it open."""
        last = self.steps[-1] if self.steps else None
        if last is None or last.author is not Author.MODEL or not last.has(RepairKind.MISSING_CLOSE):
            return ""
        fence = "```\n" if self._profile.shape(last.agent).fenced and has_open_fence(last.text) else ""
        return f"{'' if not fence or self.ends_line else chr(10)}{fence}</{last.agent}>"

    def _write_environment(self, text: str, step: int) -> None:
        self.write_unfinished()
        self._pieces.append((Author.ENVIRONMENT, text))
        if self._ledger is not None:
            self._ledger.append(Author.ENVIRONMENT, text, step=step)

    def _append(self, step: Step) -> None:
        self.steps.append(step)
        self.state, _ = self.state.advance(step)


def _turn(
    written: Sequence[Piece], steps: Sequence[Step] | None, author: Author
) -> list[tuple[str, int, Tokens | None]]:
    """What one author wrote without a break, in the parts in which it is tokenised: text, step and ids of each."""
    if author is Author.ENVIRONMENT:
        return [(piece.text, piece.step, None) for piece in written]
    ids = [steps[piece.step].tokens for piece in written] if steps is not None else [None]
    tokens = reduce(_joined, ids)
    return [("".join(piece.text for piece in written), written[-1].step, tokens)]


def extent(surface: str, profile: Profile, tag: str) -> int:
    """How much of an unclosed tool call is the call itself; the rest is what the model invented behind it."""
    tags = patterns(profile.tags).tag
    opening = tags.search(surface)
    if opening is None:
        return len(surface)
    content = surface[opening.end() :]
    end = call_length(profile.shape(tag), content)
    for following in tags.finditer(content, 0, end):
        line_start = content.rfind("\n", 0, following.start()) + 1
        if not following.group(1) and not content[line_start : following.start()].strip():
            end = line_start
            break
    return opening.end() + len(content[:end].rstrip())


def _closing_and_opening(text: str) -> tuple[str, str]:
    """Separate the closing tag of the step before from the opening tag that the model has to continue."""
    at = text.rfind("<")
    if at <= 0 or not text[:at].strip():
        return "", text
    return text[:at].removesuffix("\n"), f"\n{text[at:]}"


def _with_discarded(step: Step, text: str, profile: Profile) -> Step:
    """The call with a note of what the model wrote behind it, if that is more than the next opening tag."""
    if not patterns(profile.tags).tag.sub("", text, count=1).strip():
        return step
    repair = Repair(kind=RepairKind.DISCARDED, detail=f"{len(text.strip())} characters")
    return step.model_copy(update={"repairs": (*step.repairs, repair)})


def _stopped(text: str, stop: Sequence[str], *, after: int) -> int | None:
    """Where the first stop string ends that ends behind `after`; None if there is none."""
    ends = [at + len(word) for word in stop if (at := text.find(word, max(after - len(word) + 1, 0))) >= 0]
    return min(ends, default=None)


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
