"""One record of a file as a row of the index: what the list shows and filters by, and the texts that are searched.

Records are read as plain JSON. Validating each as a `Trajectory` would take most of the time of indexing; it happens
when a run is opened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from coa.runtime.many import normal_answer
from coa.scoring.exact import normalise
from coa.trajectory.types import CUT_SHORT, READABLE_VERSIONS, Author, Stop, Trajectory

OUTCOMES: Final = ("right", "partly", "wrong", "unanswered", "unscored", "failed", "running")
_FAMILY_KEYS: Final = ("family", "category", "level", "Level", "difficulty", "topic", "type", "subject", "hops")
"""Keys of a task's meta that say which kind of task it is; the first that is there counts."""
_BENCHMARK_KEYS: Final = ("benchmark", "data_source", "dataset")
_NOT_DECIDING: Final = frozenset({"reward", "advantage", "counted", "format"})
"""Scores that say something else than whether the answer is right."""
_CUT_SHORT: Final = frozenset(stop.value for stop in CUT_SHORT)
_SHOWN: Final = 300
"""Number of characters of questions and answers in the list."""
_LONGEST_COMPARED: Final = 1000
"""Number of characters up to which an answer is compared with the accepted ones."""
_IDEOGRAPHS: Final = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]")


class RowValues(NamedTuple):
    """The columns of the table `runs` that follow from a record."""

    task: str
    sample: int
    stop: str
    outcome: str
    score: float | None
    reward: float | None
    advantage: float | None
    learnt: int | None
    rl_step: int | None
    grp: int | None
    steps: int
    tool_calls: int
    tool_errors: int
    repairs: int
    prompt_tokens: int
    completion_tokens: int
    tokens: int
    seconds: float
    cost: float | None
    benchmark: str
    family: str
    profile: str


class RowTexts(NamedTuple):
    """What the list shows of a record, shortened."""

    question: str
    answer: str | None
    expected: str
    profile_hash: str | None
    agents: tuple[str, ...]


class SearchTexts(NamedTuple):
    question: str
    steps: str
    observations: str


class IndexedRow(NamedTuple):
    values: RowValues
    texts: RowTexts
    search: SearchTexts


class Unreadable(ValueError):
    """The record is no trajectory that this version can read."""


def indexed_row(record: object, scorer: str | None = None) -> IndexedRow:
    """The row of a trajectory as JSON. `scorer` names the score that decides, where the run folder says so."""
    if not isinstance(record, Mapping):
        raise Unreadable("the record is not a JSON object")
    version = record.get("schema_version", READABLE_VERSIONS[-1])
    if version not in READABLE_VERSIONS:
        raise Unreadable(f"the record has schema version {version!r}, which this version of coa cannot read")
    try:
        return _row(record, scorer)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Unreadable(f"the record is not a trajectory: {_fault(record, error)}") from error


