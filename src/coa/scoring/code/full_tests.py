"""The full tests of a problem, where its own file has only the samples that the statement prints.

Such are AFM's files of LiveCodeBench, and a program that prints the sample outputs passes them. The full tests are in
LiveCodeBench's release files; they are joined by `question_id`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from coa.errors import StoreError
from coa.scoring.code.problem import Problem, problem_from, read_problem
from coa.trajectory.formats.rows import read_rows

_ENDINGS: Final = (".jsonl", ".json", ".parquet")
_FIELDS: Final = ("public_test_cases", "private_test_cases")
SOURCE: Final = "test.jsonl to test6.jsonl of livecodebench/code_generation_lite"


def find_tests(place: Path, wanted: Collection[str]) -> dict[str, Problem]:
    """The problems with these question ids, from a release file or a folder of them. They are read as a stream."""
    left, found = set(wanted), dict[str, Problem]()
    for file in _files(place):
        for row in read_rows(file):
            identity = str(row.get("question_id"))
            if identity in left and any(row.get(field) for field in _FIELDS):
                found[identity] = problem_from(row, source=f"{file}, {identity}")
                left.discard(identity)
            if not left:
                return found
    return found


def read_problem_with(path: Path, tests: Path) -> Problem:
    """The problem of a file with the full tests of its question id."""
    known = read_problem(path)
    found = find_tests(tests, [known.id])
    if not found:
        raise StoreError(f"--tests {tests} holds no tests of {known.id}", hint=f"give {SOURCE}, or a folder with them")
    return found[known.id]


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    files = sorted(path for path in place.rglob("*") if path.suffix in _ENDINGS and path.is_file())
    if not files:
        what = "holds no .jsonl, .json or .parquet file" if place.is_dir() else "does not exist"
        raise StoreError(f"--tests {place} {what}", hint=f"give {SOURCE}, or a folder with them")
    yield from files
