"""Ids of tasks that have none of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def content_id(question: str, answer: object, conversation: Iterable[tuple[str, str]] = ()) -> str:
    """An id that depends only on the content, so that a file gives the same ids wherever it is read.

    `conversation` has the role and text of each earlier turn: one question in two conversations is two tasks.
    """
    turns = "".join(f"\x00{role}\x01{text}" for role, text in conversation)
    return hashlib.sha256(f"{question}\x00{answer}{turns}".encode()).hexdigest()[:12]
