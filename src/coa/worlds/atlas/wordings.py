"""How questions are asked. Each wording is either for all splits or for the test alone.

A question is put together from parts (who is meant, over which hops, what is asked), each of which has several
wordings, so that a few lines here make hundreds of different questions. `unseen` ones are never shown in training.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from coa.worlds.atlas.entities import CITY, FIRM


@dataclass(frozen=True, slots=True)
class Wordings:
    seen: tuple[str, ...]
    unseen: tuple[str, ...]

    def pick(self, rng: random.Random, *, unseen: bool = False) -> str:
        return rng.choice(self.unseen if unseen else self.seen)

    def any(self, rng: random.Random) -> str:
        return rng.choice(self.seen + self.unseen)


PERSON: Final = "person"
WHO: Final[Mapping[str, Wordings]] = {
    CITY: Wordings(("the city {n}", "the city of {n}", "{n} (city)"), ("the city called {n}",)),
    FIRM: Wordings(("the firm {n}", "{n} (firm)", "the firm of {n}"), ("the firm called {n}",)),
    PERSON: Wordings(("the {job} {n}", "{n} the {job}", "{n} ({job})"), ("the {job} called {n}",)),
}
HOPS: Final[Mapping[str, Wordings]] = {
    "from": Wordings(
        ("the city where {x} was born", "the birthplace of {x}", "the city {x} comes from", "the birth city of {x}"),
        ("the place of birth of {x}",),
    ),
    "works": Wordings(
        ("the firm where {x} works", "the firm that employs {x}", "the employer of {x}"), ("the firm {x} has a job at",)
    ),
    "seat": Wordings(
        ("the city where {x} has its seat", "the seat of {x}", "the city that is home to {x}"),
        ("the city {x} is based in",),
    ),
    "mayor": Wordings(("the mayor of {x}", "the person who is mayor of {x}"), ("whoever governs {x}",)),
}
NOUNS: Final[Mapping[str, Wordings]] = {
    "people": Wordings(("population", "number of people"), ("head count",)),
    "founded": Wordings(("founding year", "year of foundation"), ("year of origin",)),
    "mayor": Wordings(("mayor", "present mayor"), ("mayor in office",)),
    "staff": Wordings(("staff", "number of staff"), ("workforce",)),
    "seat": Wordings(("seat", "home city"), ("base",)),
    "born": Wordings(("year of birth", "birth year"), ("natal year",)),
    "from": Wordings(("birthplace", "birth city"), ("native city",)),
    "works": Wordings(("employer", "firm"), ("place of work",)),
    "sales": Wordings(("sales", "sales in its report"), ("turnover in sales",)),
    "profit": Wordings(("profit", "profit in its report"), ("gain in profit",)),
}
ASK: Final = Wordings(
    (
        "What is the {noun} of {x}?", "Give the {noun} of {x}.", "Tell me the {noun} of {x}.",
        "Find the {noun} of {x}.", "State the {noun} of {x}.", "Which {noun} does {x} have?",
        "I need the {noun} of {x}.", "Can you find the {noun} of {x}?", "Name the {noun} of {x}.",
    ),
    (
        "Look up the {noun} of {x}.", "I want to know the {noun} of {x}.", "For {x}, report the {noun}.",
        "Do you know the {noun} of {x}?",
    ),
)  # fmt: skip
"""For every fact; those that follow are for one."""
ASK_ALSO: Final[Mapping[str, Wordings]] = {
    "people": Wordings(
        ("How many people live in {x}?", "How many people does {x} have?"), ("How many residents are there in {x}?",)
    ),
    "founded": Wordings(
        ("When was {x} founded?", "In which year was {x} founded?"), ("What year did {x} come into being?",)
    ),
    "mayor": Wordings(("Who is the mayor of {x}?", "Who is mayor in {x}?"), ("Who governs {x}?",)),
    "staff": Wordings(
        ("How many people work at {x}?", "How large is the staff of {x}?"), ("How many does {x} employ?",)
    ),
    "seat": Wordings(("Where does {x} have its seat?", "In which city is {x}?"), ("Where is {x} based?",)),
    "born": Wordings(
        ("When was {x} born?", "In which year was {x} born?"), ("What year did {x} come into the world?",)
    ),
    "from": Wordings(("Where was {x} born?", "In which city was {x} born?"), ("Where does {x} hail from?",)),
    "works": Wordings(("Where does {x} work?", "Which firm employs {x}?"), ("Who has {x} on the payroll?",)),
    "sales": Wordings(
        ("What sales did {x} report?", "How large are the sales of {x}?"), ("What did the sales of {x} come to?",)
    ),
    "profit": Wordings(
        ("What profit did {x} report?", "How large is the profit of {x}?"), ("What did the profit of {x} come to?",)
    ),
}
MORE: Final[Mapping[str, Wordings]] = {
    "people": Wordings(("has more people", "has the larger population"), ("is more populous",)),
    "founded": Wordings(("was founded first", "is older"), ("goes back further",)),
    "staff": Wordings(("has more staff", "employs more people"), ("has the bigger workforce",)),
    "born": Wordings(("was born first", "is older"), ("has lived longer",)),
}
FIRST_WINS: Final = frozenset({"founded", "born"})
"""Where the smaller number is what is asked for."""
COMPARE: Final = Wordings(
    (
        "Which {kind} {more}, {a} or {b}?", "{a} or {b}: which {kind} {more}?", "Which {more}, {a} or {b}?",
        "Tell me which {kind} {more}: {a} or {b}.", "Between {a} and {b}, which {kind} {more}?",
        "Compare {a} and {b}: which {more}?", "Say which {kind} {more}, {a} or {b}.",
        "Find out which {kind} {more}: {a} or {b}.",
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
        "Find the total {noun} of {a} and {b}.", "What do the {noun} of {a} and that of {b} add up to?",
        "Sum up the {noun} of {a} and of {b}.", "Compute the {noun} of {a} and {b} together.",
    ),
    ("Taken together, what is the {noun} of {a} and {b}?", "Combine the {noun} of {a} with that of {b}."),
)  # fmt: skip
APART: Final = Wordings(
    (
        "How much larger is the {noun} of {a} than that of {b}?", "What is the {noun} of {a} minus that of {b}?",
        "Subtract the {noun} of {b} from that of {a}.", "What is the difference in {noun} between {a} and {b}?",
        "How much smaller is the {noun} of {b} than that of {a}?", "Take the {noun} of {b} from that of {a}.",
        "Compute the {noun} of {a} minus the {noun} of {b}.", "Find the difference in {noun} of {a} and {b}.",
    ),
    ("By how much does the {noun} of {a} exceed that of {b}?", "How far apart are {a} and {b} in {noun}?"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sum:
    """A question that only a program has to answer."""

    wordings: Wordings
    program: str
    a: tuple[int, int]
    b: tuple[int, int]


SUMS: Final = (
    Sum(
        Wordings(
            ("What is {a} times {b}?", "Multiply {a} by {b}.", "Give the product of {a} and {b}.", "Find {a} * {b}."),
            ("How much is {a} multiplied by {b}?",),
        ),
        "print({a} * {b})",
        (101, 999),
        (12, 99),
    ),
    Sum(
        Wordings(
            (
                "What is the remainder of {a} divided by {b}?", "Compute {a} modulo {b}.",
                "Divide {a} by {b} and give the remainder.", "What remains of {a} after division by {b}?",
            ),
            ("What is left over when {a} is split into parts of {b}?",),
        ),
        "print({a} % {b})",
        (1001, 9999),
        (12, 99),
    ),
    Sum(
        Wordings(
            (
                "Add up all whole numbers from {b} to {a}.", "What is the sum of the numbers {b} to {a}?",
                "Sum the whole numbers from {b} to {a}.", "Give the sum of all whole numbers from {b} to {a}.",
            ),
            ("What do the whole numbers {b} to {a} come to in all?",),
        ),
        "print(sum(range({b}, {a} + 1)))",
        (101, 999),
        (12, 99),
    ),
    Sum(
        Wordings(
            (
                "How many multiples of {b} lie between 1 and {a}?", "Count the multiples of {b} up to {a}.",
                "How many numbers from 1 to {a} can be divided by {b}?", "How often does {b} fit into {a}?",
            ),
            ("How many whole parts of {b} are in {a}?",),
        ),
        "print({a} // {b})",
        (1001, 9999),
        (12, 99),
    ),
)  # fmt: skip
