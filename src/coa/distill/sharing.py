"""One text for two steps: cut between paragraphs, lines or sentences, never inside one, nothing lost or added."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_CUTS: Final = (re.compile(r"\n[ \t]*\n\s*"), re.compile(r"\n\s*"), re.compile(r"(?<=[.!?;])[\"')\]]*\s+(?=[^\s])"))
_PLAN_HEADING: Final = re.compile(r"^[#*\s\d.]*(?:updated\s+|new\s+)?plan\b[^\n]{0,40}$", re.IGNORECASE | re.MULTILINE)


def share_out(pieces: Sequence[str], slots: int, *, main: int) -> list[str] | None:
    """The pieces as `slots` texts in their order; `main` gets the bulk, the others a sentence each. None if too few."""
    if not pieces:
        return None
    if len(pieces) >= slots:
        surplus = len(pieces) - slots
        return [*pieces[:main], "\n\n".join(pieces[main : main + surplus + 1]), *pieces[main + surplus + 1 :]]
    # The last piece is what the model said in the end; the earlier ones stand before it as they are.
    kept, last = list(pieces[:-1]), pieces[-1]
    wanted = slots - len(kept)
    for cut in _CUTS:
        places = [match.span() for match in cut.finditer(last)]
        if len(places) >= wanted - 1:
            bulk = min(max(main - len(kept), 0), wanted - 1)
            chosen = places[:bulk] + places[len(places) - (wanted - 1 - bulk) :]
            starts = [0, *(end for _, end in chosen)]
            ends = [*(start for start, _ in chosen), len(last)]
            parts = [last[start:end].strip() for start, end in zip(starts, ends, strict=True)]
            if all(parts):
                return [*kept, *parts]
    return None


def plan_parts(pieces: Sequence[str]) -> tuple[str, str]:
    """Thought and plan: facts that stand before a heading "Plan" are the thought, which is empty where all is plan."""
    if len(pieces) == 1 and (heading := _PLAN_HEADING.search(pieces[0])) and pieces[0][: heading.start()].strip():
        return pieces[0][: heading.start()].strip(), pieces[0][heading.start() :].strip()
    parts = share_out(pieces, 2, main=1)
    return ("", "\n\n".join(pieces)) if parts is None else (parts[0], parts[1])
