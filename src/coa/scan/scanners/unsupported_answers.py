"""Answers that nothing in the run supports: no word or number of theirs is in an observation, question or program.

How it decides, and where it keeps quiet:

- Only runs in which a tool answered are looked at. Without observations there is nothing to compare with.
- A word counts as found if it, or its stem, stands anywhere in the observations, the question, the earlier turns or the
  arguments of a call. One word that is found is enough: answers are worded freely.
- A number is found if the same value stands there, however it is written or rounded, or if it is the sum, difference,
  product or quotient of two such numbers that the model also wrote down. An answer with a whole number up to 20 is
  never reported, because that may be counted.
- Yes, no, letters of a choice, formulas, programs and answers in a script that no observation uses are not decidable.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from coa.scan.finding import Note, Severity
from coa.scan.languages import scripts
from coa.scan.numbers import Quantity, derived, quantities, stated, values
from coa.scan.steps import calls, is_observation, quotation
from coa.scan.tool_answers import RUNTIME_ERRORS
from coa.trajectory import Author, Profile, Trajectory
from coa.trajectory.shapes import last_boxed
from coa.trajectory.shorten import omitted

_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_FORMULA: Final = re.compile(r"\\[A-Za-z]+|[\^{}=]|```|\b(?:def|return|import|print)\b")
_MOST_WORDS: Final = 30
"""Longer answers are texts of their own; some word of them is always found."""
_LONG: Final = 10_000
"""Number of characters of which the same is true, without a look at the words."""
_COUNTABLE: Final = 20
_FUNCTION: Final = """
yes no true false none unknown unclear not and or the of in on at to by for with from is are was were be been an as
it its this that these those answer final result total about approximately around ca than more less per each he she
they his her their who which what when where cannot could find found sorry there information january february march
april may june july august september october november december monday tuesday wednesday thursday friday saturday
sunday million billion thousand hundred percent year years day days hours minutes seconds kilometres kilometers km
metres meters miles people one two three four five six seven eight nine ten eleven twelve
"""
_NOT_TELLING: Final = frozenset(_FUNCTION.split())
"""Words that support nothing by themselves: function words, units, months, number words."""


class UnsupportedAnswers:
    name = "unsupported_answers"
    about = "answers of which no word and no number is in an observation, the question or a program"

    def scan(self, trajectory: Trajectory, profile: Profile) -> Iterator[Note]:
        at = next((i for i in reversed(range(len(trajectory.steps))) if trajectory.steps[i].agent == "answer"), None)
        if at is None or trajectory.task.tests is not None:
            return
        whole = trajectory.steps[at].text
        boxed = last_boxed(whole)
        answer = (whole if boxed is None else boxed).strip()
        if len(answer) > _LONG:
            return
        words = [word for word in _WORD.findall(_folded(answer)) if word not in _NOT_TELLING]
        numbers = quantities(answer)
        if (not words and not numbers) or _FORMULA.search(answer) or len(words) > _MOST_WORDS:
            return
        called = list(calls(trajectory, profile))
        seen = [
            step.text
            for step in trajectory.steps[:at]
            if is_observation(step) and step.meta.get("error") not in RUNTIME_ERRORS
        ]
        if not seen or not called:
            return
        texts = [*seen, _asked(trajectory), *(call.text for call in called)]
        # Folding takes long, and the words mostly stand there as they are.
        if _stand_in(words, (text.lower() for text in texts)):
            return
        evidence = [_folded(text) for text in texts]
        if _stand_in(words, evidence):
            return
        if words and not set(scripts(answer)) & {script for text in evidence for script in scripts(text)}:
            return
        if any(_is_small(number) for number in numbers):
            return
        known = {value for text in evidence for value in values(text)} if numbers else set()
        if stated(numbers, known) or derived(numbers, known, _written(trajectory)):
            return
        cut = any(omitted(step.text) for step in trajectory.steps[:at] if is_observation(step))
        but = "; an observation was shortened, though" if cut else ""
        what = "word or number" if words and numbers else "word" if words else "number"
        message = f"no {what} of the answer {quotation(answer)} is in an observation, the question or a call{but}"
        yield Note(at, Severity.INFO if cut else Severity.WARNING, message, kind="numbers" if not words else "words")


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    plain = unicodedata.normalize("NFKD", text.casefold())
    return "".join(character for character in plain if not unicodedata.combining(character))


def _asked(trajectory: Trajectory) -> str:
    """What the user wrote. The system prompt is left out: it holds an example with an answer."""
    task = trajectory.task
    prompt = [turn.content for turn in (trajectory.prompt or task.prompt or ()) if turn.role != "system"]
    return "\n".join([task.question_in_context, *task.files, *prompt])


def _stand_in(words: Sequence[str], texts: Iterable[str]) -> bool:
    """Whether one of the words is in one of the texts, a long one by its stem: Germany where a page says German."""
    stems = [word if len(word) <= 5 else word[: max(5, len(word) - 3)] for word in words]
    return any(stem in text for text in texts for stem in stems)


def _is_small(number: Quantity) -> bool:
    return number.scaled is None and number.value == int(number.value) and abs(number.value) <= _COUNTABLE


def _written(trajectory: Trajectory) -> set[float]:
    """Numbers that the model wrote on its way to the answer."""
    own = (step for step in trajectory.steps if step.author is Author.MODEL and step.agent != "answer")
    return {value for step in own for value in values(step.text)}
