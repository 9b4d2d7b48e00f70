"""Questions that say the same are found; questions that only look alike are not."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from coa.distill.filters.contamination import BenchmarkQuestions
from coa.distill.filters.questions import bands, pieces, plain, signature, similarity

LONG = "In which year did the lighthouse keeper of the northern island publish her only novel about the sea"


def test_signatures_agree_about_as_often_as_the_sets_overlap() -> None:
    rng = random.Random(0)
    for wanted in (0.3, 0.6, 0.9):
        shared = {f"s{rng.random()}" for _ in range(300)}
        only = round(300 * (1 - wanted) / wanted / 2)
        one, other = (shared | {f"x{rng.random()}" for _ in range(only)} for _ in range(2))
        agreed = sum(a == b for a, b in zip(signature(one), signature(other), strict=True)) / 64
        # Standard deviation of a share of 64 places: at most 0.0625.
        assert abs(agreed - wanted) < 0.2


def test_a_reworded_ending_shares_a_band() -> None:
    other = LONG.replace("about the sea", "on the sea")
    assert similarity(pieces(LONG), pieces(other)) > 0.8
    assert set(bands(LONG)) & set(bands(other))


def test_unrelated_questions_share_no_band() -> None:
    assert not set(bands(LONG)) & set(bands("What is the capital of the smallest province?"))


def test_what_stands_beside_keeps_equal_questions_apart() -> None:
    assert not set(bands(LONG, beside="1897")) & set(bands(LONG, beside="1901"))


@given(st.text(max_size=40))
def test_any_text_has_a_signature_and_equal_texts_the_same(text: str) -> None:
    assert list(bands(text)) == list(bands(text)) and len(list(bands(text))) == 16
    assert similarity(pieces(text), pieces(text)) == 1


def test_plain_text_drops_case_and_punctuation() -> None:
    assert plain("  Who—was ADA  Lovelace?!") == "who was ada lovelace"


def test_benchmarks_know_whole_questions_and_long_stretches() -> None:
    found = BenchmarkQuestions(8)
    found.add([LONG, "Who was Ada?"])
    assert found.share(LONG.upper() + "?") == 1
    assert found.share("who was ada") == 1
    assert found.share("Who was Ada Lovelace's mother?") == 0
    # 18 words, of which the last 9 are the benchmark's: 2 of 11 stretches of 8.
    mixed = "Tell me if you can and please be brief " + " ".join(LONG.split()[:9])
    assert found.share(mixed) == 2 / 11


def test_a_benchmark_question_in_chinese_is_found_with_a_word_changed() -> None:
    found = BenchmarkQuestions(8)
    found.add(["请问在二〇〇四年获得诺贝尔文学奖的奥地利女作家出生在哪一座城市?"])
    assert found.share("在二〇〇四年获得诺贝尔文学奖的奥地利女作家出生于哪一座城市") > 0.5
    assert found.share("长江上第一座大桥是在哪一年由谁设计并建成通车的") == 0.0
