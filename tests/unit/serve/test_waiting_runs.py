"""Runs that wait for their client: found by call and caller, given up once, and kept a while after they went on."""

from __future__ import annotations

from coa.serve import waiting
from coa.serve.caller import Caller
from coa.serve.request import Suspended
from coa.serve.waiting import WaitingRuns
from coa.trajectory import Task, Trajectory

ANN, BOB = Caller("ann"), Caller("bob")


def suspended(call: str) -> Suspended:
    return Suspended(call, "run", "agent", Trajectory(task=Task(id="t", question="q"), profile="web"), "run")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def runs(clock: Clock) -> tuple[WaitingRuns, list[str]]:
    given_up: list[str] = []
    return WaitingRuns(lambda run, caller: given_up.append(run.call), clock), given_up


def test_only_its_caller_finds_a_run() -> None:
    held, _ = runs(Clock())
    held.add(suspended("c"), ANN)
    assert held.find("c", ANN) is not None and held.find("c", BOB) is None and held.find("d", ANN) is None


def test_a_run_that_nobody_continues_is_given_up_once() -> None:
    clock = Clock()
    held, given_up = runs(clock)
    held.add(suspended("c"), ANN)
    clock.now = waiting.WAITING_S - 1
    held.expire()
    assert not given_up and held.find("c", ANN) is not None
    clock.now += 2
    held.expire()
    held.clear()
    assert given_up == ["c"] and held.find("c", ANN) is None


def test_a_continued_run_can_be_continued_again_for_a_while_and_is_not_given_up() -> None:
    clock = Clock()
    held, given_up = runs(clock)
    held.add(suspended("c"), ANN)
    held.continued("c")
    held.continued("unknown")
    assert held.find("c", ANN) is not None
    clock.now = waiting.CONTINUED_S + 1
    held.expire()
    assert held.find("c", ANN) is None and not given_up


def test_the_oldest_make_room() -> None:
    held, given_up = runs(Clock())
    for number in range(waiting.MOST + 2):
        held.add(suspended(str(number)), ANN)
    assert given_up == ["0", "1"] and held.find("2", ANN) is not None
