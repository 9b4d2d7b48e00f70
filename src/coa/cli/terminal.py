"""Consoles and the pager."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console

from coa.report import plural


@contextmanager
def paged(*, wanted: bool) -> Iterator[Console]:
    """A console whose output goes through the pager as it is made, where a person is looking; else plain stdout."""
    console = Console(highlight=False)
    command = shlex.split(os.environ.get("PAGER") or "less -R")
    if not (wanted and console.is_terminal and command and shutil.which(command[0])):
        yield console
        return
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, encoding="utf-8")
    assert process.stdin is not None
    try:
        yield Console(file=process.stdin, highlight=False, force_terminal=True, width=console.width)
    except BrokenPipeError:
        pass  # the person has left the pager
    finally:
        with suppress(BrokenPipeError):
            process.stdin.close()
        _wait(process)


_CONTROLS = {code: 0x2400 + code if code < 0x20 else 0xFFFD for code in (*range(0x20), *range(0x7F, 0xA0))}
del _CONTROLS[ord("\n")], _CONTROLS[ord("\t")]


def printable(text: str) -> str:
    """Text of any origin for a terminal: escape sequences in it must not reach the screen as such."""
    return text.translate(_CONTROLS)


def folded(text: str, most: int | None, hint: str = "") -> str:
    """A text for a terminal, cut after `most` lines."""
    lines = printable(text).strip().split("\n")
    if most is not None and len(lines) > most:
        lines = [*lines[:most], f"... {plural(len(lines) - most, 'more line')}{hint}"]
    return "\n".join(lines)


def show_warnings() -> None:
    """Warnings of the library go to stderr in one line each."""
    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s", handlers=[_Stderr()])


class _Stderr(logging.Handler):
    """Whatever stderr is at that moment: a live progress line takes its place and must not be written across."""

    def emit(self, record: logging.LogRecord) -> None:
        print(printable(self.format(record)), file=sys.stderr)


def _wait(process: subprocess.Popen[str]) -> None:
    while True:
        try:
            process.wait()
            return
        except KeyboardInterrupt:
            continue  # Ctrl-C is the pager's
