"""Task rows of many formats -> `Task`.

It reads our own rows, the RL rows of AFM and verl (`prompt`, `reward_model`, `extra_info`), and the flat rows of common
benchmarks, as JSONL, JSON lists or Parquet, from a file, a folder or the hub. RL rows have defects, which are repaired:
the index is missing, or the same for all rows; the ground truth is a string, an object, or an object written as text;
whole fields are written as JSON text.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson
from pydantic import ValidationError

from coa.errors import StoreError
from coa.trajectory.formats.rows import Row, read_rows
from coa.trajectory.formats.sources import files
from coa.trajectory.identity import content_id
from coa.trajectory.types import CodeTests, Message, Task, TestCase

_IDS: Final = ("id", "task_id", "_id", "index", "question_id")
_QUESTIONS: Final = ("question", "Question", "problem", "query")
_ANSWERS: Final = ("answer", "Final answer", "golden_answers", "answers", "final_answer", "expected_answer", "target")
_HEADING: Final = re.compile(r"^(?:Task|Question|Problem)[ \t]*:[ \t]*\n?", re.MULTILINE)
"""Start of the question in a prompt that has instructions and question in one message."""


def read_tasks(source: str | Path) -> Iterator[Task]:
    """Iterate over the tasks of a file, a folder or a hub id.

    Rows without an id get one that is made from their content.

    Raises:
        StoreError: The source does not exist, or a row is not a task.
    """
    seen: set[str] = set()
    for path in files(str(source)):
        yield from tasks_of(read_rows(path), source=str(path), seen=seen)


def tasks_of(rows: Iterable[Row], *, source: str = "rows", seen: set[str] | None = None) -> Iterator[Task]:
    """`seen` has the ids that other rows use already."""
    seen = set() if seen is None else seen
    for number, row in enumerate(rows, start=1):
        try:
            task = to_task(row)
        except (ValidationError, ValueError, TypeError, KeyError, AttributeError) as error:  # rows of any shape
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else f"{error}"
            raise StoreError(
                f"{source}, row {number} is not a task: {reason}", hint="repair or remove the row"
            ) from error
        identity = free_id(task.id, seen)
        yield task if identity == task.id else task.model_copy(update={"id": identity})


def free_id(wanted: str, taken: set[str]) -> str:
    """A unique id made from the wanted one: two tasks with one id would look like two attempts at one task."""
    identity, again = wanted, 2
    while identity in taken:
        identity, again = f"{wanted}#{again}", again + 1
    taken.add(identity)
    return identity


def to_task(row: Row) -> Task:
    if isinstance(reward := _unspelled(row.get("reward_model")), Mapping):
        return _from_rl_row(row, reward)
    question = _first(row, _QUESTIONS)
    if question is None:
        raise ValueError(f"it has no question; the fields are {sorted(row)}")
    answer = _first(row, _ANSWERS)
    own = {name: row[name] for name in ("profile", "tests", "files", "prompt") if row.get(name) is not None}
    conversation = _conversation(row.get("conversation"))
    used = {*_IDS, *_QUESTIONS, *_ANSWERS, *own, "conversation", "meta"}
    others = {key: value for key, value in row.items() if key not in used and value is not None}
    identity = _first(row, _IDS)
    return Task(
        id=str(identity) if identity is not None else content_id(str(question), answer, _turns(conversation)),
        question=str(question),
        answer=_plain(answer),
        conversation=conversation,
        meta={key: _plain(value) for key, value in {**dict(row.get("meta") or {}), **others}.items()},
        **own,
    )


def from_task(task: Task) -> dict[str, Any]:
    """A row that `to_task` reads back exactly."""
    return task.model_dump(mode="json", exclude_defaults=True)


def question_in(content: str) -> str:
    """The question of a prompt, without the instructions before it."""
    heading = _HEADING.search(content)
    return (content[heading.end() :] if heading else content).strip()


def _from_rl_row(row: Row, reward: Mapping[str, Any]) -> Task:
    info = _unspelled(row.get("extra_info")) or {}
    if not isinstance(info, Mapping):
        raise ValueError(f"its extra_info is {type(info).__name__}, not an object")
    prompt = _messages(row.get("prompt"))
    question = info.get("question") or _first(row, _QUESTIONS) or (question_in(prompt[-1].content) if prompt else None)
    if not question:
        raise ValueError("it has neither a prompt nor a question")
    truth = _unspelled(reward.get("ground_truth"))
    tests = _tests(truth)
    beside = info.get("answer")
    answer = () if tests else _answer(truth, _first(row, _ANSWERS) if beside in (None, "") else _unspelled(beside))
    source = str(row.get("data_source") or "task")
    # Without an index the content decides. A constant would put all rows into one group.
    given = info.get("conversation")
    conversation = _conversation(given) if given is not None else _before_question(prompt)
    identity = _index(info.get("index")) or content_id(str(question), truth, _turns(conversation))
    kept = {"question", "answer", "index", "conversation", "need_tools_kwargs", "tools_kwargs"}
    meta = {key: _plain(value) for key, value in info.items() if key not in kept and value not in (None, "")}
    if tests and isinstance(truth, Mapping) and truth.get("question_id"):
        meta["question_id"] = str(truth["question_id"])
    return Task(
        id=f"{source}-{identity}",
        question=str(question),
        answer=_plain(answer),
        tests=tests,
        prompt=prompt or None,
        conversation=conversation,
        meta={"data_source": source, "ability": str(row.get("ability") or ""), **meta},
    )


def _index(value: object) -> str | None:
    """In a column with missing values, numbers are floats and missing values are nan."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return str(int(value)) if value.is_integer() else str(value)
    return None if value is None or value == "" else str(value)


