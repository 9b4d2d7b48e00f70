"""The ids of words, remembered.

A byte-level BPE tokenizer cuts a text into words and merges the bytes of each word on its own, so a word has the same
ids in every text. Most words of a text were seen before: looking them up takes a seventh of the time of tokenising.
Python has to cut the text as the tokenizer does, so this is for texts that are all ASCII and tokenizers whose rule is
known (`pre_tokenizers.py`). For anything else `encode` gives None, and the tokenizer itself has to be asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from coa.models.pre_tokenizers import words_in

_WORDS: Final = 1 << 16
"""Most words that are remembered: some 10 MB."""
_LONGEST: Final = 32
"""Characters of a word from which on it is not worth remembering: it is an address or a number of its own."""
_KEEPS_ASCII: Final = (None, "NFC", "NFD", "NFKC", "NFKD")
"""Normalisers that leave ASCII as it is."""


class WordCache:
    def __init__(
        self,
        cut: re.Pattern[str],
        added: Sequence[str],
        special_ids: Collection[int],
        encode: Callable[[Sequence[str]], list[list[int]]],
        *,
        most: int = _WORDS,
    ) -> None:
        """`added` are the tokens that a text is cut at before it is cut into words, and `encode` is the tokenizer.
        When there are more than `most` words, all are forgotten."""
        self._cut = cut
        self._added = re.compile("|".join(map(re.escape, added))) if added else None
        self._special_ids = frozenset(special_ids)
        self._encode = encode
        self._most = most
        self._ids: dict[str, tuple[int, ...]] = {}

    @classmethod
    def of(
        cls,
        settings: Mapping[str, Any],
        special_ids: Collection[int],
        encode: Callable[[Sequence[str]], list[list[int]]],
    ) -> WordCache | None:
        """For the tokenizer of these settings (those of a `tokenizer.json`), if its words are known to be its own.

        `encode` has to treat special tokens as plain text.
        """
        model, normalizer, words = settings["model"], settings["normalizer"], words_in(settings["pre_tokenizer"])
        cut = words.in_ascii() if words is not None else None
        changes = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
        if cut is None or model["type"] != "BPE" or any(model.get(change) for change in changes):
            return None
        if (normalizer and normalizer["type"]) not in _KEEPS_ASCII:
            return None
        added = [token["content"] for token in settings["added_tokens"] if not token["special"]]
        return cls(cut, added, special_ids, encode)

    def encode(self, text: str) -> list[int] | None:
        """The ids that the tokenizer gives; None if it has to be asked."""
        if not text.isascii() or (self._added is not None and self._added.search(text)):
            return None
        words = self._cut.findall(text)
        try:
            return list(chain.from_iterable(map(self._ids.__getitem__, words)))
        except KeyError:
            return self._learn(words)

    def _learn(self, words: Sequence[str]) -> list[int] | None:
        known = self._ids  # another thread may begin anew meanwhile
        new = [word for word in dict.fromkeys(words) if word not in known]
        encoded = dict(zip(new, map(tuple, self._encode(new)), strict=True))
        if not self._special_ids.isdisjoint(chain.from_iterable(encoded.values())):
            return None  # a control token is also an ordinary piece of this vocabulary
        ids = list(chain.from_iterable(encoded[word] if word in encoded else known[word] for word in words))
        if len(known) + len(encoded) > self._most:
            self._ids = {}
        self._ids.update((word, found) for word, found in encoded.items() if len(word) < _LONGEST)
        return ids
