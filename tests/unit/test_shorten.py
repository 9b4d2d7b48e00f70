"""A text that is too long loses its middle, and the mark says how much, however often it is cut."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coa.trajectory.shorten import omitted, shorten


def without_marks(text: str) -> str:
    return re.sub(r"\n\[\.\.\. \d+ characters omitted \.\.\.\]\n?", "", text)


def test_the_middle_goes_and_a_line_says_how_much() -> None:
    # The mark and its two line ends take 33 + 2 characters: of 100, 65 are left for the text, 33 before and 32 behind.
    cut = shorten("a" * 500 + "b" * 500, 100)
    assert cut == "a" * 33 + "\n[... 935 characters omitted ...]\n" + "b" * 32
    assert omitted(cut) == 935 and len(cut) <= 100


def test_what_fits_is_the_very_same_text() -> None:
    text = "x" * 100
    assert shorten(text, 100) is text
    assert shorten(text, 100, count=lambda part: pytest.fail("a text with fewer bytes than tokens needs no counting"))
    assert shorten(text, 50, count=lambda part: len(part) // 2) is text


def test_only_the_beginning_may_be_kept() -> None:
    cut = shorten("a" * 500 + "b" * 500, 100, keep_end=False)
    assert cut == "a" * 65 + "\n[... 935 characters omitted ...]"


def test_a_budget_of_tokens_is_kept_to_and_mostly_used() -> None:
    def count(text: str) -> int:
        return len(re.findall(r"\w+|[^\w\s]", text))

    text = " ".join(f"word{n}" for n in range(1000)) + " . ! ? , ;" * 200
    cut = shorten(text, 300, count=count)
    assert 280 <= count(cut) <= 300
    assert cut.startswith("word0 word1 ") and cut.endswith(", ;")
    assert omitted(cut) == len(text) - len(without_marks(cut))


def test_a_limit_that_nothing_fits_in_leaves_a_character_on_each_side() -> None:
    assert shorten("abcdefgh", 3) == "a\n[... 6 characters omitted ...]\nh"
    assert shorten("abcdefgh", 1, count=len) == "a\n[... 6 characters omitted ...]\nh"


@given(st.text(alphabet="ab\n[].", min_size=0, max_size=400), st.lists(st.integers(2, 300), max_size=5), st.booleans())
def test_marks_add_up_however_often_a_text_is_cut(text: str, limits: list[int], keep_end: bool) -> None:
    cut = text
    for limit in sorted(limits, reverse=True):
        cut = shorten(cut, limit, keep_end=keep_end)
    assert len(without_marks(cut)) + omitted(cut) == len(text)
    assert all(limit < 40 or len(cut) <= limit for limit in limits)


@pytest.mark.parametrize(
    ("mark", "missing"),
    [
        ("[... 700 characters omitted ...]", 700),
        ("[700 characters cut]", 700),
        ("[cut: 1,500 of 2,200 characters shown]", 700),
        ("[cut to fit the context]", 0),
    ],
)
def test_marks_of_earlier_versions_are_counted_in(mark: str, missing: int) -> None:
    text = "a" * 300 + f"\n{mark}\n" + "b" * 300
    assert omitted(text) == missing
    cut = shorten(text, 200)
    assert mark not in cut and omitted(cut) == missing + 600 - len(without_marks(cut))


def test_a_mark_is_never_cut_in_two() -> None:
    text = "a" * 80 + "\n[700 characters cut]\n" + "b" * 1000
    cut = shorten(text, 200)  # the beginning would end within the old mark
    assert "characters cut" not in cut and cut.startswith("a" * 80 + "\n[... ")
    assert omitted(cut) == 700 + 1080 - len(without_marks(cut))


def test_what_only_looks_like_a_mark_is_text() -> None:
    assert omitted("it says [700 characters cut] here\n[7 characters] \n[... x characters omitted ...]") == 0
