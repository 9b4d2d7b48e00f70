"""The token ledger: an append-only list of spans, and the only place where text becomes ids to train on.

A transcript alternates between the model and the environment. Tokenised as a whole, a token could cross the border
between the two, and the ids would differ from those that the model sampled. So the ledger cuts the transcript into
spans, each with one author. Each span is tokenised separately and only once, and sampled ids are kept as sampled, so a
trajectory has the same ids in SFT, RL and inference. A token is trained if the model wrote its span. Searching the ids
for a tag instead would break as soon as the tokenizer merges the tag with its neighbour (`><`, `>\n\n`, ` <`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, Protocol

from coa.errors import LedgerError
from coa.trajectory.codec import pieces
from coa.trajectory.profile import Profile
from coa.trajectory.types import Author, Message, Stop, Tokens, Trajectory, TurnEnd

PROMPT: Final = -1
"""Step number of the prompt's span."""


class Tokenizer(Protocol):
    """The part of a tokenizer that the ledger needs. `coa.models.tokenizer` implements it."""

    @property
    def fingerprint(self) -> str:
        """Equal for two tokenizers that give the same ids for every text."""

    @property
    def end_of_turn(self) -> int | None:
        """The id with which the model ends its turn."""

    @property
    def end_ids(self) -> frozenset[int]:
        """All ids that end a turn, `end_of_turn` included; many models have several."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text as part of a transcript: without a prefix, and with control tokens in it as plain text."""

    def encode_prompt(self, messages: Sequence[Message]) -> tuple[str, list[int]]:
        """Text and ids of the filled chat template, up to where the model begins to write."""

    def decode(self, ids: Sequence[int]) -> str: ...

    def split(self, ids: Sequence[int]) -> list[str]:
        """Text of each id; joined they are the whole text. A character of several ids belongs to the last of them."""


class Span(NamedTuple):
    """Consecutive tokens by one author."""

    author: Author
    text: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    step: int


@dataclass(frozen=True)
class Sample:
    """Token ids that are ready to train on. All lists have one entry for each token."""

    ids: list[int]
    mask: list[bool]
    """Whether the model wrote the token, and so whether it is trained."""
    steps: list[int]
    """Index of the token's step; `PROMPT` before the first step."""
    logprobs: list[float] | None
    """Logprobs as sampled, 0 for tokens of the environment; None unless every trained token has one."""
    agents: tuple[str, ...] = ()
    """Tag of each step, for losses that weight agents differently."""
    labels: Mapping[int, int] = field(default_factory=dict)
    """Ids that the model sampled at these positions instead of the ids there: it ended its turn, and the environment
    continued. Present only on request; the mask is then set at these positions."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def positions(self) -> list[int]:
        """Position ids. They start at 0 in each sample, which separates packed samples."""
        return list(range(len(self.ids)))

    @property
    def trained(self) -> int:
        return sum(self.mask)


class Ledger:
    """Append-only record of the text and token ids of one run, with the author of each span.

    Call `open` with the prompt, then `append` and `append_sampled`, then perhaps `close`. [The
    ledger](../concepts/ledger.md) explains it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._spans: list[Span] = []
        self._ids: list[int] = []
        self._ends: list[tuple[int, TurnEnd]] = []

    @property
    def spans(self) -> tuple[Span, ...]:
        return tuple(self._spans)

    @property
    def text(self) -> str:
        return "".join(span.text for span in self._spans)

    @property
    def ids(self) -> list[int]:
        return self._ids.copy()

    def __len__(self) -> int:
        return len(self._ids)

    def open(self, messages: Sequence[Message]) -> Span:
        if self._spans:
            raise LedgerError("the prompt must come first and only once")
        text, ids = self._tokenizer.encode_prompt(messages)
        return self._add(Span(Author.ENVIRONMENT, text, tuple(ids), None, PROMPT))

    def append(self, author: Author, text: str, *, step: int) -> Span:
        """Append text that has no ids."""
        (ids,) = self._tokenizer.encode([text])
        return self._add(Span(author, text, tuple(ids), None, step))

    def append_sampled(self, tokens: Tokens, *, step: int, text: str | None = None) -> Span:
        """Append sampled ids as they are. `text` is what they decode to, if that is already known."""
        decoded = self._tokenizer.decode(tokens.ids) if text is None else text
        return self._add(Span(Author.MODEL, decoded, tokens.ids, tokens.logprobs, step))

    def close(self, *, step: int) -> Span | None:
        """Append the token with which the model ends its turn; None if the tokenizer has none."""
        end = self._tokenizer.end_of_turn
        if end is None:
            return None
        return self._add(Span(Author.MODEL, self._tokenizer.decode([end]), (end,), None, step))

    def end_turn(self, end: TurnEnd) -> None:
        """The model ended its turn here. This adds no id: if the run goes on, the token is not part of the context."""
        self._ends.append((len(self._ids), end))

    def to_sample(self, agents: Sequence[str] = (), *, ends: bool = False) -> Sample:
        """With `ends`, tokens that ended a turn are trained too, as sampled. The caller then has to use `labels`."""
        ids: list[int] = []
        mask: list[bool] = []
        steps: list[int] = []
        logprobs: list[float] = []
        complete = True
        for span in self._spans:
            count, trained = len(span.ids), span.author is Author.MODEL
            ids += span.ids
            mask += [trained] * count
            steps += [span.step] * count
            complete = complete and (not trained or span.logprobs is not None or not count)
            logprobs += span.logprobs or [0.0] * count
        labels: dict[int, int] = {}
        for at, end in self._ends if ends else ():
            if at == len(ids):
                ids, mask, steps = [*ids, end.id], [*mask, True], [*steps, steps[-1] if steps else PROMPT]
                logprobs = [*logprobs, end.logprob]
            elif mask[at]:
                raise LedgerError(
                    f"the model ended its turn before step {end.before}, but the next token is also the model's",
                    hint="the record was changed: remove `ends`, or sample the run again",
                )
            else:
                mask[at], logprobs[at], labels[at] = True, end.logprob, end.id
        return Sample(ids, mask, steps, logprobs if complete and any(mask) else None, tuple(agents), labels)

    def _add(self, span: Span) -> Span:
        self._spans.append(span)
        self._ids += span.ids
        return span


