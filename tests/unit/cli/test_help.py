"""Help that a person can read: examples that parse, types in words, what is required, and `--json` for results."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from coa.cli import app
from coa.cli.helping import EXAMPLES

run = CliRunner().invoke


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(words), command
        return
    for name, each in inner.items():
        yield from _commands(each, (*words, name))


COMMANDS = dict(_commands(typer.main.get_command(app)))


def _help(name: str, option: str = "--help") -> str:
    done = run(app, [*name.split(), option], env={"COLUMNS": "140", "TERMINAL_WIDTH": "140"})
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_examples_that_parse(name: str) -> None:
    assert EXAMPLES[name], "an example for each command"
    shown = _help(name)
    for example in EXAMPLES[name]:
        assert example in shown[shown.rindex("Examples") :]
        words = shlex.split(example)
        assert words[: len(name.split()) + 1] == ["coa", *name.split()]
        COMMANDS[name].make_context(name, words[len(name.split()) + 1 :])  # raises if it does not parse


def test_there_are_no_examples_of_commands_that_do_not_exist() -> None:
    assert set(EXAMPLES) - {""} == set(COMMANDS)


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_types_in_help_are_words(name: str) -> None:
    assert not re.findall(r"<\S+>|list\[\w+\]|(?:int|float) range", _help(name))


@pytest.mark.parametrize(
    ("name", "option"),
    [("eval", "--out"), ("sft", "--out"), ("rl", "--out"), ("sample", "--out"), ("distill", "--out"),
     ("teach", "--out"), ("record", "--out"), ("record", "--upstream"),
     ("score", "--scorer"), ("export", "--to"), ("world build", "--out"), ("index build", "--out")],
)  # fmt: skip
def test_what_a_command_cannot_do_without_is_marked(name: str, option: str) -> None:
    parameter = next(each for each in COMMANDS[name].params if option in each.opts)
    assert parameter.required or parameter.help.startswith("Required: ")


SERVERS_AND_TOURS = {"mcp", "record", "sandbox serve", "serve", "view", "world serve", "demo", "setup"}


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - SERVERS_AND_TOURS))
def test_every_command_with_results_prints_them_as_json_too(name: str) -> None:
    (option,) = (each for each in COMMANDS[name].params if "--json" in each.opts)
    assert re.fullmatch(r"Print .+\.", option.help), "a whole sentence"


def test_a_short_h_asks_for_help_everywhere() -> None:
    for name in ("", "run", "world", "world build"):
        assert _help(name, "-h") == _help(name)


def test_the_shell_completes_commands_and_options() -> None:
    def completed(*words: str) -> list[str]:
        environment = {
            "_COA_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
        }
        command = [sys.executable, "-m", "coa"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | environment)
        assert done.returncode == 0 and not done.stderr, done.stderr
        return done.stdout.split()

    assert completed("coa", "ex") == ["export"]
    assert completed("coa", "export", "--to", "mes") == ["messages"]
    assert "--install-completion" in _help("")
