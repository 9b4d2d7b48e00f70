"""Runs that leave the language or the script of their question.

Compared are the steps in which the model speaks for itself: thoughts, roles and the answer. A query may be in any
language. What a step quotes from an observation is not its own, and a question may ask for another language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from coa.scan.finding import Note, Severity
from coa.scan.languages import ASKED_FOR, MOST, in_script, language, prose, scripts
from coa.scan.steps import is_observation
from coa.trajectory import Author, Kind, Profile, Trajectory

_MIN_LETTERS: Final = 24
_MIN_SHARE: Final = 0.3
_MOST_OBSERVED: Final = 500_000
_MOST_STRETCHES: Final = 200
"""Limits to the search for quotations: the time of a search is the product of both."""
_TRANSLATION: Final = re.compile(r"\btranslat|\bübersetz|\btradu[ciz]|翻译|翻譯|翻訳|перев[её][дс]", re.IGNORECASE)


class LanguageSwitches:
    name = "language_switches"
    about = "runs that leave the language or the script of their question"

    def scan(self, trajectory: Trajectory, profile: Profile) -> Iterator[Note]:
        asked = prose(trajectory.task.question_in_context)
        if _TRANSLATION.search(asked):
            return
        given = set(scripts(asked))
        named = set(re.findall(r"\w+", asked.casefold()))
        given |= {script for script, words in ASKED_FOR.items() if named & set(words.split())}
        base, source = language(asked, min_words=6), "the question is"
        found: dict[str, tuple[int, str, list[int]]] = {}
        for index, step in enumerate(trajectory.steps):
            agent = profile.agents.get(step.agent)
            if agent is None or agent.kind is Kind.TOOL or step.author is not Author.MODEL:
                continue
            text = prose(step.text)
            if given and (foreign := _foreign(text, given, trajectory)) is not None:
                script, share = foreign
                message = f"{share:.0%} of this step is in {script}, which the question does not use"
                found.setdefault(script, (index, message, []))[2].append(index)
                continue
            spoken = language(text)
            if spoken is None or spoken == base:
                continue
            if base is None:
                base, source = spoken, f"step {index} is"
                continue
            message = f"{source} in {base}, this step is in {spoken}"
            found.setdefault(spoken, (index, message, []))[2].append(index)
        for to, (index, message, places) in found.items():
            more = f" ({len(places)} such steps)" if len(places) > 1 else ""
            yield Note(index, Severity.WARNING, message + more, kind=f"to {to}")


def _foreign(text: str, given: set[str], trajectory: Trajectory) -> tuple[str, float] | None:
    """The script in which a large part of the text is, though the question has none of it, and its share."""
    letters = scripts(text)
    others = {script: count for script, count in letters.items() if script not in given}
    if not others or ("Latin" in others and len(others) == 1 and not _is_latin_prose(text)):
        return None
    if sum(others.values()) < max(_MIN_LETTERS, _MIN_SHARE * letters.total()):
        return None
    own = scripts(_without_quotations(text, frozenset(others), trajectory))
    script = max(others, key=lambda name: own[name])
    share = own[script] / max(letters.total(), 1)
    return (script, share) if own[script] >= _MIN_LETTERS and share >= _MIN_SHARE else None


def _is_latin_prose(text: str) -> bool:
    """Names, terms and abbreviations in Latin letters are part of many languages; sentences are not."""
    return language(text) is not None


def _without_quotations(text: str, foreign: frozenset[str], trajectory: Trajectory) -> str:
    """The text without stretches of the foreign scripts that an observation has too."""
    observed = "\n".join(step.text[:_MOST_OBSERVED] for step in trajectory.steps if is_observation(step))
    observed = observed[:_MOST_OBSERVED]
    kept, stretch, looked_up = list[str](), list[str](), set[str]()

    def close() -> None:
        words = "".join(stretch).strip()
        stretch.clear()
        if words:
            looked_up.add(words)
            if len(looked_up) > _MOST_STRETCHES or words not in observed:
                kept.append(words)

    for character in text[:MOST]:
        if in_script(character, foreign) or (stretch and character == " "):
            stretch.append(character)
        else:
            close()
            kept.append(character)
    close()
    return "".join(kept)
