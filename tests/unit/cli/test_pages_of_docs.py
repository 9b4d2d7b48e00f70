"""The documentation agrees with the program: commands parse, and the linter of pages finds what it should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from scripts.lint_docs import broken_links, dialect, pages
from typer.testing import CliRunner

from coa.cli import app
from support.documents import ROOT, blocks, commands, overviews

PAGES = [str(page.relative_to(ROOT)) for page in pages()]


@pytest.mark.parametrize("name", PAGES)
def test_commands_parse(name: str) -> None:
    """Also those that no test runs. With --help at its end a command says which words it does not know, and does
    nothing; what is written after an option is not looked at."""
    for block in blocks(ROOT / name):
        for words in commands(block):
            own = words[: words.index("--")] if "--" in words else words  # behind it is a program of the user's
            found = CliRunner().invoke(app, [*own, "--help"])
            assert found.exit_code == 0, f"{block.place}: coa {' '.join(words)}\n{found.output}"


@pytest.mark.parametrize("name", PAGES)
def test_overviews_name_commands_and_options_that_exist(name: str) -> None:
    """What is written in capitals or in brackets there stands for something, so only names are looked up."""
    for place, words in overviews(ROOT / name):
        command: Any = typer.main.get_command(app)
        rest = iter(words)
        while inner := getattr(command, "commands", None):
            word = next(rest, "--help")
            if word.startswith("-"):
                break
            assert word in inner, f"{place}: there is no {word}"
            command = inner[word]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        given = {word.strip("[]").partition("=")[0] for word in words if word.strip("[").startswith("--")}
        assert given <= known | {"--help", "--"}, f"{place}: {given - known}"


def test_overviews_are_found() -> None:
    assert sum(len(list(overviews(page))) for page in pages()) > 15


def test_a_command_or_option_that_does_not_exist_is_found() -> None:
    for words in (["sft", "--modle", "x"], ["trian"], ["world", "bulid"]):
        assert CliRunner().invoke(app, [*words, "--help"]).exit_code != 0, words


def test_the_linter_finds_broken_links_and_the_old_dialect(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title\n[fine](#a-title) [gone](gone.md) [no such heading](page.md#other)\n\nIt is told so.\n")
    assert [line.split(": ", 1)[1] for line in broken_links(page)] == [
        "broken link gone.md",
        "broken link page.md#other",
    ]
    assert len(list(dialect(page))) == 1
    page.write_text('`told` and “told” are quoted.\n\n```\nprint("told")\n```\n')
    assert not list(dialect(page))


def test_the_linter_lets_good_english_pass(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Nobody can tell whether two files that are hard to tell apart are alike.\nWe tell you what we found.\n"
    )
    assert not list(dialect(page))
    page.write_text("The report tells of errors.\n")
    assert len(list(dialect(page))) == 1


def test_the_linter_rejects_class_names_that_say_nothing(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text("class Told:\n    pass\n\n\nclass ToldStory:\n    pass\n")
    assert [line.split(":")[1] for line in dialect(source)] == ["1"]


def test_the_linter_reads_comments_and_messages_but_no_names(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text('told = "told"\n# what it was told\nraise ValueError("nobody was told")\n')
    assert [line.split(":")[1] for line in dialect(source)] == ["2", "3"]
