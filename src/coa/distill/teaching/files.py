"""One ATIF file for each task, named after it, written whole or not at all."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, Final

import orjson

from coa.distill.atif_writer import EXTRA, to_atif
from coa.distill.team_run import TeamRun
from coa.folder import write_atomic

ENDING: Final = ".atif.json"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


def trace_path(folder: Path, task_id: str) -> Path:
    """Readable where the id is; two ids never share a file."""
    name = _UNSAFE.sub("_", task_id)[:80]
    if name != task_id or name.startswith("."):
        name = f"{name.lstrip('.')}-{hashlib.sha256(task_id.encode()).hexdigest()[:10]}"
    return folder / f"{name}{ENDING}"


def write_trace(path: Path, run: TeamRun) -> None:
    write_atomic(path, orjson.dumps(to_atif(run), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def stop_of(path: Path) -> str | None:
    """How the run in a file ended; None where there is no such file, or it is not ours."""
    try:
        document: Any = orjson.loads(path.read_bytes())
        return str(document["extra"][EXTRA]["team"]["stop"])
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return None
