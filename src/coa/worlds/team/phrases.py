"""What the expert says. It is short, because a small model has to learn it, and varies only after an error."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from coa.worlds.atlas.questions import Solution

_LAST: Final = {"": "answer", "+": "add", "-": "subtract", "max": "take the larger", "min": "take the smaller"}
"""What is done with the facts, by the question's operator."""
_BY_CODE: Final = "Compute by code"
FIND_AGAIN: Final = ("Search {who} again.", "Again {who}.", "Try {who}.")
READ_RIGHT: Final = ("Open the right one.", "Now the right page.", "Take {page}.")
COMPUTE_AGAIN: Final = ("Compute again.", "Do it again.", "Mend the program.")
NOTHING_FOUND: Final = (
    "Nothing found. The name is {name}.", "The query was wrong: it is {name}.", "No result, {name} was misspelt.",
)  # fmt: skip
WRONG_PAGE: Final = (
    "{wrong} is not the {kind}. {right} is.", "Wrong page, the {kind} is {right}.",
    "{wrong} is another {name}. Open {right}.",
)  # fmt: skip
OLD_PAGE: Final = ("{wrong} is outdated. See {right}.", "Old figures. {right} has the new ones.")
READ_IT: Final = ("Read there.",)
FOLLOWED: Final = ("Links followed.",)
COMPUTED: Final = ("Computed.",)
CORRECTED: Final = ("Corrected.", "Now it fits.", "Right this time.")
OLD: Final = ("The figure is outdated.", "That is an old figure.")
WRONG_SUM: Final = ("The program is wrong.", "Wrong result.", "That is not what was asked.")
DOUBTED: Final = ("Probably right.", "It may be right.")


def stages(solution: Solution) -> list[str]:
    """What is read, page after page, and what is done with it in the end."""
    if not solution.lookups:
        return []
    first, *more = solution.lookups[0].fields
    both = "both " if len(solution.lookups) > 1 else ""
    return [both + first, *more, _LAST[solution.operator]]


def plan(solution: Solution) -> str:
    stage = stages(solution)
    return f"Read {', then '.join(stage)}" if stage else _BY_CODE


def done(solution: Solution, read: int) -> str:
    """After a page: what was read there, and what comes next. The plan has the same words, so the next step is to
    find them there and copy what follows, which even a small model does well."""
    stage = stages(solution)
    return f"Read {stage[read]}, then {stage[read + 1]}."


def say(choices: Sequence[str], rng: random.Random, **words: str) -> str:
    return rng.choice(choices).format(**words)
