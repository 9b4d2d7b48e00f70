"""What the expert says. Short, because a small model is to learn it, and varied, so that it is not learnt by heart."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from coa.worlds.atlas.questions import Family, Solution

_PLANS: Final[dict[Family, tuple[str, ...]]] = {
    Family.ONE_HOP: ("search, open, read {last}", "find the page, read {last}", "search it, then read {last}"),
    Family.TWO_HOP: ("search, open, follow {way}, read {last}", "find the page, go to {way}, read {last}"),
    Family.THREE_HOP: ("search, open, follow {way}, read {last}", "find the page, go to {way}, read {last}"),
    Family.PAGE_ONLY: ("search, open, follow {way}, read {last}", "find the page, its {way} has {last}"),
    Family.COMPARISON: ("search both, open both, compare {last}", "find both, read {last}, compare"),
    Family.ARITHMETIC: ("search both, open both, {does} {last}", "find both, read {last}, {does}"),
    Family.CODE_ONLY: ("compute it with code", "write a program", "code, then answer"),
}
_DOES: Final = {"+": "add", "-": "subtract"}
FIND: Final = ("Find {who}.", "Look for {who}.", "Search {who}.", "First {who}.")
FIND_AGAIN: Final = ("Search {who} again.", "Again {who}.", "Try {who}.")
READ: Final = ("Read {last}.", "Now {last}.", "Open it.", "I need {last}.")
READ_BOTH: Final = ("Read both.", "Open both.", "Now {last}.", "I need {last}.")
READ_RIGHT: Final = ("Open the right one.", "Now the right page.", "Take {page}.")
COMPUTE: Final = ("Compute it.", "Now compute.", "Use code.", "Do the sum.")
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
READ_IT: Final = ("Seen on the page.", "Read there.", "It says so.")
FOLLOWED: Final = ("The links fit.", "Each page fits.", "Links followed.")
COMPUTED: Final = ("The program fits.", "Computed.", "The sum holds.")
COMPARED: Final = ("Both were read.", "Compared by eye.")
CORRECTED: Final = ("Corrected.", "Now it fits.", "Right this time.")
OLD: Final = ("The figure is outdated.", "That is an old figure.")
WRONG_SUM: Final = ("The program is wrong.", "Wrong sum.", "That is not what was asked.")
WRONG_PICK: Final = ("{other} wins.", "It is the other one.")
DOUBTED: Final = ("Probably right.", "It may be right.")


def plan(solution: Solution, rng: random.Random) -> str:
    fields = solution.lookups[0].fields if solution.lookups else ("",)
    said = rng.choice(_PLANS[solution.family])
    return said.format(way=", ".join(fields[:-1]), last=fields[-1], does=_DOES.get(solution.operator, ""))


def say(choices: Sequence[str], rng: random.Random, **words: str) -> str:
    return rng.choice(choices).format(**words)
