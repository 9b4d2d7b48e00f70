"""How questions are asked. Each wording is either for all splits or for the test split alone.

A question is put together from parts (who is meant, over which hops, what is asked), each of which has several
wordings, so that a few lines here make hundreds of different questions. `unseen` ones are never shown in training.
There are few of each on purpose, and what is shown in training names a fact by the word that its page has for it: to
plan is then to copy, which a model of 135 M weights learns from a hundred runs, and what reinforcement learning finds
out about one fact holds for all. With other words for each fact there were some forty things to know, each of which
came up once or twice (docs/lab-book.md). The unseen wordings still ask for more than copying.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from coa.worlds.atlas.entities import CITY, FIRM


@dataclass(frozen=True, slots=True)
class Wordings:
    seen: tuple[str, ...]
    unseen: tuple[str, ...]


PERSON: Final = "person"
WHO: Final[Mapping[str, Wordings]] = {
    CITY: Wordings(("the city {n}", "{n} (city)"), ("the city called {n}",)),
    FIRM: Wordings(("the firm {n}", "{n} (firm)"), ("the firm called {n}",)),
    PERSON: Wordings(("the {job} {n}", "{n} ({job})"), ("the {job} called {n}",)),
}
HOPS: Final[Mapping[str, Wordings]] = {
    "home": Wordings(("the home town of {x}",), ("the city {x} comes from",)),
    "employer": Wordings(("the employer of {x}",), ("the firm {x} has a job at",)),
    "seat": Wordings(("the seat of {x}",), ("the city {x} is based in",)),
    "mayor": Wordings(("the mayor of {x}",), ("whoever governs {x}",)),
}
NOUNS: Final[Mapping[str, Wordings]] = {
    "population": Wordings(("population",), ("head count",)),
    "founding": Wordings(("founding year",), ("year of origin",)),
    "staff": Wordings(("staff",), ("workforce",)),
    "birth": Wordings(("birth year",), ("natal year",)),
    "sales": Wordings(("sales",), ("turnover in sales",)),
    "profit": Wordings(("profit",), ("gain in profit",)),
}
ASK: Final = Wordings(
    ("What is the {noun} of {x}?", "Give the {noun} of {x}.", "Find the {noun} of {x}.", "Tell me the {noun} of {x}."),
    (
        "Look up the {noun} of {x}.", "I want to know the {noun} of {x}.", "For {x}, report the {noun}.",
        "Do you know the {noun} of {x}?",
    ),
)  # fmt: skip
"""Frames for every fact. Those in `ASK_ALSO` are for one fact each, and never shown in training."""
ASK_ALSO: Final[Mapping[str, tuple[str, ...]]] = {
    "population": ("How many people live in {x}?",),
    "founding": ("When was {x} founded?",),
    "staff": ("How many does {x} employ?",),
    "birth": ("When was {x} born?",),
    "sales": ("What did the sales of {x} come to?",),
    "profit": ("What did the profit of {x} come to?",),
}
MORE: Final[Mapping[str, Wordings]] = {
    "population": Wordings(("has the larger population",), ("is more populous",)),
    "founding": Wordings(("has the earlier founding year",), ("goes back further",)),
    "staff": Wordings(("has the larger staff",), ("has the bigger workforce",)),
    "birth": Wordings(("has the earlier birth year",), ("has lived longer",)),
}
FIRST_WINS: Final = frozenset({"founding", "birth"})
"""Facts of which the smaller number is asked for."""
COMPARE: Final = Wordings(
    (
        "Which {kind} {more}, {a} or {b}?", "{a} or {b}: which {kind} {more}?",
        "Tell me which {kind} {more}: {a} or {b}.", "Compare {a} and {b}: which {more}?",
    ),
    (
        "Is it {a} or {b} that {more}?", "Take {a} or {b}: name the {kind} that {more}.",
        "Choose between {a} and {b} the {kind} that {more}.",
    ),
)  # fmt: skip
TOGETHER: Final = Wordings(
    (
        "What is the {noun} of {a} plus that of {b}?", "Add the {noun} of {a} and that of {b}.",
        "What is the total {noun} of {a} and {b}?", "Give the sum of the {noun} of {a} and of {b}.",
    ),
    ("Taken together, what is the {noun} of {a} and {b}?", "Combine the {noun} of {a} with that of {b}."),
)  # fmt: skip
APART: Final = Wordings(
    (
        "What is the {noun} of {a} minus that of {b}?", "How much larger is the {noun} of {a} than that of {b}?",
        "What is the difference in {noun} between {a} and {b}?", "Find the difference in {noun} of {a} and {b}.",
    ),
    ("By how much does the {noun} of {a} exceed that of {b}?", "How far apart are {a} and {b} in {noun}?"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sum:
    """A question that a program alone can answer."""

    wordings: Wordings
    program: str
    a: tuple[int, int]
    b: tuple[int, int]


SUMS: Final = (
    Sum(Wordings(("What is {a} times {b}?", "Multiply {a} by {b}."), ("How much is {a} multiplied by {b}?",)),
        "print({a} * {b})", (101, 999), (12, 99)),
    Sum(Wordings(("What is the remainder of {a} divided by {b}?", "Divide {a} by {b} and give the remainder."),
                 ("What is left over when {a} is split into parts of {b}?",)),
        "print({a} % {b})", (1001, 9999), (12, 99)),
    Sum(Wordings(("Add up all whole numbers from {b} to {a}.", "What is the sum of the numbers {b} to {a}?"),
                 ("What do the whole numbers {b} to {a} come to in all?",)),
        "print(sum(range({b}, {a} + 1)))", (101, 999), (12, 99)),
    Sum(Wordings(("How many multiples of {b} lie between 1 and {a}?", "Count the multiples of {b} up to {a}."),
                 ("How many whole parts of {b} are in {a}?",)),
        "print({a} // {b})", (1001, 9999), (12, 99)),
)  # fmt: skip
