"""Exact match and token F1 after the normalisation of SQuAD, corrected where that calls different things equal.

SQuAD lowers case and drops ASCII punctuation and articles. Taken literally that makes 3.14 and 314 equal, -5 and 5,
C++ and C, vitamin A and vitamin. Here punctuation inside numbers stays, an article is one only before another word, and
formulas are compared as written. Accents on Latin letters are dropped; models leave them out.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import Final

from coa.scoring.answers import AnswerMode, final, golds, matched, mode, plain, splits, unknown_mode
from coa.scoring.base import Verdict
from coa.trajectory import Task

_FORMULA: Final = re.compile(r"\\[A-Za-z]+|\^|^\s*[(\[][^A-Za-z]*\d[^A-Za-z]*,[^A-Za-z]*[)\]]\s*$")
_THOUSANDS: Final = re.compile(r"(?<![\d.,])(\d{1,3})((?:,\d{3})+)(?![\d,])")
_PUNCTUATION: Final = re.compile(
    r"(?<=\d)[.,/:-](?=\d)"  # inside a number, a date, a ratio: kept
    r"|(?<![\w)])-(?=\.?\d)"  # a minus sign: kept
    r"|(?<=\w)[+#]+"  # C++, C#, A+: kept
    r"|(?P<gap>[()\[\]{}\\])"  # these separate words
    r"|(?P<drop>[^\w\s+=<>|])"
)
_ARTICLE: Final = re.compile(r"""(?<![^\s"'*_])(?:a|an|the)\s+(?=[^\s|])""")
_OPPOSITE: Final = {"yes": "no", "no": "yes"}


def normalise(text: str) -> str:
    text = plain(text)
    if _FORMULA.search(text):
        return re.sub(r"[\s$]+|\.$", "", text)
    text = _without_accents(text.casefold())
    text = _THOUSANDS.sub(lambda found: found.group(1) + found.group(2).replace(",", ""), text)
    # Articles first: once punctuation is gone, the A of "(A) B" or "A | B" would look like one.
    bare = " ".join(_PUNCTUATION.sub(_punctuation, _ARTICLE.sub("", text)).replace("_", " ").split())
    return bare or " ".join(text.split())  # something must be left of "+" or "?" to compare


def exact_match(one: str, other: str) -> bool:
    return normalise(one) == normalise(other)


def token_f1(gold: str, answer: str) -> float:
    """Harmonic mean of precision and recall of words. Yes and no share nothing with other answers."""
    one, other = normalise(gold), normalise(answer)
    if one == other:
        return 1.0
    if one in _OPPOSITE or other in _OPPOSITE:
        return 0.0
    left, right = one.split(), other.split()
    common = sum((Counter(left) & Counter(right)).values())
    return 2 * common / (len(left) + len(right)) if common else 0.0


def exact(task: Task, answer: str) -> Verdict:
    how, wanted = mode(task), golds(task)
    if how is None:
        return unknown_mode("exact", task)
    if matched(answer, wanted, how, exact_match):
        return Verdict(1.0, f"{_short(final(answer))} is {_wanted(wanted, how)}", "exact")
    if how is AnswerMode.ANY and any(_yes_or_no(gold, answer) for gold in wanted):
        return Verdict(1.0, f"it begins with {wanted[0]!r}", "exact")
    return Verdict(0.0, f"{_short(final(answer))} is not {_wanted(wanted, how)}", "exact", certain=False)


def f1(task: Task, answer: str) -> Verdict:
    how, wanted = mode(task), golds(task)
    if how is None:
        return unknown_mode("f1", task)
    if how is not AnswerMode.ANY:
        value = token_f1(" ".join(wanted), " ".join(final(answer).replace("|", " ").split()))
        return Verdict(value, "words shared with all gold answers together", "f1", certain=False)
    # Of several answers the worst counts: otherwise a long enough list would contain the right one.
    *whole, parts = splits(answer, how)
    value = min(max(token_f1(gold, part) for gold in wanted) for part in parts)
    if any(exact_match(gold, reading[0]) for gold in wanted for reading in whole):
        value = 1.0
    return Verdict(value, "words shared with the nearest gold answer", "f1", certain=False)


def _punctuation(found: re.Match[str]) -> str:
    if found.group("gap"):
        return " "
    return "" if found.group("drop") else found.group()


def _without_accents(text: str) -> str:
    """Of Latin letters only: elsewhere a mark makes another letter (が is not か)."""
    if text.isascii():
        return text
    kept: list[str] = []
    base = ""
    for character in unicodedata.normalize("NFD", text):
        if unicodedata.combining(character):
            if base and unicodedata.name(base, "").startswith("LATIN"):
                continue
        else:
            base = character
        kept.append(character)
    return unicodedata.normalize("NFC", "".join(kept))


def _yes_or_no(gold: str, answer: str) -> bool:
    """ "Yes, because ..." answers a yes-or-no question, unless it takes it back."""
    word = normalise(gold)
    words = normalise(final(answer)).split()
    return word in _OPPOSITE and words[:1] == [word] and _OPPOSITE[word] not in words and "or" not in words[:3]


def _wanted(wanted: list[str], how: AnswerMode) -> str:
    if len(wanted) == 1:
        return _short(wanted[0])
    names = ", ".join(_short(gold) for gold in wanted[:3]) + (", ..." if len(wanted) > 3 else "")
    return f"{'one' if how is AnswerMode.ANY else 'all'} of {names}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 60 else line[:57] + "...")