def _messages(prompt: Any) -> tuple[Message, ...]:
    """Messages from a list, a list written as JSON text, or a plain string of the user."""
    if isinstance(prompt, str):
        prompt = _json_list(prompt, dict) or [{"role": "user", "content": prompt}]
    return tuple(Message(role=row["role"], content=row["content"]) for row in prompt or ())


def _conversation(value: Any) -> tuple[Message, ...]:
    """Earlier turns: a list of messages, or one written as JSON text."""
    turns = _json_list(value, dict) if isinstance(value, str) else value
    if value is not None and not isinstance(turns, list | tuple):
        raise ValueError("its `conversation` is not a list of messages with `role` and `content`")
    try:
        return _messages(turns)
    except (KeyError, TypeError, ValidationError) as error:
        raise ValueError(
            "its `conversation` has an entry that is not a message: `role` is system, user or assistant, and `content` "
            "is text"
        ) from error


def _before_question(prompt: tuple[Message, ...]) -> tuple[Message, ...]:
    """The earlier turns of a prompt that is a whole conversation, without its system prompt."""
    earlier = prompt[:-1]
    talked = any(message.role == "assistant" for message in earlier)
    return tuple(message for message in earlier if message.role != "system") if talked else ()


def _turns(conversation: Iterable[Message]) -> Iterator[tuple[str, str]]:
    return ((turn.role, turn.content) for turn in conversation)


def _unspelled(value: object) -> object:
    """Parse an object or a list of strings that is written as text, in JSON or as Python prints it.

    Other values are returned as they are: "204" is an answer and not a number, "{1, 2}" a set in a formula.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("["):
        return _json_list(text, str) or value
    if not text.startswith("{"):
        return value
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            parsed = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return value
    return parsed if isinstance(parsed, dict) and all(isinstance(key, str) for key in parsed) else value


def _json_list(text: str, kind: type) -> list[Any] | None:
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    whole = isinstance(parsed, list) and all(isinstance(item, kind) for item in parsed)
    return parsed if whole else None


def _tests(truth: object) -> CodeTests | None:
    if not isinstance(truth, Mapping):
        return None
    if truth.get("functional"):
        return CodeTests(functional=str(truth["functional"]))
    inputs = truth.get("stdin", truth.get("inputs"))
    outputs = truth.get("expected_output", truth.get("outputs"))
    if inputs is None or outputs is None:
        return None
    inputs, outputs = ([side] if isinstance(side, str) else side for side in (inputs, outputs))
    if len(inputs) != len(outputs):
        raise ValueError(f"{len(inputs)} test inputs but {len(outputs)} expected outputs")
    return CodeTests(cases=tuple(TestCase(stdin=str(i), expected=str(o)) for i, o in zip(inputs, outputs, strict=True)))


def _answer(truth: object, fallback: object) -> Any:
    if truth is None or truth == "":
        return _answer(fallback, None) if isinstance(fallback, Mapping) else fallback
    if not isinstance(truth, Mapping):
        return truth
    for name in ("target", "answer", "answers", "ground_truth", "value"):
        if truth.get(name) is not None:
            return truth[name]
    if fallback is None:
        raise ValueError(f"its ground truth has none of the known fields; it has {sorted(truth)}")
    return fallback


def _first(row: Row, names: tuple[str, ...]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None and row[name] != ""), None)


def _plain(value: Any) -> Any:
    """A value that JSON can represent; Arrow returns dates, for example."""
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)
