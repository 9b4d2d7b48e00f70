"""The arithmetic of query sampling."""

from __future__ import annotations

from itertools import product

import pytest

from coa.sampling.difficulty import Fate, Rate, Rules, fate, fate_with, fate_without, histogram

RULES = Rules(samples=4, no_tools_samples=10)


@pytest.mark.parametrize(
    ("solved", "failed", "unscored", "found"),
    [
        (0, 10, 0, Fate.KEPT),
        (3, 7, 0, Fate.KEPT),  # 0.3 is not more than 0.3
        (4, 6, 0, Fate.TOOLS_NOT_NEEDED),
        (2, 4, 4, Fate.TOOLS_NOT_NEEDED),  # 2 of 6 scored
        (2, 5, 3, Fate.KEPT),  # 2 of 7
        (1, 3, 6, Fate.UNSCORED),  # 4 of 10 scored is less than half
        (4, 0, 6, Fate.TOOLS_NOT_NEEDED),  # too many, whatever the other six would have been
        (0, 0, 10, Fate.UNSCORED),
    ],
)
def test_what_is_solved_without_tools_too_often_needs_none(
    solved: int, failed: int, unscored: int, found: Fate
) -> None:
    assert fate_without(Rate(solved, failed, unscored), RULES) is found


@pytest.mark.parametrize(
    ("solved", "failed", "unscored", "found", "unsolved_kept"),
    [
        (4, 0, 0, Fate.ALWAYS_SOLVED, Fate.ALWAYS_SOLVED),
        (0, 4, 0, Fate.NEVER_SOLVED, Fate.KEPT),
        (1, 3, 0, Fate.KEPT, Fate.KEPT),
        (1, 1, 2, Fate.KEPT, Fate.KEPT),
        (2, 0, 2, Fate.ALWAYS_SOLVED, Fate.ALWAYS_SOLVED),
        (1, 0, 3, Fate.UNSCORED, Fate.UNSCORED),
        (0, 1, 3, Fate.UNSCORED, Fate.KEPT),
        (0, 0, 4, Fate.UNSCORED, Fate.UNSCORED),
    ],
)
def test_what_is_solved_always_or_never_teaches_nothing(
    solved: int, failed: int, unscored: int, found: Fate, unsolved_kept: Fate
) -> None:
    rate = Rate(solved, failed, unscored)
    assert fate_with(rate, RULES) is found
    assert fate_with(rate, RULES.model_copy(update={"keep_unsolved": True})) is unsolved_kept


def test_without_tools_decides_first_and_can_be_left_out() -> None:
    assert fate(Rate(4, 6), Rate(1, 3), RULES) is Fate.TOOLS_NOT_NEEDED
    assert fate(Rate(1, 9), Rate(1, 3), RULES) is Fate.KEPT
    assert fate(Rate(), Rate(1, 3), RULES.model_copy(update={"no_tools_samples": 0})) is Fate.KEPT


@pytest.mark.parametrize("keep_unsolved", [True, False])
@pytest.mark.parametrize("most", [0.0, 0.3, 0.5, 1.0])
def test_a_fate_that_is_called_certain_is_never_changed_by_the_attempts_left(keep_unsolved: bool, most: float) -> None:
    """Every sequence of five outcomes: stopped early or made to the end, the fate is the same."""
    rules = Rules(samples=5, no_tools_samples=5, max_without_tools=most, keep_unsolved=keep_unsolved)
    for outcomes in product([1.0, 0.0, None], repeat=5):
        for judge in (fate_without, fate_with):
            final = judge(Rate.of(outcomes), rules)
            assert final is not None
            early = [judge(Rate.of(outcomes[:made]), rules) for made in range(5)]
            assert {found for found in early if found is not None} <= {final}, outcomes


def test_scores_between_count_by_the_threshold() -> None:
    scores = [1.0, 0.8, 0.4, None]
    assert Rate.of(scores) == Rate(1, 2, 1)
    assert Rate.of(scores, 0.5) == Rate(2, 1, 1)
    assert Rate.of(scores).share == pytest.approx(1 / 3)
    assert Rate.of([None]).share is None


def test_the_histogram_counts_tasks_by_attempts_solved() -> None:
    # 0 of 4; 1 of 4 twice; 4 of 4; 1 of 2 scored is the place of 2 of 4; unscored and untried are in no place.
    rates = [Rate(0, 4), Rate(1, 3), Rate(1, 3), Rate(4, 0), Rate(1, 1, 2), Rate(0, 0, 4), Rate()]
    assert histogram(rates, 4) == [1, 2, 1, 0, 1]
