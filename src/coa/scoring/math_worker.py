r"""The process that decides whether two formulas are the same: `python -m coa.scoring.math_worker SECONDS BYTES`.

It reads a JSON line `{"golds": [...], "answer": ...}` and writes one `{"value": ..., "reason": ...}`, time and again.
Parsing and simplifying can take for ever or all memory, inside code that no Python thread can interrupt; so the kernel
kills this process when a formula takes too long, also if the one that started it is gone, and refuses it more memory.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Mapping
from typing import Any, Final, TextIO

_TINY: Final = 1e-3
"""Below it, six decimals (what math-verify compares) say too little, and the ratio decides."""


def main() -> None:
    seconds, memory = float(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who asked
    # Libraries print; the reply must be all that the reader gets.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    logging.disable(logging.CRITICAL)
    try:
        import math_verify  # noqa: F401  (told apart from trouble inside it)
    except ModuleNotFoundError as error:
        _reply(replies, {"missing": str(error)})
        return
    compare(["x^2"], "x x", prose=True)  # the first one compiles and imports, for which no answer should pay
    _reply(replies, {"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            value, reason, readable = compare(request["golds"], request["answer"], prose=request["prose"])
            found = {"value": value, "reason": reason, "readable": readable, "broken": False}
        except Exception as error:  # a library's trouble with one formula, whatever it is
            reason = f"{type(error).__name__} while comparing"
            found = {"value": None, "reason": reason, "readable": False, "broken": True}
        signal.setitimer(signal.ITIMER_REAL, 0)
        _reply(replies, found)


def compare(golds: list[str], answer: str, *, prose: bool) -> tuple[float | None, str, bool]:
    """Whether the answer is one of the golds, why, and whether the answer could be read.

    A gold that cannot be read leaves the answer unscored, unless another one matches. `prose`: where the answer is not
    a formula as a whole, the last one in it counts.
    """
    given = _parsed(answer, prose=prose)
    unread = 0
    for gold in golds:
        wanted = _parsed(gold, prose=False)
        if not wanted:
            unread += 1
            continue
        if given and _equivalent(wanted, given):
            return 1.0, "equivalent", True
    if unread:
        return None, "the gold answer cannot be read as mathematics", bool(given)
    if not given:
        return 0.0, "the answer cannot be read as mathematics", False
    return 0.0, "not equivalent", True


def _equivalent(wanted: list[Any], given: list[Any]) -> bool:
    from math_verify import verify

    try:
        same = bool(verify(wanted, given, timeout_seconds=None, raise_on_error=True))
    except (MemoryError, RecursionError):
        raise  # no verdict
    except Exception:
        return False  # things that cannot be compared are not the same
    return same and not _apart(wanted[0], given[0])


def _parsed(text: str, *, prose: bool) -> list[Any]:
    """Expressions only. math-verify adds the string that it read, which would make unreadable things comparable."""
    from math_verify import LatexExtractionConfig, parse

    found = parse(f"${text}$", [LatexExtractionConfig()], parsing_timeout=None)
    if prose and all(isinstance(item, str) for item in found):
        found = parse(text, parsing_timeout=None)
    return [item for item in found if not isinstance(item, str)]


def _apart(one: Any, other: Any) -> bool:
    """Whether two tiny numbers differ by more than rounding."""
    try:
        left, right = complex(one.evalf()), complex(other.evalf())
    except (TypeError, ValueError, AttributeError):
        return False  # not numbers
    largest = max(abs(left), abs(right))
    return 0 < largest < _TINY and abs(left - right) > 1e-3 * largest


def _reply(replies: TextIO, content: Mapping[str, object]) -> None:
    replies.write(json.dumps(content) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