def ledger_of(
    trajectory: Trajectory, tokenizer: Tokenizer, profile: Profile, *, end_of_turn: bool | None = None
) -> Ledger:
    """The ledger of a recorded trajectory. It has the same ids as during the run.

    `end_of_turn` adds the token that ends the turn, trained. By default it is added to an answered trajectory without
    sampled ids, to teach the model when to stop, and not to a sampled one, because nobody sampled it.
    """
    return ledgers_of([trajectory], tokenizer, profile, end_of_turn=end_of_turn)[0]


def ledgers_of(
    trajectories: Iterable[Trajectory], tokenizer: Tokenizer, profile: Profile, *, end_of_turn: bool | None = None
) -> list[Ledger]:
    """`ledger_of` for several trajectories; the tokenizer encodes all their spans together."""
    planned = [(trajectory, _planned(trajectory, tokenizer, profile)) for trajectory in trajectories]
    encoded = iter(tokenizer.encode([text for _, spans in planned for _, _, text, tokens in spans if tokens is None]))
    ledgers = []
    for trajectory, spans in planned:
        sampled = any(span.tokens for span in spans)
        written = any(span.author is Author.MODEL for span in spans)
        usable = trajectory.tokenizer == tokenizer.fingerprint and (sampled or not written)
        ends = deque(trajectory.ends if usable else ())
        ledger = Ledger(tokenizer)
        ledger.open(trajectory.prompt or profile.messages(trajectory.task))
        for step, author, text, tokens in spans:
            while ends and ends[0].before <= step:
                ledger.end_turn(ends.popleft())
            ids, logprobs = (tuple(next(encoded)), None) if tokens is None else (tokens.ids, tokens.logprobs)
            ledger._add(Span(author, text, ids, logprobs, step))
        for end in ends:
            ledger.end_turn(end)
        finished_unsampled = trajectory.stop is Stop.ANSWERED and written and not sampled
        if finished_unsampled if end_of_turn is None else end_of_turn:
            ledger.close(step=len(trajectory.steps) - 1)
        ledgers.append(ledger)
    return ledgers


def attribute(
    tokenizer: Tokenizer, ids: Sequence[int], logprobs: Sequence[float] | None, surfaces: Sequence[str]
) -> list[Tokens]:
    """Divide sampled ids among the steps that they spell. A token belongs to the step in which it begins.

    `surfaces` are the model's parts of consecutive steps; joined they must be what the ids decode to.
    """
    texts = tokenizer.split(ids)
    whole = "".join(surfaces)
    if "".join(texts) != whole:
        raise LedgerError(f"the sampled ids decode to {''.join(texts)!r}, not to {whole!r}")
    cuts, position, token = [0], 0, 0
    for end in accumulate(map(len, surfaces[:-1])):
        while token < len(texts) and position < end:
            position += len(texts[token])
            token += 1
        cuts.append(token)
    cuts.append(len(ids))
    return [
        Tokens(ids=tuple(ids[a:b]), logprobs=None if logprobs is None else tuple(logprobs[a:b]))
        for a, b in pairwise(cuts)
    ]


class _Planned(NamedTuple):
    step: int
    author: Author
    text: str
    tokens: Tokens | None


def _planned(trajectory: Trajectory, tokenizer: Tokenizer, profile: Profile) -> list[_Planned]:
    # Ids of another vocabulary have another meaning here; their text is tokenised instead.
    same = trajectory.tokenizer == tokenizer.fingerprint
    spans = []
    for step, author, text in pieces(trajectory.steps, profile):
        tokens = trajectory.steps[step].tokens if same and author is Author.MODEL else None
        spans.append(_Planned(step, author, text, tokens))
    if any(span.tokens for span in spans):
        _refuse_mixtures(trajectory, spans)
    return spans


def _refuse_mixtures(trajectory: Trajectory, spans: Sequence[_Planned]) -> None:
    """A model step without ids next to sampled ones: a token across their border would be counted twice or lost."""
    for span in spans:
        if span.author is Author.MODEL and span.tokens is None:
            raise LedgerError(
                f"task {trajectory.task.id!r}: step {span.step} (<{trajectory.steps[span.step].agent}>) has no sampled "
                f"tokens although other steps have",
                hint="remove the tokens of all steps, so that their text is tokenised, or sample the run again",
            )
