"""Consoles and the pager."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from coa.report import plural


@contextmanager
def paged(*, wanted: bool) -> Iterator[Console]:
    """A console whose output goes through the pager as it is made, where a person is looking; else plain stdout."""
    console = SafeConsole(highlight=False)
    command = shlex.split(os.environ.get("PAGER") or "less -R")
    if not (wanted and console.is_terminal and command and shutil.which(command[0])):
        yield console
        return
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, encoding="utf-8")
    assert process.stdin is not None
    try:
        yield SafeConsole(file=process.stdin, highlight=False, force_terminal=True, width=console.width)
    except BrokenPipeError:
        pass  # the person has left the pager
    finally:
        with suppress(BrokenPipeError):
            process.stdin.close()
        _wait(process)


_CONTROLS = {code: 0x2400 + code if code < 0x20 else 0xFFFD for code in (*range(0x20), *range(0x7F, 0xA0))}
_CONTROLS |= dict.fromkeys((0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)
"""Control characters, and marks that turn the direction of a text: with them a line can show what it does not say."""
del _CONTROLS[ord("\n")], _CONTROLS[ord("\t")]


def printable(text: str) -> str:
    """Text of any origin for a terminal: escape sequences in it must not reach the screen as such."""
    return text.translate(_CONTROLS)


class SafeConsole(Console):
    """A console through which no control character of a text reaches the terminal, whoever wrote the text.

    Everything that is printed becomes segments of text here. Rich puts its own escape sequences around them later, when
    it writes them, so at this point all that a text holds is the text's.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


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
        library = logging.getLogger(record.name.partition(".")[0])
        if library.handlers and library is not logging.root:
            return  # it prints its own warnings, as huggingface_hub does, and nobody wants them twice
        print(printable(self.format(record)), file=sys.stderr)


def _wait(process: subprocess.Popen[str]) -> None:
    while True:
        try:
            process.wait()
            return
        except KeyboardInterrupt:
            continue  # Ctrl-C is the pager's
