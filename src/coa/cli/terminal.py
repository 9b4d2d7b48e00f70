"""Consoles and the pager; lines of text are in `coa.cli.output`."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from coa.cli.output import hanging, one_line, printable
from coa.report import plural


@contextmanager
def paged(*, wanted: bool) -> Iterator[Console]:
    """A console whose output goes through the pager as it is made, where a person is looking; else plain stdout."""
    console = SafeConsole()
    command = shlex.split(os.environ.get("PAGER") or "less -R")
    if not (wanted and console.is_terminal and command and shutil.which(command[0])):
        yield console
        return
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, encoding="utf-8")
    assert process.stdin is not None
    try:
        yield SafeConsole(file=process.stdin, force_terminal=True, width=console.width)
    except BrokenPipeError:
        pass  # the person has left the pager
    finally:
        with suppress(BrokenPipeError):
            process.stdin.close()
        _wait(process)


_SEEN: Final = Style(conceal=False, blink=False, blink2=False)


class SafeConsole(Console):
    """A console through which no control character of a text reaches the terminal, and no markup in it is obeyed.

    Everything that is printed becomes segments of text in `render`. Rich puts its own escape sequences around them
    later, when it writes them, so at that point all that a text holds is the text's.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False, "emoji": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(one_line(text), **options)

    def get_style(self, name: str | Style, *, default: Style | str | None = None) -> Style:
        """Without what a colour in somebody's profile must not do: `link` writes an address raw, `conceal` hides."""
        return super().get_style(name, default=default).update_link(None) + _SEEN


class SafeText(Text):
    """Text that is made visible before it is laid out: Rich drops some control characters silently, and others have no
    width. It stays on one line unless `lines` says that its line breaks are wanted."""

    def __init__(self, text: str = "", style: str | Style = "", *, lines: bool = False, **options: Any) -> None:
        self._shown = printable if lines else one_line
        super().__init__(self._shown(text), style, **options)

    def append(self, text: Text | str, style: str | Style | None = None) -> Text:
        return super().append(self._shown(text) if isinstance(text, str) else text, style)


class SafeTable(Table):
    """A table whose plain cells stay on their line: with a line break in a name, a row could be forged."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"box": None, "pad_edge": False, **options})

    def add_column(self, header: RenderableType = "", *rest: Any, **options: Any) -> None:
        super().add_column(_cell(header), *rest, **options)

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(*(None if cell is None else _cell(cell) for cell in cells), **options)


def _cell(content: RenderableType) -> RenderableType:
    return SafeText(content) if isinstance(content, str) else content


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
        print(hanging(self.format(record)), file=sys.stderr)


def _wait(process: subprocess.Popen[str]) -> None:
    while True:
        try:
            process.wait()
            return
        except KeyboardInterrupt:
            continue  # Ctrl-C is the pager's
