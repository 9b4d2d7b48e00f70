"""Texts by content hash in one SQLite file: what a model was paid to write is not asked for again."""

from __future__ import annotations

import sqlite3
from pathlib import Path


class TextCache:
    """Without a path, one that lives as long as this object."""

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
