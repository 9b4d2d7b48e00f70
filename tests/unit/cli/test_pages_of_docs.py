"""The documentation agrees with the program: commands parse, links lead somewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from coa.cli import app
from support.documents import ROOT, anchors, blocks, commands, links, overviews, pages

PAGES = [str(page.relative_to(ROOT)) for page in pages()]


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    broken = [link for link in links(page) if not _leads_somewhere(page, link)]
    assert not broken


def _leads_somewhere(page: Path, link: str) -> bool:
    if "://" in link or link.startswith("mailto:"):
        return True
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or target.suffix != ".md" or anchor in anchors(target))


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
    assert len(list(overviews(ROOT / "README.md"))) > 15


def test_a_command_or_option_that_does_not_exist_is_found() -> None:
    for words in (["sft", "--modle", "x"], ["trian"], ["world", "bulid"]):
        assert CliRunner().invoke(app, [*words, "--help"]).exit_code != 0, words


def test_every_page_is_in_the_index() -> None:
    listed = {(ROOT / "docs" / link.partition("#")[0]).resolve() for link in links(ROOT / "docs" / "index.md")}
    own = {page for page in pages() if page.is_relative_to(ROOT / "docs")} - {ROOT / "docs" / "index.md"}
    decisions = {page for page in own if page.parent.name == "decisions"}
    assert not sorted(str(page.relative_to(ROOT)) for page in own - decisions - listed)
