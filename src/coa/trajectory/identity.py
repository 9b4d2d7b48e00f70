"""Ids of tasks that have none of their own, and of runs in files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path


def content_id(question: str, answer: object, conversation: Iterable[tuple[str, str]] = ()) -> str:
    """An id that depends only on the content, so that a file gives the same ids wherever it is read.

    `conversation` has the role and text of each earlier turn: one question in two conversations is two tasks.
    """
    turns = "".join(f"\x00{role}\x01{text}" for role, text in conversation)
    return hashlib.sha256(f"{question}\x00{answer}{turns}".encode()).hexdigest()[:12]


def run_id(file: Path, number: int) -> str:
    """The id of the record with this number (from 0) in a file: the address of a run in the viewer.

    Files are appended to, so the id of a run stays the same while its file grows.
    """
    return run_ids(file)(number)


def run_ids(file: Path) -> Callable[[int], str]:
    """`run_id` for many records of one file."""
    place = hashlib.blake2b(f"{file.resolve()}\x00".encode("utf-8", "surrogateescape"), digest_size=8)

    def named(number: int) -> str:
        found = place.copy()
        found.update(str(number).encode())
        return found.hexdigest()

    return named
