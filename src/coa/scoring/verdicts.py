"""Verdicts of judges, kept by content: the same question, gold and answer are judged once, however many runs ask.

SQLite in WAL mode, so that many processes may share one file. A cache that fails is a cache miss.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coa.errors import ScoringError

log = logging.getLogger(__name__)
_WAIT_S = 30.0


def verdict_key(*parts: str | Sequence[str]) -> str:
    return hashlib.sha256(json.dumps([p if isinstance(p, str) else list(p) for p in parts]).encode()).hexdigest()


class VerdictCache:
    """Without a path, one that lives as long as this object."""

    def __init__(self, path: str | Path | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._lock = threading.Lock()
        self._process = os.getpid()
        try:
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = self._open()
        except (sqlite3.Error, OSError) as error:
            raise ScoringError(
                f"the verdict cache {self._path} cannot be used: {error}", hint="name another file, or delete this one"
            ) from error

    def get(self, key: str) -> tuple[float, str] | None:
        rows = self._do("SELECT value, reason FROM verdicts WHERE key = ?", (key,))
        return (float(rows[0][0]), str(rows[0][1])) if rows else None

    def put(self, key: str, value: float, reason: str, judge: str) -> None:
        """The first verdict stays: all runs of one answer get the same."""
        self._do("INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?, ?)", (key, value, reason, judge))

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _do(self, statement: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                if os.getpid() != self._process:  # SQLite connections do not survive a fork
                    self._connection, self._process = self._open(), os.getpid()
                with self._connection:
                    return self._connection.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                log.warning("verdict cache %s: %s", self._path, error)
                return []

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path or ":memory:", timeout=_WAIT_S, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, value REAL, reason TEXT, judge TEXT)"
            )
            connection.commit()
        except sqlite3.Error:
            connection.close()
            raise
        return connection
