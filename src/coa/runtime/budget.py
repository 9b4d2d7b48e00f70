"""What a run may still spend (steps, tokens, room in the context, money, time), with enough kept back for an answer."""

from __future__ import annotations

import math
import time
from typing import Final, NamedTuple

from coa.errors import ModelError
from coa.models.price import Price
from coa.runtime.transcript import Transcript
from coa.trajectory import Limits, Stop, Usage

ANSWER_TOKENS: Final = 512
"""Most tokens that are kept back for the answer when a budget runs out."""
_TINY_TOKENS: Final = 128
"""Budgets below this are for tests and toy models. Their answer gets a few tokens beyond the limit."""
_UNPACED_TOKENS: Final = 64
"""Beyond the bare minimum, on the path to the answer of a run whose model has not ended a single call."""


class PathLength(NamedTuple):
    """How much a legal path to the answer takes. A free model is given the answer to fill in: one step, no minimum."""

    steps: int = 1
    tokens: int = 0


class Budget:
    """Of one run. `longest_path`: where the model is held to the protocol, the shortest legal path to the answer may
    have several steps; this is the longest that it can be."""

    def __init__(
        self, limits: Limits, price: Price | None, transcript: Transcript, longest_path: PathLength | None = None
    ) -> None:
        refuse_unpriced(limits, price)
        self.limits = limits
        self.usage = Usage() if price is None else Usage(cost=0.0)
        self.writing_s = 0.0
        """Seconds that the model took so far."""
        self._price, self._transcript, self._longest_path = price, transcript, longest_path or PathLength()
        self._started = time.monotonic()

    @property
    def context_tokens(self) -> int:
        """How long the transcript is, prompt included."""
        return self._transcript.tokens

    def start(self) -> None:
        self._started = time.monotonic()

    def resume(self, used: Usage, writing_s: float) -> None:
        """Start where a recorded run stopped. The time since then does not count."""
        self.usage = used.model_copy(update={"seconds": 0.0})
        self.writing_s = writing_s
        self._started = time.monotonic() - used.seconds

    def pay(self, used: Usage) -> None:
        if self._price is not None:
            used = used.model_copy(update={"cost": self._price.of(used)})
        self.usage = self.usage + used

    @property
    def total(self) -> Usage:
        """What was used, with the time since the start."""
        return self.usage.model_copy(update={"seconds": time.monotonic() - self._started})

    def spent(self, steps: int) -> Stop | None:
        """Why it is time to answer, if it is."""
        limits = self.limits
        if steps >= limits.steps:
            return Stop.STEPS
        if self._tokens_left <= 0:
            return Stop.TOKENS
        if self.context_tokens + self.reserve >= limits.context_tokens:
            return Stop.CONTEXT
        if self._affordable() <= 0:
            return Stop.COST
        if self.seconds_left <= 0:
            return Stop.TIME
        return None

    def scarcest(self, room: int) -> Stop:
        """Which budget is the one that leaves no more than `room` tokens, where no step fits into them."""
        if self._affordable() < room + 1:
            return Stop.COST
        full = self.context_tokens + self.reserve + room >= self.limits.context_tokens
        return Stop.CONTEXT if full else Stop.TOKENS

    @property
    def calls_left(self) -> bool:
        """Whether tools may still be called."""
        return self.usage.tool_calls < self.limits.tool_calls

    @property
    def seconds_left(self) -> float:
        """Until it is time to answer; a tenth of the whole is kept for that."""
        return self._started + 0.9 * self.limits.seconds - time.monotonic()

    @property
    def seconds_to_end(self) -> float:
        """Until the run is cut off."""
        return self._started + self.limits.seconds - time.monotonic()

    @property
    def room(self) -> int:
        """Tokens that the next call may write."""
        context = self.limits.context_tokens - self.reserve - self.context_tokens
        return max(int(min(self._tokens_left, context, self._affordable())), 1)

    @property
    def constrained_room(self) -> int:
        """The same for a constrained model, which has to write the path to the answer itself: the tokens for that path
        are kept back too."""
        share = max(self._answer_share, self._longest_path.tokens)
        return min(self.room, self.limits.model_tokens - self.usage.completion_tokens - share)

    @property
    def observation_room(self) -> int:
        """Tokens that an observation may have, so that a step and the answer still fit behind it."""
        return self.limits.context_tokens - self.context_tokens - 2 * self.reserve - 32

    def path_room(self, shortest: PathLength) -> int:
        """Tokens for the rest of the path to the answer, which takes at least as many as `shortest` says."""
        left = self.limits.model_tokens - self.usage.completion_tokens
        room = min(left, self.limits.context_tokens - self.context_tokens)
        return int(max(min(room, self._payable(shortest.steps), shortest.tokens + self._writable()), 0))

    @property
    def answer_room(self) -> int:
        """Tokens for an answer that is opened for the model: at least 16, also where the model's are spent."""
        most = ANSWER_TOKENS if self.limits.cost is None else int(min(self.reserve, self._payable(1)))
        left = self.limits.model_tokens - self.usage.completion_tokens
        return max(min(most, left, self.limits.context_tokens - self.context_tokens), 16)

    @property
    def _tokens_left(self) -> int:
        """Tokens that the model may write before it is time to answer."""
        return self.limits.model_tokens - self._answer_share - self.usage.completion_tokens

    @property
    def _answer_share(self) -> int:
        """Tokens of the model's that are kept back for the answer: an eighth, and none of a budget that is tiny."""
        most = self.limits.model_tokens
        return min(ANSWER_TOKENS, most // 8) if most >= _TINY_TOKENS else 0

    @property
    def reserve(self) -> int:
        """Tokens of the context that are kept back for the answer."""
        return max(min(ANSWER_TOKENS, self.limits.context_tokens // 8), self._longest_path.tokens)

    def _affordable(self) -> float:
        """How many tokens the next call may write so that there is still money for the answer.

        Reckoned as if nothing came from the server's cache. Only what a tool answers can take a run past its limit,
        because the answer is then written after reading it.
        """
        limit, price = self.limits.cost, self._price
        if limit is None or price is None:
            return math.inf
        calls = self._longest_path.steps  # that the answer takes
        answer = price.cost(calls * self.context_tokens, self.reserve)
        left = limit - (self.usage.cost or 0.0) - answer - price.cost(self.context_tokens)
        each = price.cost(calls, 1)  # written once, and read again when the answer is due
        return left / each if each else math.inf

    def _payable(self, calls: int) -> float:
        """How many tokens the rest of the money pays for, written in `calls` calls, nothing kept back."""
        limit, price = self.limits.cost, self._price
        if limit is None or price is None:
            return math.inf
        left = limit - (self.usage.cost or 0.0) - price.cost(calls * self.context_tokens)
        each = price.cost(calls - 1, 1)
        return left / each if each else math.inf

    def _writable(self) -> int:
        """Tokens for which there is time at the pace so far, half of it kept back; few where there is no pace yet."""
        if not self.usage.completion_tokens:
            return _UNPACED_TOKENS
        left = max(self.seconds_to_end, 0.0)
        return int(self.usage.completion_tokens / max(self.writing_s, 1e-6) * left / 2)


def refuse_unpriced(limits: Limits, price: Price | None) -> None:
    """A limit that nobody could keep."""
    if limits.cost is not None and price is None:
        raise ModelError(
            f"the cost is limited to {limits.cost:g}, but the price of a token is not known",
            hint="add --set price.input=N --set price.output=N or --set prices=FILE; in Python, price=Price(...)",
        )
