"""Tasks of every family, each with the way to its answer. The way is not written to task files, which hold question and
answer alone: only the expert of the teacher team gets it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from coa.trajectory.types import Task
from coa.worlds.atlas import wordings as say
from coa.worlds.atlas.entities import CITY, FIRM, JOBS, REPORT, Page, Sizes, Split
from coa.worlds.atlas.wordings import NOUNS, PERSON, Wordings

PROFILE: Final = "atlas"


class Family(StrEnum):
    ONE_HOP = "one_hop"
    TWO_HOP = "two_hop"
    ARITHMETIC = "arithmetic"
    COMPARISON = "comparison"
    PAGE_ONLY = "page_only"
    """No page that a search finds has the answer: the page that has it is linked from another page."""
    THREE_HOP = "three_hop"
    CODE_ONLY = "code_only"


@dataclass(frozen=True, slots=True)
class Lookup:
    """From a page that search finds, over links, to a fact."""

    start: str
    fields: tuple[str, ...]
    """All but the last lead to another page."""


@dataclass(frozen=True, slots=True)
class Solution:
    family: Family
    lookups: tuple[Lookup, ...] = ()
    operator: str = ""
    """Between the two facts of an arithmetic question; `max` or `min` for a comparison."""
    program: str = ""
    """The program that answers the question, where nothing has to be looked up."""


@dataclass(frozen=True, slots=True)
class Question:
    task: Task
    solution: Solution


_MIX: Final = (
    Family.ONE_HOP, Family.TWO_HOP, Family.ARITHMETIC, Family.COMPARISON, Family.PAGE_ONLY, Family.ONE_HOP,
    Family.THREE_HOP, Family.ARITHMETIC, Family.TWO_HOP, Family.CODE_ONLY,
)  # fmt: skip
"""The order in which families take turns, so that the first tasks of a file are a sample of all."""
_FACTS: Final[Mapping[str, tuple[str, ...]]] = {
    CITY: ("population", "founding"), FIRM: ("staff",), PERSON: ("birth",), REPORT: ("sales", "profit"),
}  # fmt: skip
"""What is asked for: numbers. With names among the answers, a short run of RL learns to give whichever of the two pays
more often, whatever was asked (docs/lab-book.md)."""
_LINKS: Final[Mapping[str, tuple[str, ...]]] = {CITY: ("mayor",), FIRM: ("seat",), PERSON: ("home", "employer")}
"""What leads from a page to another."""
_LEADS: Final = {"home": CITY, "seat": CITY, "employer": FIRM, "mayor": PERSON}
_HOPPED: Final[Mapping[int, tuple[tuple[str, ...], ...]]] = {
    1: (("home",), ("employer",), ("seat",), ("mayor",)),
    2: (("employer", "seat"), ("mayor", "employer"), ("home", "mayor"), ("seat", "mayor"), ("mayor", "home")),
}


def kind_of(page: Page) -> str:
    return PERSON if page.kind in JOBS else page.kind


def answer_of(value: str) -> str:
    """A fact as an answer: if it is an address, the name in it."""
    return value.rpartition("/")[2]


def walk(lookup: Lookup, pages: Mapping[str, Page]) -> list[str]:
    """The addresses of the pages on the way, and the fact at its end."""
    way = [lookup.start]
    for label in lookup.fields:
        way.append(pages[way[-1]].facts[label])
    return way


def follow(lookup: Lookup, pages: Mapping[str, Page]) -> str:
    """The fact that a lookup ends at."""
    return walk(lookup, pages)[-1]


@dataclass
class _Writer:
    """Writes the tasks of one split."""

    split: Split
    pages: Mapping[str, Page]
    rng: random.Random
    asked: set[str] = field(default_factory=set)
    unseen: bool = False

    def __post_init__(self) -> None:
        self.mine: dict[str, list[Page]] = {}
        for page in self.pages.values():
            if page.split is self.split:
                self.mine.setdefault(kind_of(page), []).append(page)

    def write(self, family: Family, *, unseen: bool) -> tuple[str, str, Solution]:
        """Question, answer and way of a question that was not asked before."""
        self.unseen = unseen
        for _ in range(1000):
            question, answer, solution = _FAMILIES[family](self)
            # A question must not contain its answer, unless it offers a choice.
            given = family is not Family.COMPARISON and answer in question
            # Its way must not lead in a circle: a page would have to be opened twice.
            ways = [walk(lookup, self.pages) for lookup in solution.lookups]
            circles = any(len(set(way)) < len(way) for way in ways)
            if question not in self.asked and not given and not circles:
                self.asked.add(question)
                return question, answer, solution
        raise AssertionError("the world is too small for this number of tasks")

    # ---- parts

    def part(self, wordings: Wordings) -> str:
        return self.rng.choice(wordings.seen + wordings.unseen if self.unseen else wordings.seen)

    def who(self, page: Page) -> str:
        return self.part(say.WHO[kind_of(page)]).format(n=page.name, job=page.kind)

    def frame(self, *kinds: Wordings) -> str:
        """The frame of the question, which alone makes a wording test-only."""
        return self.rng.choice([w for kind in kinds for w in (kind.unseen if self.unseen else kind.seen)])

    def ask(self, label: str, x: str) -> str:
        frame = self.frame(say.ASK, Wordings((), say.ASK_ALSO[label]))
        return _sentence(frame.format(noun=self.part(NOUNS[label]), x=x))

    def pair(self, labels: tuple[str, ...]) -> tuple[str, Page, Page]:
        """A label, and two pages of different names that have different numbers under it."""
        label = self.rng.choice(labels)
        kind = next(kind for kind, facts in _FACTS.items() if label in facts)
        while True:
            a, b = self.rng.sample(self.mine[kind], 2)
            if a.name != b.name and a.facts[label] != b.facts[label]:
                return label, a, b

    # ---- families

    def hops(self, family: Family, count: int) -> tuple[str, str, Solution]:
        way = self.rng.choice(_HOPPED[count]) if count else ()
        last = _LEADS[way[-1]] if way else self.rng.choice((CITY, FIRM, PERSON))
        begins = next(kind for kind, links in _LINKS.items() if way[0] in links) if way else last
        start = self.rng.choice(self.mine[begins])
        label = self.rng.choice(_FACTS[last])
        x = self.who(start)
        for hop in way:
            x = self.part(say.HOPS[hop]).format(x=x)
        lookup = Lookup(start.address, (*way, label))
        return self.ask(label, x), answer_of(follow(lookup, self.pages)), Solution(family, (lookup,))

    def page_only(self) -> tuple[str, str, Solution]:
        firm, label = self.rng.choice(self.mine[FIRM]), self.rng.choice(_FACTS[REPORT])
        lookup = Lookup(firm.address, ("report", label))
        return self.ask(label, self.who(firm)), follow(lookup, self.pages), Solution(Family.PAGE_ONLY, (lookup,))

    def comparison(self) -> tuple[str, str, Solution]:
        label, a, b = self.pair(tuple(say.MORE))
        frame, more = self.frame(say.COMPARE), self.part(say.MORE[label])
        question = frame.format(kind=kind_of(a), more=more, a=self.who(a), b=self.who(b))
        least = label in say.FIRST_WINS
        a_wins = (int(a.facts[label]) < int(b.facts[label])) == least
        way = (Lookup(a.address, (label,)), Lookup(b.address, (label,)))
        winner = a if a_wins else b
        return _sentence(question), winner.name, Solution(Family.COMPARISON, way, "min" if least else "max")

    def arithmetic(self) -> tuple[str, str, Solution]:
        operator = self.rng.choice("+-")
        label, a, b = self.pair(("population", "staff", *(("founding", "birth") if operator == "-" else ())))
        if operator == "-" and int(a.facts[label]) < int(b.facts[label]):
            a, b = b, a
        frame = self.frame(say.TOGETHER if operator == "+" else say.APART)
        question = frame.format(noun=self.part(NOUNS[label]), a=self.who(a), b=self.who(b))
        one, other = int(a.facts[label]), int(b.facts[label])
        way = (Lookup(a.address, (label,)), Lookup(b.address, (label,)))
        answer = one + other if operator == "+" else one - other
        return _sentence(question), str(answer), Solution(Family.ARITHMETIC, way, operator)

    def code_only(self) -> tuple[str, str, Solution]:
        kind = self.rng.choice(say.SUMS)
        a, b = self.rng.randint(*kind.a), self.rng.randint(*kind.b)
        program = kind.program.format(a=a, b=b)
        # The programs are ours: `wordings.SUMS` has all four shapes.
        value = eval(program.removeprefix("print(").removesuffix(")"), {"sum": sum, "range": range})
        return self.frame(kind.wordings).format(a=a, b=b), str(value), Solution(Family.CODE_ONLY, program=program)


_FAMILIES: Final[Mapping[Family, Callable[[_Writer], tuple[str, str, Solution]]]] = {
    Family.ONE_HOP: lambda writer: writer.hops(Family.ONE_HOP, 0),
    Family.TWO_HOP: lambda writer: writer.hops(Family.TWO_HOP, 1),
    Family.THREE_HOP: lambda writer: writer.hops(Family.THREE_HOP, 2),
    Family.PAGE_ONLY: _Writer.page_only,
    Family.COMPARISON: _Writer.comparison,
    Family.ARITHMETIC: _Writer.arithmetic,
    Family.CODE_ONLY: _Writer.code_only,
}


def questions(split: Split, sizes: Sizes, pages: Mapping[str, Page], rng: random.Random) -> Iterator[Question]:
    writer = _Writer(split, pages, rng)
    for number in range(sizes.tasks(split)):
        family = _MIX[number % len(_MIX)]
        # Every other task of a family; the mix has an even length and some families twice.
        unseen = split is Split.TEST and (number // len(_MIX) + number) % 2 == 1
        question, answer, solution = writer.write(family, unseen=unseen)
        hops, wording = sum(len(lookup.fields) for lookup in solution.lookups), "unseen" if unseen else "seen"
        meta = {"family": family.value, "split": split.value, "wording": wording, "hops": hops}
        task = Task(id=f"atlas-{split}-{number:04}", question=question, answer=(answer,), profile=PROFILE, meta=meta)
        yield Question(task, solution)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
