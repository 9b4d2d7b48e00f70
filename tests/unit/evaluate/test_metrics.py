"""Pass@K, means and intervals against numbers worked by hand, enumeration, and simulation."""

from __future__ import annotations

import random
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coa.evaluate.metrics import (
    Estimate,
    mean,
    pass_at_k,
    shares,
    wilson,
)


def test_pass_at_k_by_hand() -> None:
    # 2 of 5 right. One drawn: 2/5. Two drawn: both wrong in C(3,2)/C(5,2) = 3/10. Four drawn: only 3 are wrong, so 1.
    assert pass_at_k(5, 2, 1) == pytest.approx(0.4)
    assert pass_at_k(5, 2, 2) == pytest.approx(0.7)
    assert pass_at_k(5, 2, 4) == 1.0
    assert pass_at_k(16, 0, 16) == 0.0
    with pytest.raises(ValueError, match="pass@6 cannot be computed from 5"):
        pass_at_k(5, 2, 6)


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_all_subsets_with_a_right_one(case: tuple[int, int, int]) -> None:
    attempts, right, k = case
    subsets = list(combinations(range(attempts), k))
    assert pass_at_k(*case) == pytest.approx(sum(min(drawn) < right for drawn in subsets) / len(subsets))


def test_wilson_by_hand() -> None:
    # 8 of 10, z = 1.96: centre (0.8 + 3.8415/20) / (1 + 0.38415) = 0.71674,
    # half 1.96/1.38415 * sqrt(0.016 + 3.8415/400) = 0.22659.
    found = wilson(0.8, 10)
    assert [found.low, found.high] == pytest.approx([0.4902, 0.9433], abs=1e-4)
    high = pytest.approx(0.1135, abs=1e-4)  # z² / (30 + z²)
    assert wilson(0.0, 30) == Estimate(0.0, 0.0, high)  # type: ignore[arg-type]
    assert wilson(1.0, 30).high == 1.0


def test_one_attempt_a_task_is_wilson_over_tasks() -> None:
    assert mean([[1.0]] * 8 + [[0.0]] * 2) == wilson(0.8, 10)


def test_attempts_at_one_task_are_not_independent() -> None:
    """Sixteen equal attempts at each of ten tasks know no more than one at each; mixed ones know more."""
    alike, mixed = mean([[1.0] * 16] * 8 + [[0.0] * 16] * 2), mean([[1.0] * 13 + [0.0] * 3] * 10)
    assert alike == wilson(0.8, 10)
    # All tasks have the same mean, so that the tasks add no spread: 160 attempts count as 160.
    assert mixed == wilson(13 / 16, 160)


def test_values_between_have_a_clustered_normal_interval() -> None:
    # Task means 0.25 and 0.75: mean 0.5, variance 0.125, SE sqrt(0.125 / 2) = 0.25; 0.5 ± 1.96 * 0.25.
    found = mean([[0.5, 0.0], [0.5, 1.0]])
    low, high = pytest.approx(0.01, abs=1e-3), pytest.approx(0.99, abs=1e-3)
    assert found == Estimate(0.5, low, high)  # type: ignore[arg-type]
    assert shares([0.5, 0.5, 0.5]) == Estimate(0.5, 0.5, 0.5)


def test_scores_beyond_0_and_1_keep_their_interval() -> None:
    for values in ([2.0, 2.0, 0.0], [-1.0, -1.0, 0.5]):
        found = mean([[value] for value in values])
        assert found.low < found.value < found.high


def test_one_task_says_nothing_about_others() -> None:
    assert mean([[0.5, 0.75]]) == Estimate(0.625, 0.0, 1.0) and shares([0.5]) == Estimate(0.5, 0.0, 1.0)


@pytest.mark.parametrize(("tasks", "attempts", "concentration"), [(60, 1, 1.0), (60, 8, 0.5), (150, 4, 2.0)])
def test_intervals_cover_the_truth_about_as_often_as_they_say(tasks: int, attempts: int, concentration: float) -> None:
    """Each task has its own chance of success; the mean of those chances is what is estimated."""
    rng = random.Random(1)
    hits = 0
    for _ in range(300):
        drawn = [
            [float(rng.random() < chance) for _ in range(attempts)]
            for chance in (rng.betavariate(concentration, concentration) for _ in range(tasks))
        ]
        found = mean(drawn)
        hits += found.low <= 0.5 <= found.high
    assert 0.91 <= hits / 300 <= 0.99


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=5), min_size=1, max_size=12))
def test_an_interval_holds_its_value_and_stays_between_0_and_1(tasks: list[list[float]]) -> None:
    found = mean(tasks)
    assert 0.0 <= found.low <= found.value <= found.high <= 1.0 and found.low < found.high
    assert found.value == pytest.approx(fmean(fmean(values) for values in tasks))
