"""Everything that a command prints goes through here or through `coa.cli.terminal`; no other module of `cli` writes.

Task ids, answers, file names and error messages are text of strangers. A terminal obeys the escape sequences in it, and
marks that turn the direction of a line make it show what it does not say. So such characters are replaced by visible
ones. `echo` prints one line and shows a line break in it as well, because a file name with a line break would otherwise
forge a line of the report. Data for other programs (`echo_json`, `echo_source`) go out byte for byte into a pipe or a
file; only where a terminal is at the other end is anything replaced.
"""

from __future__ import annotations

import re
import sys
from typing import Final

import typer

_TURNING: Final = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Marks that turn the direction of a text."""
_CONTROLS = {code: 0x2400 + code if code < 0x20 else 0xFFFD for code in (*range(0x20), *range(0x7F, 0xA0))}
_CONTROLS |= dict.fromkeys((*_TURNING, 0x2028, 0x2029, *range(0xD800, 0xE000)), 0xFFFD)
"""Control characters, marks that turn the direction, line separators, and halves of characters in undecodable names."""
_IN_A_LINE: Final = dict(_CONTROLS)
del _CONTROLS[ord("\n")], _CONTROLS[ord("\t")]
_NOT_IN_JSON: Final = re.compile(f"[\x7f-\x9f\u2028\u2029{''.join(map(chr, _TURNING))}]")
"""What JSON allows unescaped and a terminal may obey."""


def printable(text: str) -> str:
    """Text of any origin for a terminal: no control character and no mark that turns its direction is left in it."""
    return text.translate(_CONTROLS)


def one_line(text: str) -> str:
    """The same for text that must stay on its line."""
    return text.translate(_IN_A_LINE)


def hanging(text: str, indent: str = "  ") -> str:
    """The same for text of several lines: those after the first are indented and cannot pass for lines of our own."""
    return printable(text).replace("\n", f"\n{indent}")


def error_text(message: str, hint: str | None) -> str:
    """What is wrong and what to do about it, as every command says it. Neither can pass for the other."""
    return f"error: {hanging(message, '    ')}" + (f"\n  hint: {hanging(hint, '    ')}" if hint else "")


def visible_json(text: str) -> str:
    """JSON of the same meaning that a terminal shows as it is."""
    return _NOT_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def echo(line: str = "", *, err: bool = False) -> None:
    """Print one line."""
    typer.echo(one_line(line), err=err)


def echo_text(text: str, *, err: bool = False) -> None:
    """Print text whose line breaks are wanted."""
    typer.echo(printable(text), err=err)


def echo_json(data: str | bytes, *, nl: bool = True) -> None:
    """Print JSON. On a terminal it is escaped further, which leaves its meaning as it is."""
    if sys.stdout.isatty():
        data = visible_json(data.decode() if isinstance(data, bytes) else data)
    typer.echo(data, nl=nl)


def echo_source(text: str, *, nl: bool = True) -> None:
    """Print a text that is to be saved as it is, such as a profile in TOML."""
    typer.echo(printable(text) if sys.stdout.isatty() else text.encode(), nl=nl)
