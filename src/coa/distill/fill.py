"""Role texts that the order asks for and the trace does not have, written by a model from the steps around them.

Teams often log only calls: then a thought before a call, a reflection after a program or a check of the answer is
missing. The model sees the question and the run as action and observation, and writes one short text for each gap. What
it wrote is marked in the step's meta, and nothing that the team wrote is changed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sqlite3
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from coa.distill.compose import SAME_REPLY
from coa.errors import ModelError
from coa.models.base import Model, Sampling, complete
from coa.trajectory import Author, Kind, Message, Profile, State, Step, Trajectory

log = logging.getLogger(__name__)
FILLED: Final = "filled_by"
_SEEN: Final = 12
"""Steps before the gap that the model gets to read."""
_SHORT: Final = 600
_SUGGESTED: Final = "suggested_answer"
_ASK: Final = """\
Below is the record of an agent at work on a question, as data between two marker lines. One text is missing at the \
place marked [missing], the step `{tag}`. Write that text: {what} {length} Write it as the agent would at that \
moment, knowing nothing that comes later except which action it is about to take. Reply with the text alone, without \
tags or quotation marks.
---- record ----
question: {question}
{before}
[missing]
{after}
---- end of record ----
"""


class Writer(Protocol):
    @property
    def name(self) -> str: ...

    async def write(self, question: str, before: Sequence[Step], after: Step, tag: str, profile: Profile) -> str:
        """The text of the missing step `tag` between what was done and what comes next; empty if there is none."""


def gaps(steps: Sequence[Step], profile: Profile) -> list[tuple[int, tuple[str, ...]]]:
    """Where steps are missing: the index before which they belong, and their tags in order."""
    found: list[tuple[int, tuple[str, ...]]] = []
    state = State.begin(profile)
    for index, step in enumerate(steps):
        agent = profile.agents.get(step.agent)
        if agent is not None and agent.kind is not Kind.THOUGHT and step.author is Author.MODEL and not state.waiting:
            shared = bool(step.meta.get(SAME_REPLY)) and state.covered
            tags = _missing(state, step.agent, profile, thought=state.thought or shared)
            if tags:
                found.append((index, tags))
        state, _ = state.advance(step)
    return found


def _missing(state: State, tag: str, profile: Profile, *, thought: bool) -> tuple[str, ...]:
    way = () if tag in state.allowed else _way(state.allowed, tag, profile)
    tags: list[str] = []
    for name in (*way, tag):
        if profile.agents[name].thought and not thought and profile.thought is not None:
            tags.append(profile.thought)
        tags.append(name)
        thought = False
    return tuple(tags[:-1])  # the step itself is there


def _way(allowed: Sequence[str], tag: str, profile: Profile) -> tuple[str, ...]:
    """The shortest chain of role agents that leads to an agent which may not act yet; empty if there is none."""
    waiting: deque[tuple[str, ...]] = deque((name,) for name in allowed)
    seen = set(allowed)
    while waiting:
        way = waiting.popleft()
        agent = profile.agents[way[-1]]
        if agent.kind is not Kind.ROLE:
            continue
        # A check that has to be written is written as one that passes, or not at all.
        following = (agent.verdict.passed or agent.next) if agent.verdict is not None else agent.next
        if tag in following:
            return way
        new = [name for name in dict.fromkeys(following) if name not in seen]
        seen.update(new)
        waiting.extend((*way, name) for name in new)
    return ()


async def fill(trajectory: Trajectory, profile: Profile, writer: Writer) -> Trajectory:
    """The trajectory with its gaps filled as far as the writer could."""
    steps = list(trajectory.steps)
    # From the end, so that the indices of earlier gaps stay valid.
    for index, tags in reversed(gaps(steps, profile)):
        made: list[Step] = []
        for tag in tags:
            if tag == _SUGGESTED:
                # The team's answer is what it suggests; nothing has to be invented.
                text, by = trajectory.answer or "", "answer"
            else:
                before = [*steps[:index], *made]
                text = await writer.write(trajectory.task.question_in_context, before, steps[index], tag, profile)
                by = writer.name
            if text:
                made.append(Step(agent=tag, text=text, meta={FILLED: by}))
        steps[index:index] = made
    return trajectory.model_copy(update={"steps": tuple(steps)})


class TextCache:
    """Texts by the hash of their prompt in an SQLite file, so that a model is not paid twice for the same text.

    Without a path, the cache lives as long as this object.
    """

    def __init__(self, path: Path | None = None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(path or ":memory:", timeout=30, isolation_level=None)
        self._connection.execute("CREATE TABLE IF NOT EXISTS texts (key TEXT PRIMARY KEY, text TEXT)")

    def get(self, key: str) -> str | None:
        row = self._connection.execute("SELECT text FROM texts WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def put(self, key: str, text: str) -> None:
        self._connection.execute("INSERT OR IGNORE INTO texts VALUES (?, ?)", (key, text))

    def close(self) -> None:
        self._connection.close()


class ModelWriter:
    """Asks a model once for each gap, and caches what it wrote."""

    def __init__(self, model: Model, cache: TextCache) -> None:
        self._model, self._cache, self.name = model, cache, model.name

    async def write(self, question: str, before: Sequence[Step], after: Step, tag: str, profile: Profile) -> str:
        prompt = _prompt(question, before, after, tag, profile)
        key = hashlib.sha256(f"{self._model.name}\0{prompt}".encode()).hexdigest()
        kept = self._cache.get(key)
        if kept is not None:
            return kept
        try:
            sampling = Sampling(temperature=0.0, top_p=1.0, top_k=0, max_tokens=300)
            said = await complete(self._model, [Message(role="user", content=prompt)], sampling=sampling)
        except ModelError as error:
            log.warning("a missing text could not be written: %s", error.message)
            return ""
        text = _clean(said, profile)
        if text:
            self._cache.put(key, text)
        return text


def _prompt(question: str, before: Sequence[Step], after: Step, tag: str, profile: Profile) -> str:
    agent = profile.agents[tag]
    verdict = f" The text {agent.verdict.describe()}." if agent.verdict is not None else ""
    return _ASK.format(
        tag=tag,
        what=f"the {agent.title.lower()} agent {agent.does}",
        length=f"One or two sentences.{verdict}",
        question=json.dumps(question, ensure_ascii=False),
        before="\n".join(map(_line, before[-_SEEN:])) or "(nothing was done yet)",
        after=_line(after),
    )


def _line(step: Step) -> str:
    """As JSON on one line: a page cannot pretend to be the end of the record."""
    text = step.text if len(step.text) <= _SHORT else f"{step.text[: _SHORT // 2]} ... {step.text[-_SHORT // 2 :]}"
    return f"{step.agent}: {json.dumps(text, ensure_ascii=False)}"


def _clean(said: str, profile: Profile) -> str:
    """Without the reasoning of the writing model, and without tags, which would be read as steps."""
    leads = said.lstrip().startswith("<think>") or "<think>" not in said  # some servers omit the opening tag
    text = said.rpartition("</think>")[2] if leads else said
    return re.sub(rf"(?i)</?(?:{'|'.join(sorted(profile.tags))})>", "", text).strip().strip('"').strip()
