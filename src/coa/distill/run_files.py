"""Names of the files that recorded runs are in: mostly one file for each run, named after it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

ATIF: Final = ".atif.json"
"""Ending of what `coa teach --team` records."""
CALLS: Final = ".calls.jsonl"
"""Ending of what the gateway records."""
ARCHIVE: Final = ".eval"
"""Ending of a log of Inspect that is a zip archive."""
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


def run_file(folder: Path, run: str, ending: str) -> Path:
    """The file of a run: readable where its id is, and never shared by two ids."""
    name = _UNSAFE.sub("_", run)[:80]
    if name != run or name.startswith("."):
        name = f"{name.lstrip('.')}-{hashlib.sha256(run.encode('utf-8', 'replace')).hexdigest()[:10]}"
    return folder / f"{name}{ending}"