def _fault(record: Mapping[str, Any], error: Exception) -> str:
    """What is wrong with a record, in the words of the schema where it has some."""
    try:
        Trajectory.model_validate(dict(record))
    except ValidationError as found:
        first = found.errors(include_url=False)[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        pass
    return f"{type(error).__name__} at {error}"


def _row(record: Mapping[str, Any], scorer: str | None) -> IndexedRow:
    task, steps, usage, meta = record["task"], record.get("steps", ()), record.get("usage", {}), record.get("meta", {})
    written, observed, agents = list[str](), list[str](), dict[str, None]()
    errors = repairs = observations = 0
    answer = None
    for step in steps:
        agent, text = step["agent"], step["text"]
        if type(agent) is not str or type(text) is not str:
            raise TypeError("a step whose agent or text is not a string")
        if step.get("author") == Author.ENVIRONMENT:
            observed.append(text)
            observations += 1
            errors += step.get("meta", {}).get("ok") is False
        else:
            written.append(text)
            agents[agent] = None
            if agent == "answer":
                answer = text
        repairs += len(step.get("repairs", ()))
    stop = record.get("stop", Stop.ANSWERED.value)
    score = deciding_score(record.get("scores", {}), scorer)
    learning = meta.get("rl") if isinstance(meta.get("rl"), Mapping) else {}
    prompt, completion = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    about = task.get("meta", {})
    question, accepted = task["question"], _listed(task.get("answer"))
    key = record.get("profile_hash")
    if type(question) is not str or not isinstance(key, str | None):
        raise TypeError("a question or a profile hash that is not a string")
    expected = " | ".join(accepted)
    values = RowValues(
        task=str(task["id"]),
        sample=_fitting(int(record.get("sample", 0))),
        stop=str(stop),
        outcome=outcome_of(score, answer, stop, accepted),
        score=score,
        reward=_number(learning.get("reward")),
        advantage=_number(learning.get("advantage")),
        learnt=None if learning.get("learnt") is None else int(bool(learning["learnt"])),
        rl_step=_whole(learning.get("step")),
        grp=_whole(learning.get("group")),
        steps=len(steps),
        tool_calls=_fitting(int(usage.get("tool_calls", 0))) or observations,
        tool_errors=errors,
        repairs=repairs,
        prompt_tokens=_fitting(int(prompt)),
        completion_tokens=_fitting(int(completion)),
        tokens=_fitting(int(prompt + completion)),
        seconds=float(usage.get("seconds", 0.0)),
        cost=_number(usage.get("cost")),
        benchmark=_first(about, _BENCHMARK_KEYS),
        family=_first(about, _FAMILY_KEYS),
        profile=str(record["profile"]),
    )
    texts = RowTexts(
        question=question[:_SHOWN],
        answer=None if answer is None else answer[:_SHOWN],
        expected=expected[:_SHOWN],
        profile_hash=key,
        agents=tuple(agents),
    )
    search = SearchTexts(
        spaced(f"{question}\n{expected}\n{values.task}"), spaced("\n".join(written)), spaced("\n".join(observed))
    )
    return IndexedRow(values, texts, search)


def deciding_score(scores: Mapping[str, Any], scorer: str | None) -> float | None:
    """The score that says whether the answer is right: that of the scorer, `success` in RL, or the only one."""
    if not scores:
        return None
    names = [name for name in scores if name not in _NOT_DECIDING]
    name = scorer if scorer in scores else "success" if "success" in scores else names[0] if names else None
    found = scores.get(name) if name is not None else None
    return _number(found.get("value") if isinstance(found, Mapping) else found)


def outcome_of(score: float | None, answer: str | None, stop: str, accepted: Sequence[str] = ()) -> str:
    """How a run ended. Without a score, an answer that is literally an accepted one is right; another may be right too,
    so it is unscored."""
    answered = bool(answer and answer.strip())
    if answer is None and stop in _CUT_SHORT:
        return "failed"
    if score is not None and score >= 1:
        return "right"
    if not answered:
        return "unanswered"
    if score is None:
        return "right" if _is_accepted(answer or "", accepted) else "unscored"
    return "partly" if score > 0 else "wrong"


def _is_accepted(answer: str, accepted: Sequence[str]) -> bool:
    if not accepted or len(answer) > _LONGEST_COMPARED:
        return False
    return normal_answer(answer) in {normalise(one) for one in accepted if len(one) <= _LONGEST_COMPARED}


def spaced(text: str) -> str:
    """The text with each ideograph as a word: SQLite would take a whole sentence of them for one word."""
    return text if text.isascii() else _IDEOGRAPHS.sub(r" \g<0> ", text)


def _listed(answer: object) -> Sequence[str]:
    if answer is None:
        return ()
    return [str(item) for item in answer] if isinstance(answer, list | tuple) else (str(answer),)


def _first(meta: Mapping[str, Any], keys: Sequence[str]) -> str:
    for key in keys:
        if isinstance(value := meta.get(key), str | int | float):
            return str(value)[:80]
    return ""


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _whole(value: object) -> int | None:
    return _fitting(int(value)) if isinstance(value, int | float) else None


def _fitting(value: int) -> int:
    """The number, if SQLite can keep it."""
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError(f"the number {value:.3g} is too large")
    return value
