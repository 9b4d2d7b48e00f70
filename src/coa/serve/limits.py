"""How much each key may use: runs at a time, requests per minute, tokens per minute.

Requests and tokens are counted by a token bucket each. It holds one minute's worth and fills up evenly, so a caller may
use a minute's worth at once and then gets an even share. How many tokens a run will need is known only at its end:
they are taken from the bucket as they are spent, even below zero, and no further run starts until it is filled again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from coa.report.page import plural
from coa.serve.api_error import ApiError
from coa.serve.caller import Caller
from coa.serve.config import ServeConfig

_WHEN_A_RUN_ENDS_S: Final = 1.0
"""When to try again if all of a caller's runs are in use; nobody knows when one will end."""

_ONE: Final = 1 - 1e-3
"""What must be in a bucket to take one out, with room for rounding."""


@dataclass(slots=True)
class _Bucket:
    level: float
    filled: float
    """When `level` was right."""

    def now(self, size: int, at: float) -> float:
        self.level = min(self.level + (at - self.filled) * size / 60, size)
        self.filled = at
        return self.level


@dataclass(slots=True)
class _Account:
    requests: _Bucket
    tokens: _Bucket
    running: int = 0


class KeyLimits:
    """Admits the runs of every caller within the limits; without keys, all callers together are one. A limit of None
    does not hold."""

    def __init__(
        self,
        runs: int | None = None,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.runs, self.requests_per_minute, self.tokens_per_minute = runs, requests_per_minute, tokens_per_minute
        self._clock = clock
        self._accounts: dict[Caller, _Account] = {}

    @classmethod
    def of(cls, config: ServeConfig) -> KeyLimits:
        return cls(config.key_runs, config.key_requests_per_minute, config.key_tokens_per_minute)

    def admit(self, caller: Caller) -> None:
        """Count one more run of the caller's, to be given back with `release`; or refuse it, and count nothing."""
        account, now = self._account(caller), self._clock()
        if self.runs is not None and account.running >= self.runs:
            raise _refused(f"{plural(self.runs, 'run')} at a time", _WHEN_A_RUN_ENDS_S)
        for limit, bucket, unit in (
            (self.tokens_per_minute, account.tokens, "token"),
            (self.requests_per_minute, account.requests, "request"),
        ):
            if limit is not None and (level := bucket.now(limit, now)) < _ONE:
                raise _refused(f"{plural(limit, unit)} per minute", (1 - level) * 60 / limit)
        account.running += 1
        account.requests.level -= 1

    def release(self, caller: Caller) -> None:
        """A run that was admitted has ended."""
        account = self._account(caller)
        if not account.running:
            raise RuntimeError("a run was released that was never admitted")
        account.running -= 1

    def spent(self, caller: Caller, tokens: int) -> None:
        """Count tokens that a run has read or written."""
        if self.tokens_per_minute is not None:
            bucket = self._account(caller).tokens
            bucket.now(self.tokens_per_minute, self._clock())
            bucket.level -= tokens

    def _account(self, caller: Caller) -> _Account:
        if caller not in self._accounts:
            now = self._clock()
            self._accounts[caller] = _Account(
                _Bucket(self.requests_per_minute or 0, now), _Bucket(self.tokens_per_minute or 0, now)
            )
        return self._accounts[caller]


def _refused(limit: str, wait_s: float) -> ApiError:
    wait_s = max(math.ceil(wait_s), 1)
    return ApiError(
        429,
        f"This key is limited to {limit}. Try again in {wait_s} s.",
        code="rate_limit_exceeded",
        retry_after_s=wait_s,
    )
