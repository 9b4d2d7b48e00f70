"""What a model is to the rest of coa: something that goes on writing where a context ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from coa.trajectory import Message, Tokenizer, Tokens, Usage
from coa.trajectory.grammar import Grammar


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
    """The paper's setting by default."""

    temperature: float = 1.0
    top_p: float = 0.9
    top_k: int = 20
    max_tokens: int = 4096
    """Of one call; the chain lowers it to what its budget leaves."""
    seed: int | None = None
    json_schema: str | None = None
    """The reply must be JSON of this schema. Servers that can enforce it do; other models are not held to it."""


@dataclass(frozen=True, slots=True)
class Context:
    """All that came before: the prompt's messages, and the one assistant turn so far as text and as ids."""

    messages: Sequence[Message]
    text: str
    ids: Sequence[int] | None
    """Prompt and turn together; None for a model without a tokenizer."""
    turns: Sequence[tuple[bool, str]] = ()
    """The turn cut where the author changes, as (model wrote it, text); for servers that cannot continue a turn."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What a model wrote."""

    text: str
    """With the stop string, where one ended it; without the token that ends the turn."""
    finish: Finish
    usage: Usage
    tokens: Tokens | None = None
    """Exactly what was sampled; decodes to `text`."""
    constrained: bool = False
    """Whether a grammar kept it from writing anything else."""
    log_kept: float | None = None
    """Logarithm of the probability that the grammar left, over all tokens, where the model can tell: the logprobs less
    this are those of the distribution that was sampled from."""
    ended: tuple[int, float] | None = None
    """The token with which the model ended its turn and its logprob, where it did and the model can tell."""


class Model(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None where ids cannot be exchanged; runs then have no tokens and cannot be trained on by RL."""

    async def generate(
        self, context: Context, *, stop: Sequence[str], sampling: Sampling, on_text: Callable[[str], None] | None = None
    ) -> Generation:
        """Raises `ModelError` and nothing else. `on_text` hears the text so far, time and again where it can stream."""

    async def close(self) -> None: ...


@runtime_checkable
class Constrained(Model, Protocol):
    """A model that can be held to a grammar."""

    @property
    def constrained_by_default(self) -> bool:
        """Whether it should be where nobody says otherwise."""

    @property
    def unconstrainable(self) -> str | None:
        """Why it cannot be after all; None if it can."""

    async def generate(
        self,
        context: Context,
        *,
        stop: Sequence[str],
        sampling: Sampling,
        on_text: Callable[[str], None] | None = None,
        grammar: Grammar | None = None,
    ) -> Generation: ...


async def complete(model: Model, messages: Sequence[Message], *, sampling: Sampling) -> str:
    """One reply to a prompt, for judges and the like; no chain."""
    return (await reply(model, messages, sampling=sampling)).text


async def reply(model: Model, messages: Sequence[Message], *, sampling: Sampling) -> Generation:
    """The same, with what it cost and how it ended."""
    ids = model.tokenizer.encode_prompt(messages)[1] if model.tokenizer is not None else None
    return await model.generate(Context(messages, "", ids), stop=(), sampling=sampling)


def first_stop(text: str, stop: Sequence[str]) -> tuple[int, str] | None:
    """Where the earliest stop string in a text ends, and which one it is."""
    found = [(text.find(word), word) for word in stop]
    ends = [(at + len(word), word) for at, word in found if at >= 0]
    return min(ends, key=lambda pair: pair[0]) if ends else None
