"""What each agent of the team does next, from its request and the way to the answer, which the world knows.

Every agent is a generator: it yields what it does (an `Act`) and is sent what came back. The expert errs at a set rate:
it misspells a name, opens a namesake's page or an old newspaper, writes a wrong program. The critic and the verifier
notice most of it, and the team corrects itself. All chance is drawn from the seed and the task.
"""

from __future__ import annotations

import random
import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Final

from coa.worlds.atlas.entities import OUTDATED, PAPER, Page
from coa.worlds.atlas.questions import Family, Question, answer_of
from coa.worlds.team import phrases
from coa.worlds.team.phrases import say

FINISH: Final = "final_answer"
SEARCHER, READER, CODER, CRITIC, VERIFIER = "search_agent", "reading_agent", "coding_agent", "critic", "verifier"
PASS: Final = 3
_SIGNS: Final = {"max": ">", "min": "<"}
_SLIPS: Final = (
    (" + 1))", "))"), ("//", "%"), (" - ", " + "), (" + ", " - "), (" * ", " + "), (" % ", " // "), (" > ", " < "),
    (" < ", " > "),
)  # fmt: skip
_AGAIN: Final = "Again."
"""How a request says that the last answer was wrong."""


@dataclass(frozen=True, slots=True)
class Act:
    """One step of an agent: what it says, and the tool or member that it calls."""

    says: str
    calls: str
    arguments: Mapping[str, object]


Agent = Generator[Act, str, None]


