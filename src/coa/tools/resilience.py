"""What stands between a tool and a service that fails: retries with backoff and jitter, and a circuit breaker.

What a service refuses for good (a wrong key, an empty account) is an `Unserved` at once; what may pass is tried again;
a service that keeps failing is left alone for a while, so that a thousand runs do not each wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")
LONGEST_WAIT_S: Final = 30.0


class Unserved(Exception):
    """The service did not do it, and asking again now is of no use. The message may be shown to the model."""

    def __init__(self, message: str, *, error: str = "service") -> None:
        super().__init__(message)
        self.error = error
        """For `Observation.meta`: service, quota, key, request, breaker."""


class Transient(Exception):
    """Worth another try. `wait_s` is what the service asked for."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Patience:
    attempts: int = 3
    attempt_s: float = 20.0
    """For one attempt, all in."""
    backoff_s: float = 0.5
    """Before the second attempt; doubled each time, with jitter."""


@dataclass
class Breaker:
    """Opens after so many failures in a row; then lets one call try again after a rest."""

    name: str
    failures: int = 5
    rest_s: float = 30.0
    clock: Callable[[], float] = time.monotonic
    _in_a_row: int = field(default=0, init=False)
    _closed_at: float = field(default=0.0, init=False)
    """When the next call may pass, if open."""

    def check(self) -> None:
        """Raises if the service is being left alone."""
        if self._in_a_row < self.failures:
            return
        left = self._closed_at - self.clock()
        if left > 0:
            raise Unserved(
                f"{self.name} failed {self._in_a_row} times in a row and is left alone for {left:.0f} more seconds",
                error="breaker",
            )
        self._closed_at = self.clock() + self.rest_s  # this call tries; the others go on waiting

    def passed(self) -> None:
        self._in_a_row = 0

    def failed(self) -> None:
        self._in_a_row += 1
        if self._in_a_row >= self.failures:
            self._closed_at = self.clock() + self.rest_s


async def retried(
    name: str, attempt: Callable[[], Awaitable[Answer]], patience: Patience, breaker: Breaker | None = None
) -> Answer:
    """Await `attempt()` until it passes, refuses, or the patience ends. A refusal shows that the service is alive."""
    for number in range(1, patience.attempts + 1):
        if breaker is not None:
            breaker.check()
        try:
            async with asyncio.timeout(patience.attempt_s):
                answer = await attempt()
        except Unserved:
            if breaker is not None:
                breaker.passed()
            raise
        except (Transient, TimeoutError) as error:
            if breaker is not None:
                breaker.failed()
            reason = str(error) or f"no answer within {patience.attempt_s:g} seconds"
            if number == patience.attempts:
                tries = "" if number == 1 else f" in {number} attempts"
                raise Unserved(f"{name} did not answer{tries}: {reason}") from error
            wait = min(patience.backoff_s * 2 ** (number - 1), LONGEST_WAIT_S) * random.uniform(0.5, 1.5)
            asked = error.wait_s if isinstance(error, Transient) else None
            if asked is not None and asked > LONGEST_WAIT_S:
                raise Unserved(f"{name} asks to wait {asked:.0f} seconds: {reason}", error="quota") from error
            log.info("%s: attempt %d failed (%s)", name, number, reason)
            await asyncio.sleep(max(wait, asked or 0.0))
        else:
            if breaker is not None:
                breaker.passed()
            return answer
    raise AssertionError("unreachable: the last attempt returns or raises")
