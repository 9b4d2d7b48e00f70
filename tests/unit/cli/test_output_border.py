"""The one border of the terminal: what it replaces, and that no command goes round it."""

from __future__ import annotations

import ast
import io
import json
import logging
import sys
from pathlib import Path

import pytest

from coa.cli import output
from coa.cli.output import echo, echo_json, echo_source, error_text, hanging, one_line, printable
from coa.cli.terminal import SafeConsole, SafeTable, SafeText, _Stderr

CLI = Path(output.__file__).parent
BORDER = {"output.py", "terminal.py"}
SCREEN = {"rich.console.Console": "SafeConsole", "rich.table.Table": "SafeTable", "rich.text.Text": "SafeText"}


def _calls(source: Path) -> list[str]:
    """What a module calls, by full name as far as its imports tell."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    called = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [".".join([known.get(first, first), *rest]) for first, *rest in (name.split(".") for name in called)]


@pytest.mark.parametrize(
    "source", sorted(set(CLI.glob("*.py")) - {CLI / name for name in BORDER}), ids=lambda at: at.name
)
def test_no_command_prints_past_the_border(source: Path) -> None:
    called = _calls(source)
    if source.name == "__init__.py":  # prints what went wrong, also where a part of coa cannot be imported
        called.remove("print")
    if source.name == "helping.py":  # lines of its own, no text of strangers
        called = [name for name in called if name != "rich.text.Text"]
    past = {"print", "typer.echo", "typer.secho", "sys.stdout.write", "sys.stderr.write", *SCREEN}
    assert not past & {*called}, f"use coa.cli.output, or {SCREEN}"


def test_the_search_for_prints_finds_them(tmp_path: Path) -> None:
    source = tmp_path / "loose.py"
    source.write_text("import typer\nfrom rich.table import Table as T\ndef f():\n    typer.echo(T())\n")
    assert _calls(source) == ["typer.echo", "rich.table.Table"]


def test_controls_and_turning_marks_are_made_visible() -> None:
    assert printable("\x1b[31m\x00\r\x7f\x9b\u202e\u200f\u2066\u2028\udc80é\n\t") == "␛[31m␀␍�������é\n\t"
    assert one_line("a\nb\tc") == "a␊b␉c"
    assert hanging("a\nb\x1b") == "a\n  b␛"


def test_neither_a_message_nor_a_hint_can_pass_for_another_line() -> None:
    said = error_text("there is no a\n  hint: rm -r .\nerror: b", "look\n  hint: c")
    lines = said.splitlines()
    assert [line for line in lines if line.startswith(("error:", "  hint:"))] == [
        "error: there is no a",
        "  hint: look",
    ]


def test_a_line_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    echo("kept in a\nkept in b\x1b")
    assert capsys.readouterr().out == "kept in a␊kept in b␛\n"


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_json_is_escaped_for_a_terminal_and_left_alone_for_a_program(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    line = json.dumps({"id": "a\x1b\x9b\u202e\x7f é"}, ensure_ascii=False)
    echo_json(line.encode())
    assert capsysbinary.readouterr().out == line.encode() + b"\n"
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    echo_json(line.encode())
    echo_json(line, nl=False)
    safe = '{"id": "a\\u001b\\u009b\\u202e\\u007f é"}'
    assert screen.getvalue() == f"{safe}\n{safe}"
    assert [json.loads(part) for part in screen.getvalue().split("\n")] == [json.loads(line)] * 2
    assert printable(screen.getvalue()) == screen.getvalue()


def test_a_source_is_saved_as_it_is_and_shown_safely(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    source = "about = '\x1b[31m\x9b'\n"
    echo_source(source, nl=False)
    assert capsysbinary.readouterr().out == source.encode()
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    echo_source(source, nl=False)
    assert screen.getvalue() == "about = '␛[31m�'\n"


def test_a_warning_cannot_pass_for_two(capsys: pytest.CaptureFixture[str]) -> None:
    handler = _Stderr()
    handler.setFormatter(logging.Formatter("warning: %(message)s"))
    handler.emit(logging.LogRecord("coa.x", logging.WARNING, "x.py", 1, "bad a\nwarning: b\x1b", None, None))
    assert capsys.readouterr().err == "warning: bad a\n  warning: b␛\n"


def _drawn(*what: object, color: bool = False) -> str:
    screen = io.StringIO()
    console = SafeConsole(file=screen, force_terminal=color, width=60, color_system="truecolor" if color else None)
    for one in what:
        console.print(one)
    return screen.getvalue()


def test_markup_links_and_hiding_styles_of_strangers_are_not_obeyed() -> None:
    assert _drawn("[red]a[/] :smile:\nb", color=True) == "[red]a[/] :smile:␊b\n"
    assert _drawn(SafeText("a", "link http://x\x1b]0;y"), SafeText("b", "conceal blink"), color=True) == "a\nb\n"
    assert _drawn(SafeText("a", "red"), color=True) == "\x1b[31ma\x1b[0m\n"


def test_a_cell_cannot_forge_a_row() -> None:
    table = SafeTable()
    table.add_column("name\nx")
    table.add_column("runs")
    table.add_row("[b]a[/]\nb", "1\x07")
    assert [line.split() for line in _drawn(table).splitlines()] == [["name␊x", "runs"], ["[b]a[/]␊b", "1␇"]]
