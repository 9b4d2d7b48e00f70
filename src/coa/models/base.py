"""What a model is to the rest of coa: something that goes on writing where a context ends.

Any object with the members of `Model` can be used. The models that come with coa are servers that exchange token ids
(`completions`), chat servers (`chat`), weights in this process (`local`) and fixed replies for tests (`scripted`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from coa.trajectory import Message, Tokenizer, Tokens, Usage
from coa.trajectory.grammar import Grammar

OnText = Callable[[str], None] | None
"""Is called with the text so far, repeatedly if the model can stream."""


class Finish(StrEnum):
    """Why a model stopped writing."""

    STOP = "stop"
    """It wrote one of the stop strings."""
    END = "end"
    """It ended its turn."""
    LENGTH = "length"
    """It reached the token limit of this call."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one model call. The defaults are those of the paper."""

    temperature: float = 1.0
    top_p: float = 0.9
    top_k: int = 20
    max_tokens: int = 4096
    """Limit of one call. The chain lowers it to what is left of its budget."""
    seed: int | None = None
    json_schema: str | None = None
    """The reply must be JSON of this schema. Servers enforce it if they can; other models ignore it."""


class Home:
    """Where a run is at home. A model on several servers notes here which of them has the run's prefix in its cache."""

    __slots__ = ("server",)

    def __init__(self) -> None:
        self.server: object | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """What a model continues: the messages of the prompt, and the assistant turn so far as text and as token ids."""

    messages: Sequence[Message]
    text: str
    ids: Sequence[int] | None
    """Ids of the prompt and the turn together; None for a model without a tokenizer."""
    turns: Sequence[tuple[bool, str]] = ()
    """The turn cut where the author changes, as (by the model, text), for servers that cannot continue a turn."""
    thought: Callable[[str], str] | None = None
    """Writes reasoning that a server reports apart from its reply as a step; None where no thought may stand."""
    home: Home | None = None
    """The same in all calls of one run; None for a call that belongs to no run."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What a model wrote in one call."""

    text: str
    """Includes the stop string that ended it, if one did, but not the token that ends the turn."""
    finish: Finish
    usage: Usage
    tokens: Tokens | None = None
    """The sampled ids; they decode to `text`."""
    constrained: bool = False
    """Whether decoding was constrained by a grammar."""
    log_kept: float | None = None
    """Sum over all tokens of the logarithm of the probability mass that the grammar allowed, if the model knows it.
    The logprobs minus this are those of the distribution that was sampled from."""
    ended: tuple[int, float] | None = None
    """The token with which the model ended its turn and its logprob, if it did and the model knows them."""


class Model(Protocol):
    """Interface of a language model: it continues a context. Any object with these members can be used as a model."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None if ids cannot be exchanged. Runs then have no tokens, and RL cannot train on them."""

    async def generate(
        self, context: Context, *, stop: Sequence[str], sampling: Sampling, on_text: OnText = None
    ) -> Generation:
        """Continue the context. Raises no other error than `ModelError`."""

    async def close(self) -> None: ...


@runtime_checkable
class Constrained(Model, Protocol):
    """A model whose decoding can be constrained by a grammar."""

    @property
    def constrained_by_default(self) -> bool:
        """Whether to constrain it if the settings leave the choice open."""

    @property
    def unconstrainable(self) -> str | None:
        """Why this model cannot be constrained; None if it can."""

    async def generate(
        self, context: Context, *, stop: Sequence[str], sampling: Sampling, on_text: OnText = None,
        grammar: Grammar | None = None,
    ) -> Generation: ...  # fmt: skip


@runtime_checkable
class CountsTokens(Protocol):
    """A model that knows how much it has written while it is still writing; others say so at the end of each call."""

    @property
    def tokens_written(self) -> int:
        """Tokens that it has written so far in all calls, those of calls that have not ended included."""


async def complete(model: Model, messages: Sequence[Message], *, sampling: Sampling) -> str:
    """One reply to a prompt, without a chain of agents; judges use it."""
    return (await reply(model, messages, sampling=sampling)).text


async def reply(model: Model, messages: Sequence[Message], *, sampling: Sampling) -> Generation:
    """As `complete`, with the usage and the reason for the end."""
    ids = model.tokenizer.encode_prompt(messages)[1] if model.tokenizer is not None else None
    return await model.generate(Context(messages, "", ids), stop=(), sampling=sampling)


def first_stop(text: str, stop: Sequence[str]) -> tuple[int, str] | None:
    """Where the earliest stop string in a text ends, and which stop string it is."""
    found = [(text.find(word), word) for word in stop]
    ends = [(at + len(word), word) for at, word in found if at >= 0]
    return min(ends, key=lambda pair: pair[0]) if ends else None
