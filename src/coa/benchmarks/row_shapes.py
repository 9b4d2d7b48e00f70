"""Turns rows of benchmarks with a special shape into rows that `coa.trajectory.formats.tasks` reads."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Any

from coa.sandbox.values import literal
from coa.scoring.code.problem import Problem, problem_from

Row = Mapping[str, Any]
RowReader = Callable[[Row], Row | None]
"""Returns None for a row that does not belong to the benchmark."""


def as_is(row: Row) -> Row:
    return row


def without_files(row: Row) -> Row | None:
    return None if row.get("file_name") or row.get("file_path") else row


def without_image(row: Row) -> Row | None:
    if row.get("image"):
        return None
    return {key: value for key, value in row.items() if key not in ("image", "image_preview", "rationale_image")}


def browsecomp(row: Row) -> Row:
    """The published rows are encrypted so that no crawler reads them; the canary of a row is its password."""
    if not {"problem", "answer", "canary"} <= set(row):
        return row
    others = {key: value for key, value in row.items() if key not in ("problem", "answer", "problem_topic")}
    canary = str(row["canary"])
    question, answer = deciphered(str(row["problem"]), canary), deciphered(str(row["answer"]), canary)
    return {**others, "topic": row.get("problem_topic"), "question": question, "answer": answer}


def deciphered(text: str, password: str) -> str:
    """Base64 of the text, XORed with the SHA-256 of the password over and over."""
    try:
        data = base64.b64decode(text, validate=True)
        key = hashlib.sha256(password.encode()).digest()
        return bytes(letter ^ mask for letter, mask in zip(data, cycle(key), strict=False)).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError(f"it cannot be deciphered with its canary ({error}); is the file complete?") from error


def livecodebench(row: Row) -> Row:
    if "public_test_cases" not in row and "private_test_cases" not in row:
        return row
    starter = str(row.get("starter_code") or "").strip()
    question = str(row["question_content"])
    if starter:
        question += f"\n\nComplete this program:\n```python\n{starter}\n```"
    tests = {"public_test_cases", "private_test_cases", "question_content", "starter_code"}
    return {**_others(row, tests), "question": question, "tests": as_task_tests(problem_from(row))}


def contest(row: Row) -> Row:
    if "public_tests" not in row:
        return row
    tests = {"public_tests", "private_tests", "generated_tests", "description", "solutions", "incorrect_solutions"}
    question = str(row["description"])
    return {
        **_others(row, tests),
        "id": row.get("name"),
        "question": question,
        "tests": as_task_tests(problem_from(row)),
    }


def _others(row: Row, without: set[str]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in without}


def as_task_tests(problem: Problem) -> dict[str, Any]:
    """As a task holds them. Cases that call a function become assertions, which the scorer reads back as cases."""
    if problem.function is None:
        return {"cases": [{"stdin": case.stdin, "expected": str(case.expected)} for case in problem.cases]}
    lines = []
    for case in problem.cases:
        arguments = ", ".join(map(literal, case.arguments or ()))
        lines.append(f"assert Solution().{problem.function}({arguments}) == {literal(case.expected)}")
    return {"functional": "\n".join(lines)}
