"""The bootstrap of a comparison, against values worked by hand and against a plain loop over Python's generator."""

import math
import random

import pytest

from coa.compare.bootstrap import (
    TaskColumns,
    cost_interval,
    interval,
    paired,
    resample,
    tokens_per_success,
)
from coa.evaluate.metrics import Estimate


def test_the_bootstrap_is_the_same_each_time_and_knows_what_has_no_value() -> None:
    run = TaskColumns.of((right, 10.0, 0.0) for right in [0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    (sums,) = resample([run])
    assert [sums] == resample([run]) and [sums] != resample([run], seed=1) and len(sums) == 2_000
    found = interval(0.625, (success / 8 for success, _, _ in sums))
    # The middle 95 % of means of 8 draws: multiples of an eighth, about 0.625 ± 1.96 * 0.171.
    assert found is not None and 0.2 < found.low < 0.4 and 0.85 < found.high <= 1.0
    assert all(tokens == 80.0 for _, tokens, _ in sums)  # each resample draws eight tasks
    assert interval(None, [1.0]) is None and interval(math.inf, [1.0]) is None
    assert resample([TaskColumns()]) == [[]]


def test_runs_are_resampled_on_the_same_tasks() -> None:
    numbers = TaskColumns.of((float(at), 0.0, 0.0) for at in range(50))
    twice = TaskColumns.of((2.0 * at, 0.0, 0.0) for at in range(50))
    first, second = resample([numbers, twice], resamples=100)
    assert [2 * sums[0] for sums in first] == [sums[0] for sums in second] and len(set(first)) > 50


def test_every_task_is_drawn_as_often_as_another() -> None:
    """Each of three tasks is a third of the draws: 2,000 resamples of 3, so 2,000 ± 3 * sqrt(6,000 * 2 / 9)."""
    (sums,) = resample([TaskColumns.of([(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)])])
    for column in range(3):
        assert abs(sum(found[column] for found in sums) - 2_000) < 110


def test_a_paired_difference_is_sharper_than_two_intervals() -> None:
    """The second run is right wherever the first is, and on one task in ten more; every token is halved."""
    first = TaskColumns.of((float(at % 2), 1000.0, 4.0) for at in range(100))
    second = TaskColumns.of((1.0 if at % 10 == 0 else float(at % 2), 500.0, 4.0) for at in range(100))
    found = paired(first, second)
    assert found.success is not None and found.success.value == pytest.approx(0.1)
    assert 0.03 < found.success.low < found.success.high < 0.18
    # 100 * 1000 / 50 = 2000 tokens a success, then 100 * 500 / 60 = 833: 0.4167 of it. Tool calls: 8, then 6.67.
    assert found.tokens_per_success is not None and found.tokens_per_success.value == pytest.approx(0.5 * 50 / 60)
    assert found.tool_calls_per_success is not None and found.tool_calls_per_success.value == pytest.approx(50 / 60)


def test_a_cost_per_success_that_hangs_on_one_success_has_no_upper_end() -> None:
    """Of resamples of ten tasks, 0.9 ** 10 = 35 % miss the only right one: whatever they spent bought nothing."""
    rare = TaskColumns.of((float(at == 0), 10.0, 1.0) for at in range(10))
    often = TaskColumns.of((float(at < 9), 10.0, 1.0) for at in range(10))
    found = cost_interval(rare, resample([rare])[0], tokens_per_success)
    assert found is not None and found.value == 100.0 and found.low < 50.0 and found.high == math.inf
    down, up = paired(rare, often).tokens_per_success, paired(often, rare).tokens_per_success
    assert down is not None and down.value == pytest.approx(1 / 9) and down.low == 0.0 and down.high < 1.0
    assert up is not None and up.value == pytest.approx(9.0) and up.high == math.inf


def test_a_run_without_success_has_no_cost_per_success() -> None:
    none = TaskColumns.of([(0.0, 10.0, 1.0)] * 5)
    found = paired(none, TaskColumns.of([(1.0, 10.0, 1.0)] * 5))
    assert found.success == Estimate(1.0, 1.0, 1.0) and found.tokens_per_success is None
    assert not math.isnan(found.success.low)


def test_sums_over_resamples_are_binomial() -> None:
    """Of two tasks, one right: 0, 1 or 2 right ones at 1/4, 1/2, 1/4 of 8,000 resamples, ± 4 * sqrt(8,000 / 4)."""
    (sums,) = resample([TaskColumns.of([(0.0, 3.0, 0.0), (1.0, 5.0, 0.0)])], resamples=8_000)
    found = [sum(right == wanted for right, _, _ in sums) for wanted in (0.0, 1.0, 2.0)]
    assert all(abs(count - wanted) < 180 for count, wanted in zip(found, (2_000, 4_000, 2_000), strict=True))
    assert all(tokens == 6.0 + 2.0 * right for right, tokens, _ in sums)  # the columns are drawn together


@pytest.mark.parametrize("count", [999, 80_001])
def test_sums_over_resamples_have_the_mean_and_spread_of_independent_draws(count: int) -> None:
    """The sum of `count` draws has `count` times the mean and variance of the tasks, also where tasks lie in blocks.

    Tokens rise along the file, so a block that was drawn as often as it has tasks would lose most of the spread.
    """
    rows = [(float(at % 3 == 0), float(at), 1.0) for at in range(count)]
    (sums,) = resample([TaskColumns.of(rows)], resamples=400)
    for column, mean, variance in ((0, 1 / 3, 2 / 9), (1, (count - 1) / 2, (count**2 - 1) / 12)):
        values = [found[column] for found in sums]
        expected, spread = count * mean, math.sqrt(count * variance)
        middle = math.fsum(values) / len(values)
        deviation = math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))
        assert abs(middle - expected) < 4 * spread / math.sqrt(len(values))
        assert abs(deviation / spread - 1) < 4 / math.sqrt(2 * len(values))
    assert {found[2] for found in sums} == {float(count)}


def test_intervals_agree_with_a_plain_loop() -> None:
    """The same interval drawn task by task with another generator: its ends differ by their own noise only."""
    rng = random.Random(3)
    tasks = [(float(rng.random() < 0.6), rng.uniform(500, 1500), float(rng.randrange(8))) for _ in range(300)]
    found = cost_interval(TaskColumns.of(tasks), resample([TaskColumns.of(tasks)])[0], tokens_per_success)
    plain = []
    for _ in range(2_000):
        drawn = rng.choices(tasks, k=len(tasks))
        plain.append(sum(row[1] for row in drawn) / sum(row[0] for row in drawn))
    plain.sort()
    assert found is not None
    assert found.low == pytest.approx(plain[50], rel=0.02) and found.high == pytest.approx(plain[1_949], rel=0.02)