@dataclass
class Brain:
    """One team at one task."""

    question: Question
    pages: Mapping[str, Page]
    seed: int
    errors: float
    """Probability that an agent errs where it can."""
    missed: float
    """Probability that the verifier does not notice an error."""
    _corrected: bool = False

    def __post_init__(self) -> None:
        self.rng = random.Random(f"expert {self.seed} {self.question.task.id}")
        self.solution = self.question.solution
        self.gold = self.question.task.answer[0]
        self.last = self.solution.lookups[0].fields[-1] if self.solution.lookups else ""
        self.wanted = [self.pages[lookup.start] for lookup in self.solution.lookups]

    def plan(self) -> str:
        return phrases.plan(self.solution)

    def agent(self, name: str, request: str) -> Agent:
        made = {SEARCHER: self._searcher, READER: self._reader, CODER: self._coder, CRITIC: self._critic}
        made[VERIFIER] = self._verifier
        return made[name](request) if name in made else self._manager()

    def _errs(self, share: float = 1.0) -> bool:
        return self.rng.random() < self.errors * share

    def _say(self, choices: tuple[str, ...], **words: str) -> str:
        return say(choices, self.rng, **words)

    # ---- the manager

    def _manager(self) -> Agent:
        if self.solution.family is Family.CODE_ONLY:
            yield from self._answer_by_code(self.solution.program, "")
            return
        found = yield from self._find()
        values = yield from self._read(found)
        if self.solution.operator:
            expression = self._expression(values)
            yield from self._answer_by_code(f"print({expression})", expression)
        else:
            yield from self._answer_read(values[0])

    def _find(self) -> Generator[Act, str, list[str]]:
        """Lines of the search that name a page: address and kind."""
        missing, lines, again = list(self.wanted), list[str](), False
        while missing and len(lines) < 20:
            who = missing[0].name if len(missing) == 1 else "both"
            says = self._say(phrases.FIND_AGAIN, who=who) if again else ""
            query = " | ".join(f"{page.kind} {page.name}" for page in missing)
            report = yield Act(says, SEARCHER, {"task": f"Find: {query}"})
            lines += [line for line in report.splitlines() if ": " in line]
            there = {line.partition(":")[0] for line in lines}
            missing = [page for page in self.wanted if page.address not in there]
            if missing:
                again = self._corrected = True
                yield Act("", CRITIC, {"task": f"No page of: {missing[0].name}\nThe search gave: {report}"})
        return lines

    def _read(self, found: list[str]) -> Generator[Act, str, list[str]]:
        """The facts, one for each lookup."""
        right = [page.address for page in self.wanted]
        chosen = list(right)
        if self._errs(1.6) and (wrong := self._lookalike(found)) is not None:
            chosen[wrong[0]] = wrong[1]
        again = False
        while True:
            says = self._say(phrases.READ_RIGHT, page=chosen[0]) if again else ""
            report = yield Act(says, READER, {"task": self._reading(chosen)})
            if not report.startswith("wrong page"):
                return report.split(" | ")
            self._corrected = again = True
            at = next(i for i, address in enumerate(chosen) if address != right[i])
            yield Act("", CRITIC, {"task": f"{report}\nWanted: the {self.wanted[at].kind}\nPage: {chosen[at]}"})
            chosen = list(right)

    def _reading(self, chosen: list[str]) -> str:
        who = " and ".join(f"the {page.kind} {page.name}" for page in self.wanted)
        return f"Who: {who}\nPages: {' | '.join(chosen)}\nFacts: {', '.join(self.solution.lookups[0].fields)}"

    def _lookalike(self, found: list[str]) -> tuple[int, str] | None:
        """Among the results, another page with the name of a wanted one."""
        for index, page in enumerate(self.wanted):
            for line in found:
                address, _, _ = line.partition(":")
                if answer_of(address) == page.name and address != page.address:
                    return index, address
        return None

    def _answer_read(self, value: str) -> Agent:
        answer = answer_of(value)
        verdict = yield self._to_verifier(answer, f"{self.last}: {value}", self._done())
        if _score(verdict) < PASS:
            self._corrected = True
            right = [page.address for page in self.wanted]
            value = yield Act(self._say(phrases.READ_RIGHT, page=right[0]), READER, {"task": self._reading(right)})
            answer = answer_of(value)
            yield self._to_verifier(answer, f"{self.last}: {value}", self._done())
        yield self._finish(answer)

    def _answer_by_code(self, program: str, expression: str) -> Agent:
        wanted = f"Compute: {expression}" if expression else f"Program: {program}"
        answer = yield Act(self._done() if expression else "", CODER, {"task": wanted})
        verdict = yield self._to_verifier(answer, expression or program)
        if _score(verdict) < PASS:
            self._corrected = True
            answer = yield Act(self._say(phrases.COMPUTE_AGAIN), CODER, {"task": f"{_AGAIN} {wanted}"})
            yield self._to_verifier(answer, expression or program)
        yield self._finish(answer)

    def _expression(self, values: list[str]) -> str:
        """What is computed of two facts. Comparisons too: a small model that compares by eye is right by chance."""
        if (sign := _SIGNS.get(self.solution.operator)) is None:
            return f" {self.solution.operator} ".join(values)
        one, other = (page.name for page in self.wanted)
        return f"'{one}' if {values[0]} {sign} {values[1]} else '{other}'"

    def _done(self) -> str:
        """The last page was read."""
        return phrases.done(self.solution, len(self.solution.lookups[0].fields) - 1)

    def _to_verifier(self, answer: str, evidence: str, says: str = "") -> Act:
        request = f"Question: {self.question.task.question}\nSeen: {evidence}\nanswer: {answer}"
        return Act(says, VERIFIER, {"task": request})

    def _finish(self, answer: str) -> Act:
        return Act("", FINISH, {"answer": answer})

    # ---- its team

    def _searcher(self, request: str) -> Agent:
        query = _field(request, "Find")
        if not self._corrected and self._errs(0.5):
            name = self.rng.choice(self.wanted).name
            query = query.replace(name, self._misspelt(name))
        result = yield Act("", "web_search", {"query": query})
        yield Act("", FINISH, {"answer": result})

    def _misspelt(self, name: str) -> str:
        """The name without one of its letters, such that it is nobody's name."""
        taken = {page.name for page in self.pages.values()}
        slips = [name[:at] + name[at + 1 :] for at in range(2, len(name) - 1)]
        return self.rng.choice([slip for slip in slips if slip not in taken] or slips)

    def _reader(self, request: str) -> Agent:
        pages, labels = _field(request, "Pages").split(" | "), _field(request, "Facts").split(", ")
        result = yield Act("", "crawl_page", {"urls": pages})
        read = _blocks(result, pages)
        for index, address in enumerate(pages):
            facts, wanted = read.get(address, {}), self.wanted[index]
            # It may not notice that a single figure is outdated; the verifier will.
            old = OUTDATED in facts and (len(pages) > 1 or labels[0] not in facts or self.rng.random() < 0.5)
            if labels[0] not in facts or facts.get("job", wanted.kind) != wanted.kind or old:
                yield Act("", FINISH, {"answer": f"wrong page: {address}" + (", outdated" if old else "")})
                return
        values = [read[address][labels[0]] for address in pages]
        for index, label in enumerate(labels[1:]):
            says = phrases.done(self.solution, index)
            result = yield Act(says, "crawl_page", {"urls": [values[0]]})
            values = [_blocks(result, values)[values[0]].get(label, "nothing")]
        yield Act("", FINISH, {"answer": " | ".join(values)})

    def _coder(self, request: str) -> Agent:
        program = _field(request, "Program") or f"print({_field(request, 'Compute')})"
        if _AGAIN not in request and self._errs():
            # A mistake that people make.
            program = next((program.replace(right, wrong) for right, wrong in _SLIPS if right in program), program)
        result = yield Act("", "code", {"code": program})
        yield Act("", FINISH, {"answer": result.strip()})

    def _critic(self, request: str) -> Agent:
        if name := _field(request, "No page of"):
            yield Act("", FINISH, {"answer": self._say(phrases.NOTHING_FOUND, name=name)})
            return
        wrong = _field(request, "Page")
        right = next(page for page in self.wanted if page.name == answer_of(wrong))
        old = self.pages[wrong].kind == PAPER
        words = {"wrong": wrong, "right": right.address, "kind": right.kind, "name": right.name}
        yield Act("", FINISH, {"answer": self._say(phrases.OLD_PAGE if old else phrases.WRONG_PAGE, **words)})

    def _verifier(self, request: str) -> Agent:
        answer = _field(request, "answer")
        if answer == self.gold:
            says, score = self._approval()
        elif self.rng.random() < self.missed:
            says, score = self._say(phrases.DOUBTED), 3
        elif self.solution.operator or self.solution.program:
            says, score = self._say(phrases.WRONG_SUM), 1
        else:
            says, score = self._say(phrases.OLD), 2
        yield Act("", FINISH, {"answer": f"{says} score: {score}"})

    def _approval(self) -> tuple[str, int]:
        """Score 4 if the answer was found at once, 3 if it took a correction."""
        if self._corrected:
            return self._say(phrases.CORRECTED), 3
        if self.solution.operator or self.solution.program:
            return self._say(phrases.COMPUTED), 4
        return self._say(phrases.FOLLOWED if len(self.solution.lookups[0].fields) > 1 else phrases.READ_IT), 4


def _field(request: str, what: str) -> str:
    found = re.search(rf"(?m){re.escape(what)}: (.+)$", request)
    return found.group(1).strip() if found else ""


def _score(verdict: str) -> int:
    found = re.search(r"score: (\d)", verdict)
    return int(found.group(1)) if found else PASS


def _blocks(text: str, pages: list[str]) -> dict[str, dict[str, str]]:
    """Facts by page; a page that was opened alone has no heading line."""
    read: dict[str, dict[str, str]] = {address: {} for address in pages}
    current = pages[0]
    for line in text.splitlines():
        label, colon, value = line.partition(": ")
        if line in read:
            current = line
        elif colon:
            read[current][label] = value
    return read
