"""Searching an index. Queries are words, not a query language: nothing that a model writes can be a syntax error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from coa.errors import StoreError
from coa.tools.index.documents import Passage
from coa.tools.index.manifest import FIELD, RECORD, analyzer, engine, read_manifest

MAX_TERMS: Final = 64
"""The most terms of a query; the rest is ignored, so that a page pasted as a query does not take seconds."""
_TIES: Final = 16
_MOST_TIES: Final = 10_000
"""The number of equally good passages beyond which their order is left to the engine."""


@dataclass(frozen=True, slots=True)
class Hit:
    passage: Passage
    score: float


class Index:
    """An index on disk, read through memory maps: opening is quick and memory is the system's page cache.

    Safe to use from several threads and processes.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        tantivy: Any = engine()
        try:
            index = tantivy.Index.open(str(self.folder))
            index.config_reader("manual")
            index.reload()
            self._searcher = index.searcher()
        except ValueError as error:
            raise StoreError(f"the index {self.folder} is damaged: {error}", hint="build it again") from error
        if self._searcher.num_docs != self.manifest.passages:
            there = f"{self._searcher.num_docs} of {self.manifest.passages} passages"
            raise StoreError(f"the index {self.folder} is damaged: {there}", hint="build it again")
        self._tantivy, self._schema = tantivy, index.schema
        self._content = analyzer(self.manifest.language, stop_words=True)
        self._every = analyzer(self.manifest.language, stop_words=False)

    def search(self, query: str, k: int = 5) -> list[Hit]:
        """The best passages first; equal ones in the order of their ids, so that every build gives the same answer."""
        terms = self.terms(query)
        if not terms or k < 1:
            return []
        should = self._tantivy.Occur.Should
        clauses = [(should, self._tantivy.Query.term_query(self._schema, FIELD, term, "freq")) for term in terms]
        found = self._with_ties(self._tantivy.Query.boolean_query(clauses), k)
        records = [(bytes(self._searcher.doc(address).get_first(RECORD)), score) for score, address in found]
        hits = [Hit(Passage(*orjson.loads(record)), score) for record, score in records]
        hits.sort(key=lambda hit: (-hit.score, hit.passage.id))
        return hits[:k]

    def _with_ties(self, query: Any, k: int) -> list[tuple[float, Any]]:
        """The best k, and all that are as good as the last of them: which of these the engine returns first depends on
        how the index was written."""
        limit = k + _TIES
        while True:
            found: list[tuple[float, Any]] = self._searcher.search(query, limit, count=False).hits
            if len(found) < limit or found[-1][0] < found[k - 1][0] or limit > _MOST_TIES:
                return [hit for hit in found if hit[0] >= found[min(k, len(found)) - 1][0]]
            limit *= 8

    def terms(self, text: str) -> list[str]:
        """Terms without stop words, unless there are only stop words: `The Who` is a name."""
        text = text.encode("utf-8", "replace").decode()  # a model may write half a character
        terms: list[str] = self._content.analyze(text) or self._every.analyze(text)
        return terms[:MAX_TERMS]


def snippet(text: str, terms: Sequence[str], characters: int = 300) -> str:
    """The part of the text with the most terms. Terms are stems: a word counts if it begins with one."""
    words = [(match.start(), match.group().lower()) for match in _WORD.finditer(text)]
    wanted = {term[:_STEM] for term in terms}
    places = [(start, word[:_STEM]) for start, word in words if word[:_STEM] in wanted]
    best, begin, low = 0, 0, 0
    inside: dict[str, int] = {}
    for start, word in places:
        inside[word] = inside.get(word, 0) + 1
        while start - places[low][0] > characters - 40:
            gone = places[low][1]
            inside[gone] -= 1
            if not inside[gone]:
                del inside[gone]
            low += 1
        if len(inside) > best:
            best, begin = len(inside), places[low][0]
    begin = max(begin - 40, 0)
    begin = text.rfind(" ", 0, begin) + 1 if begin else 0
    cut = " ".join(text[begin : begin + characters].split())
    return ("... " if begin else "") + cut + (" ..." if begin + characters < len(text) else "")


_WORD: Final = re.compile(r"\w+")
_STEM: Final = 5
"""The number of letters by which a word and a stem are compared; stemming changes endings."""
