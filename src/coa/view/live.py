"""Runs that are going on in other processes: rows on top of the list, and pages that grow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from coa.view.queries import Row
from coa.view.records import RecordView


class LiveRuns:
    """The running chains of the folders that the viewer shows."""

    def look(self, folders: Mapping[str, Path]) -> int:
        """A number that changes whenever a running chain went on."""
        return 0

    def folders(self) -> set[str]:
        return set()

    def rows(self, query: Mapping[str, str]) -> list[Row]:
        return []

    def record(self, uid: str) -> RecordView | None:
        return None
