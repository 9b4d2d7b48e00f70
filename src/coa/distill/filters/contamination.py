"""Keeps benchmark questions out of training data, by the overlap of word n-grams with any file of tasks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from coa.distill.filters.base import Dropped, FilterInput, FilterStage, Reason, filter_of
from coa.distill.filters.questions import plain
from coa.trajectory import Trajectory

CONTAMINATION: Final = FilterStage("contamination", "no benchmark question")
BENCHMARK_QUESTION: Final = Reason(
    "benchmark_question",
    "These questions are in what --decontaminate names. Keep them only if you never evaluate on it: then name it no "
    "longer.",
)

_UNSPACED: Final = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Thai and Lao, kana, and Chinese characters."""
_WORD: Final = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


class BenchmarkQuestions:
    """Hashes of the words of benchmark questions; its size depends on the benchmarks alone."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.questions = 0
        self._grams: set[bytes] = set()
        self._whole: set[bytes] = set()

    def add(self, questions: Iterable[str]) -> None:
        for question in questions:
            words = _words(question)
            self.questions += 1
            self._whole.add(_hash(words))
            self._grams.update(_grams(words, self.width))

    def share(self, question: str) -> float:
        """Share of a question that is in the benchmarks: 0 or 1 for a question shorter than the n-grams."""
        words = _words(question)
        if _hash(words) in self._whole:
            return 1.0
        grams = list(_grams(words, self.width))
        return sum(gram in self._grams for gram in grams) / len(grams) if grams else 0.0


@filter_of(CONTAMINATION, BENCHMARK_QUESTION)
def contamination(trajectory: Trajectory, given: FilterInput) -> Dropped | None:
    """Drops questions only if benchmarks were named."""
    if given.benchmarks is None:
        return None
    share = given.benchmarks.share(trajectory.task.question)
    if share >= given.config.contamination.share:
        return Dropped(BENCHMARK_QUESTION, f"{share:.0%} of the question is in a benchmark")
    return None


def _words(question: str) -> list[str]:
    """Scripts without blanks between words are taken character by character; else a sentence would be one word."""
    return _WORD.findall(plain(question))


def _grams(words: Sequence[str], width: int) -> Iterator[bytes]:
    for start in range(len(words) - width + 1):
        yield _hash(words[start : start + width])


def _hash(words: Sequence[str]) -> bytes:
    return hashlib.blake2b(" ".join(words).encode(), digest_size=8).digest()
