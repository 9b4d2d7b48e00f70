"""The whole of an atlas, from one seed: the same seed and sizes give the same pages and tasks, byte for byte."""

from __future__ import annotations

import random
from functools import cached_property
from hashlib import blake2b

from coa.trajectory.types import Task
from coa.worlds.atlas.entities import Page, Sizes, Split, populate
from coa.worlds.atlas.pages import contents, html
from coa.worlds.atlas.questions import Question, questions


class Atlas:
    name = "atlas"

    def __init__(self, seed: int = 7, sizes: Sizes | None = None) -> None:
        self.seed = seed
        self.sizes = sizes or Sizes()

    @cached_property
    def pages(self) -> dict[str, Page]:
        """By address."""
        return populate(self.sizes, self._rng("pages"))

    @cached_property
    def questions(self) -> dict[Split, list[Question]]:
        return {split: list(questions(split, self.sizes, self.pages, self._rng(split))) for split in Split}

    def tasks(self, split: Split) -> list[Task]:
        return [question.task for question in self.questions[split]]

    @cached_property
    def _by_id(self) -> dict[str, Question]:
        return {question.task.id: question for each in self.questions.values() for question in each}

    def question(self, task_id: str) -> Question | None:
        """A task of this world with the way to its answer."""
        return self._by_id.get(task_id)

    @cached_property
    def html(self) -> dict[str, str]:
        """Every page as it is served, by path; the list of all pages has the empty path."""
        return {"": contents(self.pages.values())} | {at: html(page, self.pages) for at, page in self.pages.items()}

    @cached_property
    def hash(self) -> str:
        """Hash of everything that a run can see."""
        digest = blake2b(digest_size=16)
        for address, text in self.html.items():
            digest.update(f"{address}\n{text}\n".encode())
        for split in Split:
            for task in self.tasks(split):
                digest.update(task.model_dump_json(exclude={"conversation"}).encode())
        return digest.hexdigest()

    def _rng(self, what: str) -> random.Random:
        # Seeded by text, so that the order in which parts are made does not matter.
        return random.Random(f"atlas {self.seed} {what}")
