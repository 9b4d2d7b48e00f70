"""The recording of a terminal as a picture: what is on it, when, and that it is safe to show anywhere."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from scripts.recording import PICTURE, Frame, drawn, record, spans

from support.documents import ROOT

SVG = "{http://www.w3.org/2000/svg}"


def _lines(picture: str, *, still: bool) -> list[str]:
    """The texts of a picture from top to bottom; `still`: those that are visible where nothing moves."""
    texts = ElementTree.fromstring(picture).findall(f"{SVG}text")
    return ["".join(one.itertext()) for one in texts if not (still and "past" in one.get("class", ""))]


def test_a_line_is_shown_for_as_long_as_it_was_on_the_screen() -> None:
    frames = [Frame(0.0, ("$ a",)), Frame(1.0, ("$ a", "wait")), Frame(2.5, ("$ a", "done"))]
    found = [(one.row, one.line, one.from_s, one.until_s) for one in spans(frames)]
    assert found == [(0, "$ a", 0.0, None), (1, "wait", 1.0, 2.5), (1, "done", 2.5, None)]


def test_where_nothing_moves_the_picture_is_the_last_screen() -> None:
    frames = [Frame(0.0, ("$ a",)), Frame(1.0, ("$ a", "wait")), Frame(2.5, ("$ a", "", "done"))]
    picture = drawn(frames, "a")
    assert _lines(picture, still=True) == ["$ a", "done"]
    assert _lines(picture, still=False) == ["$ a", "wait", "done"]
    # 3 seconds of the last screen, 2.5 recorded, 6 to look at it: `done` is visible first and from 5.5 s of 11.5 s on.
    assert "0.00% { opacity: 1 } 26.09% { opacity: 0 } 47.83% { opacity: 1 } 100.00% { opacity: 1 }" in picture


def test_colours_and_columns_are_those_of_the_terminal() -> None:
    picture = drawn([Frame(0.0, ("\x1b[1m\x1b[33mplan", "go on\x1b[0m  plain"))], "a")
    first, second, third = ElementTree.fromstring(picture).iter(f"{SVG}tspan")
    assert first.get("font-weight") == second.get("font-weight") == "600"  # tmux lets a style go on in the next line
    assert first.get("fill") == second.get("fill") == "#f0c460" and third.get("fill") is None
    assert float(third.get("x", 0)) - float(second.get("x", 0)) == 7 * 8


def test_text_on_the_screen_is_no_markup() -> None:
    picture = drawn([Frame(0.0, ("<script>a & b</script>",))], "<b>")
    assert _lines(picture, still=True) == ["<script>a & b</script>"]
    assert ElementTree.fromstring(picture).find(f".//{SVG}script") is None


@pytest.mark.skipif(not shutil.which("tmux"), reason="sudo apt-get install tmux")
def test_a_real_terminal_is_followed_until_its_prompt_is_back(tmp_path: Path) -> None:
    frames = record("printf 'one\\n'; sleep 0.5; printf '\\033[32mtwo\\033[0m\\n'", tmp_path, {"PATH": "/usr/bin:/bin"})
    assert frames[0].at_s == 0 and frames[0].lines[0].startswith("$ printf")
    assert _lines(drawn(frames, "a"), still=True)[1:] == ["one", "two", "$"]


def test_the_picture_of_the_readme_loads_and_runs_nothing() -> None:
    picture = PICTURE.read_text(encoding="utf-8")
    assert not re.search(r"<script|@import|url\(|href|\son\w+=", picture)
    assert picture.count("http") == 1  # the name space
    assert str(PICTURE.relative_to(ROOT)) in (ROOT / "README.md").read_text(encoding="utf-8")
