"""The cities, people and firms of the world, each in one split and linked only inside it.

A name is shared on purpose: a city, a firm and a doctor may all be called Velrick, so a name alone finds the wrong
page as easily as the right one. An address is a letter and the name (`k/Velrick`); the letter is drawn, so nobody can
guess where a page is: it has to be searched, or a link followed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from string import ascii_lowercase
from typing import Final

from coa.worlds.atlas.names import names

CITY: Final = "city"
FIRM: Final = "firm"
PAPER: Final = "paper"
"""An old newspaper about a city, with outdated figures. It says so and links to the page with the present ones."""
OUTDATED: Final = "outdated, see"
"""The label under which a paper links to the page that counts."""
REPORT: Final = "report"
"""A firm's figures. No search finds it: the firm's page leads to it."""
JOBS: Final = ("doctor", "cook", "actor", "writer", "teacher")
INDEXED: Final = (CITY, FIRM, PAPER, *JOBS)


_FIRST_SHELF: Final = "a"
RESULTS: Final = 2
"""Number of results of a search: one right page and one that looks like it."""


class Split(StrEnum):
    TRAIN = "train"
    RL = "rl"
    TEST = "test"


SHARES: Final[Mapping[Split, float]] = {Split.TRAIN: 0.4, Split.RL: 0.3, Split.TEST: 0.3}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of entities, and of tasks in each split."""

    cities: int = 200
    people: int = 300
    firms: int = 100
    train: int = 400
    rl: int = 300
    test: int = 240

    def tasks(self, split: Split) -> int:
        return {Split.TRAIN: self.train, Split.RL: self.rl, Split.TEST: self.test}[split]


@dataclass(slots=True)
class Page:
    kind: str
    name: str
    split: Split
    shelf: str
    """The letter before the name."""
    facts: dict[str, str] = field(default_factory=dict)
    """By label; a fact that leads to another page is that page's address."""

    @property
    def address(self) -> str:
        return f"{self.shelf}/{self.name}"

    @property
    def indexed(self) -> bool:
        return self.kind in INDEXED


def populate(sizes: Sizes, rng: random.Random) -> dict[str, Page]:
    """All pages by address."""
    counts = {
        split: [max(4, round(share * count)) for count in (sizes.cities, sizes.firms, sizes.people)]
        for split, share in SHARES.items()
    }
    # A third of the firms and people take the name of a city or of each other.
    needed = {split: cities + round(0.6 * (firms + people)) for split, (cities, firms, people) in counts.items()}
    free = names(sum(needed.values()), rng)
    pages: dict[str, Page] = {}
    for split in Split:
        mine, free = free[: needed[split]], free[needed[split] :]
        for page in _settle(split, mine, counts[split], rng):
            pages[page.address] = page
    return pages


@dataclass
class _Shelves:
    """Gives each page a letter that no other page of the same name has."""

    split: Split
    rng: random.Random
    taken: set[tuple[str, str]] = field(default_factory=set)
    first: Counter[str] = field(default_factory=Counter)
    """Pages on the first shelf, by kind."""

    def page(self, kind: str, name: str) -> Page:
        free = [letter for letter in ascii_lowercase if (letter, name) not in self.taken]
        shelf = self.rng.choice(free[1:] if free[0] == _FIRST_SHELF else free)
        # Where a search finds less than it shows, the rest are the first pages of the kind. With these of the training
        # split, nothing that is trained on names another split's pages (in worlds large enough to have two of a kind).
        wanted = self.split is Split.TRAIN and kind in INDEXED and self.first[kind] < RESULTS
        if wanted and free[0] == _FIRST_SHELF:
            shelf = _FIRST_SHELF
            self.first[kind] += 1
        self.taken.add((shelf, name))
        return Page(kind, name, self.split, shelf)


def _settle(split: Split, words: Sequence[str], counts: Sequence[int], rng: random.Random) -> list[Page]:
    cities, firms, people = counts
    shelves = _Shelves(split, rng)
    towns = [shelves.page(CITY, word) for word in words[:cities]]
    houses = [shelves.page(FIRM, word) for word in rng.sample(words, firms)]
    chosen = rng.sample([(job, word) for job in JOBS for word in words], people)
    folk = [shelves.page(job, word) for job, word in chosen]
    reports = [_firm(house, shelves.page(REPORT, house.name), rng.choice(towns), rng) for house in houses]
    for person in folk:
        person.facts = {"job": person.kind, "birth": str(rng.randint(1801, 1899))}
        person.facts |= {"home": rng.choice(towns).address, "employer": rng.choice(houses).address}
    papers = list[Page]()
    for town in towns:
        town.facts = {"population": str(rng.randint(1000, 9999)), "founding": str(rng.randint(1001, 1799))}
        town.facts["mayor"] = rng.choice(folk).address
        if rng.random() < 0.4:
            papers.append(_paper(town, shelves.page(PAPER, town.name), rng))
    return [*towns, *houses, *reports, *folk, *papers]


def _firm(house: Page, report: Page, seat: Page, rng: random.Random) -> Page:
    house.facts = {"staff": str(rng.randint(101, 999)), "seat": seat.address, "report": report.address}
    report.facts = {"sales": str(rng.randint(1000, 9999)), "profit": str(rng.randint(101, 999))}
    return report


def _paper(town: Page, paper: Page, rng: random.Random) -> Page:
    """Another population, an old year, and a link to the page with the present figures."""
    others = [n for n in (rng.randint(1000, 9999) for _ in range(3)) if str(n) != town.facts["population"]]
    paper.facts = {"population": str(others[0]), "year": str(rng.randint(1801, 1850)), OUTDATED: town.address}
    return paper
