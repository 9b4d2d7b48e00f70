"""Where a report comes from: the command, the date and the version that made it."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from coa.version import __version__

_PASSWORD: Final = re.compile(r"(?<=://)[^/@\s]*@")
_QUERY: Final = re.compile(r"(?<=\?)[^\s#]+")
_PRIVATE: Final = ("mcp", "tool", "tools")
"""Options whose values may hold a key; no other file of a run has them either."""
_PLAIN: Final = re.compile(r"[\w.-]+(=[\w.:-]+)?")
"""The name of a tool, with the name of what it is to be; neither a command nor an address."""


def origin(run: str | Path | None = None) -> list[str]:
    """What a page says of its making, each part a line: the run's folder, the command if there was one, the rest."""
    name = [f"Run: {Path(run).resolve().name}"] if run is not None else []
    typed = command(sys.argv)
    made = f"Made by coa {__version__} on {_now():%Y-%m-%d at %H:%M} UTC"
    return [*name, *([f"Command: {typed}"] if typed else []), made]


def command(argv: Sequence[str]) -> str:
    """The command line without passwords and keys; empty if this process is not the command `coa`."""
    parts = Path(argv[0]).parts if argv and argv[0] else ()
    module = parts[-1:] == ("__main__.py",) and "coa" in parts[-3:-1]
    if not module and parts[-1:] != ("coa",):
        return ""
    return shlex.join(["coa", *_without_secrets(argv[1:])])


def _without_secrets(arguments: Sequence[str]) -> Iterator[str]:
    private = False
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if private:
            yield argument if _PLAIN.fullmatch(argument) else "***"
        elif equals and re.split(r"[-.]", option)[-1] in _PRIVATE:  # --mcp=..., and run.mcp=... after --set
            yield argument if _PLAIN.fullmatch(value) else f"{option}=***"
        else:
            shown = _PASSWORD.sub("***@", argument)
            yield _QUERY.sub("***", shown) if "://" in shown else shown
        private = argument in {f"--{name}" for name in _PRIVATE}


def _now() -> datetime:
    """The time, or that of SOURCE_DATE_EPOCH, with which builds are made reproducible."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH", "")
    return datetime.fromtimestamp(int(fixed), UTC) if fixed.isdigit() else datetime.now(UTC)
