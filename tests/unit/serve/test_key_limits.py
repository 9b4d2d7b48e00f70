from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coa.serve.api_error import ApiError
from coa.serve.caller import Caller
from coa.serve.config import ServeConfig
from coa.serve.limits import KeyLimits

ALICE, BOB = Caller("alice"), Caller("bob")


class Clock:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def refusal(limits: KeyLimits, caller: Caller = ALICE) -> ApiError:
    with pytest.raises(ApiError) as caught:
        limits.admit(caller)
    return caught.value


def test_without_limits_everything_is_admitted() -> None:
    limits = KeyLimits()
    for _ in range(1000):
        limits.admit(ALICE)
        limits.spent(ALICE, 1_000_000)


def test_runs_at_a_time_are_limited_for_each_key() -> None:
    limits = KeyLimits(runs=2)
    limits.admit(ALICE)
    limits.admit(ALICE)
    error = refusal(limits)
    assert (error.status, error.code, error.retry_after_s) == (429, "rate_limit_exceeded", 1)
    assert "2 runs at a time" in error.message
    limits.admit(BOB)
    limits.release(ALICE)
    limits.admit(ALICE)


def test_requests_come_back_evenly_over_a_minute() -> None:
    clock = Clock()
    limits = KeyLimits(requests_per_minute=6, clock=clock)
    for _ in range(6):
        limits.admit(ALICE)
    error = refusal(limits)
    assert error.retry_after_s == 10 and "6 requests per minute" in error.message
    clock.now += 9
    assert refusal(limits).retry_after_s == 1
    clock.now += 1
    limits.admit(ALICE)
    refusal(limits)
    clock.now += 3600
    for _ in range(6):
        limits.admit(ALICE)
    refusal(limits)


def test_tokens_are_paid_afterwards_and_a_debt_must_be_earned_back() -> None:
    clock = Clock()
    limits = KeyLimits(tokens_per_minute=600, clock=clock)
    limits.admit(ALICE)
    limits.spent(ALICE, 900)
    assert refusal(limits).retry_after_s == 31  # 300 tokens of debt and one to go on with, at 10 per second
    clock.now += 31
    limits.admit(ALICE)


def test_a_refused_request_costs_nothing() -> None:
    clock = Clock()
    limits = KeyLimits(runs=1, requests_per_minute=2, clock=clock)
    limits.admit(ALICE)
    for _ in range(10):
        refusal(limits)
    limits.release(ALICE)
    limits.admit(ALICE)


def test_what_was_never_admitted_cannot_be_released() -> None:
    with pytest.raises(RuntimeError):
        KeyLimits(runs=1).release(ALICE)


def test_the_settings_are_those_of_the_server() -> None:
    limits = KeyLimits.of(ServeConfig(key_runs=1, key_requests_per_minute=2, key_tokens_per_minute=3))
    assert (limits.runs, limits.requests_per_minute, limits.tokens_per_minute) == (1, 2, 3)


RATES = st.integers(1, 1_000_000_000)
WAITS = st.lists(st.floats(0, 100), max_size=40)


@given(RATES, st.floats(0, 1e7), st.lists(st.integers(0, 10**10), max_size=5))
def test_a_client_that_waits_as_long_as_it_is_asked_to_is_admitted(rate: int, start: float, spent: list[int]) -> None:
    clock = Clock(start)
    limits = KeyLimits(tokens_per_minute=rate, requests_per_minute=rate, clock=clock)
    for tokens in spent:
        limits.spent(ALICE, tokens)
    try:
        limits.admit(ALICE)
    except ApiError as error:
        assert error.retry_after_s is not None
        clock.now += error.retry_after_s
        limits.admit(ALICE)


@given(st.integers(1, 20), WAITS)
def test_no_minute_has_more_than_two_minutes_worth_of_requests(rate: int, waits: list[float]) -> None:
    clock = Clock()
    limits = KeyLimits(requests_per_minute=rate, clock=clock)
    admitted = []
    for wait in waits:
        clock.now += wait
        for _ in range(rate + 1):
            try:
                limits.admit(ALICE)
            except ApiError:
                break
            admitted.append(clock.now)
    for at in admitted:
        assert sum(at <= other < at + 60 for other in admitted) <= 2 * rate


@given(st.integers(1, 5), st.lists(st.booleans(), max_size=60))
def test_runs_at_a_time_never_pass_the_limit(runs: int, admits: list[bool]) -> None:
    limits, running = KeyLimits(runs=runs), 0
    for wants_in in admits:
        if wants_in and running == runs:
            refusal(limits)
        elif wants_in:
            limits.admit(ALICE)
            running += 1
        elif running:
            limits.release(ALICE)
            running -= 1
