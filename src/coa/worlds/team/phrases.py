"""What the expert says. Short, because a small model is to learn it; varied only where something went wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from coa.worlds.atlas.questions import Family, Solution

_PLANS: Final[dict[Family, tuple[str, ...]]] = {
    Family.ONE_HOP: ("{way}",),
    Family.TWO_HOP: ("{way}",),
    Family.THREE_HOP: ("{way}",),
    Family.PAGE_ONLY: ("{way}",),
    Family.COMPARISON: ("both, compare {way}",),
    Family.ARITHMETIC: ("both, {does} {way}",),
    Family.CODE_ONLY: ("code",),
}
"""The facts to read, in order. One form for each family: a plan is followed by counting on it, and a model of this size
that has seen a hundred of them follows one form better than three."""
_DOES: Final = {"+": "add", "-": "subtract"}
FIND: Final = ("Find {who}.",)
FIND_AGAIN: Final = ("Search {who} again.", "Again {who}.", "Try {who}.")
READ: Final = ("Read {way}.",)
READ_BOTH: Final = ("Read both.",)
READ_RIGHT: Final = ("Open the right one.", "Now the right page.", "Take {page}.")
COMPUTE: Final = ("Compute it.",)
COMPUTE_AGAIN: Final = ("Compute again.", "Redo the sum.", "Mend the program.")
COMPARE_AGAIN: Final = ("Compare by code.", "Let code compare.")
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
COMPARED: Final = ("Both were read.",)
CORRECTED: Final = ("Corrected.", "Now it fits.", "Right this time.")
OLD: Final = ("The figure is outdated.", "That is an old figure.")
WRONG_SUM: Final = ("The program is wrong.", "Wrong sum.", "That is not what was asked.")
WRONG_PICK: Final = ("{other} wins.", "It is the other one.")
DOUBTED: Final = ("Probably right.", "It may be right.")


def way(solution: Solution) -> str:
    """The facts to read, from page to page."""
    return ", then ".join(solution.lookups[0].fields) if solution.lookups else ""


def plan(solution: Solution, rng: random.Random) -> str:
    return rng.choice(_PLANS[solution.family]).format(way=way(solution), does=_DOES.get(solution.operator, ""))


def say(choices: Sequence[str], rng: random.Random, **words: str) -> str:
    return rng.choice(choices).format(**words)
