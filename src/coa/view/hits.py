"""Where the words of a search occur in a run: the question, a step, an observation, each with a little context."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypedDict

from coa.trajectory.types import Author

_CONTEXT: Final = 70
MOST_HITS: Final = 4


class Hit(TypedDict):
    where: str
    """`question`, `step`, `observation` or `answer`."""
    step: int | None
    agent: str
    before: str
    match: str
    after: str


def hits_in(record: Mapping[str, Any], words: Sequence[str], scope: str | None = None) -> list[Hit]:
    """The first places of the words in a record, at most one for each word in each text."""
    if not words:
        return []
    patterns = [re.compile(re.escape(word), re.IGNORECASE) for word in words]
    found: list[Hit] = []
    for where, step, agent, text in _texts(record):
        if scope is not None and _SCOPES[where] != scope:
            continue
        for pattern in patterns:
            if (match := pattern.search(text)) is not None:
                found.append(_hit(where, step, agent, text, match))
                if len(found) == MOST_HITS:
                    return found
                break
    return found


_SCOPES: Final = {"question": "question", "step": "steps", "answer": "steps", "observation": "observations"}


def _texts(record: Mapping[str, Any]) -> Iterator[tuple[str, int | None, str, str]]:
    task = record.get("task", {})
    yield "question", None, "", str(task.get("question", ""))
    for number, step in enumerate(record.get("steps", ())):
        agent = str(step.get("agent", ""))
        observed = step.get("author") == Author.ENVIRONMENT
        where = "observation" if observed else "answer" if agent == "answer" else "step"
        yield where, number, agent, str(step.get("text", ""))


def _hit(where: str, step: int | None, agent: str, text: str, match: re.Match[str]) -> Hit:
    start, end = match.span()
    before, after = text[max(start - _CONTEXT, 0) : start], text[end : end + _CONTEXT]
    return Hit(
        where=where,
        step=step,
        agent=agent,
        before=("…" if start > _CONTEXT else "") + before.replace("\n", " "),
        match=match.group()[:200],
        after=after.replace("\n", " ") + ("…" if end + _CONTEXT < len(text) else ""),
    )
