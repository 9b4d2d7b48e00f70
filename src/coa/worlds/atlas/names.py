"""Invented names that a small model can copy: each is two pieces of SmolLM2's vocabulary, wherever it occurs.

The syllables were chosen so that no pair of them is cut elsewhere; a test counts the pieces where the tokenizer is
available. Worlds that need more names than there are pairs get names of three syllables.
"""

from __future__ import annotations

import random
from itertools import chain, product
from typing import Final

from coa.errors import WorldError

FIRST: Final = (
    "Mar", "Vel", "Sal", "Gal", "Hol", "Jan", "Sel", "Var", "Bel", "Cal", "El", "Gar", "Hal", "Il", "Mel", "Ol",
    "Par", "San", "Van", "Wil", "Ber", "Den", "Far", "Ger", "Her", "Ken", "Len", "Nav", "Per", "Ser", "Ter", "Ver",
)  # fmt: skip
LAST: Final = (
    "rick", "ston", "holm", "wick", "ley", "by", "ton", "ham", "burg", "worth", "well", "ros", "ria", "bar", "gan",
    "hal", "per",
)  # fmt: skip


def names(count: int, rng: random.Random) -> list[str]:
    """`count` different names; the short ones first."""
    short = ["".join(parts) for parts in product(FIRST, LAST)]
    long = ["".join(parts) for parts in product(FIRST, LAST, LAST) if parts[1] != parts[2]]
    if count > len(short) + len(long):
        problem = f"the world needs {count} names and there are {len(short) + len(long)}"
        raise WorldError(problem, hint="make it smaller")
    rng.shuffle(short)
    rng.shuffle(long)
    return list(chain(short, long))[:count]
