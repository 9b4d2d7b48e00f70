"""The scanners' pass over the indexed runs, in the background, a few runs at a time."""

from __future__ import annotations

from coa.view.index import IndexWriter


def scan_some(writer: IndexWriter) -> bool:
    """Whether there was anything to scan."""
    return False
