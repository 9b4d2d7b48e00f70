"""The files of the web application: nothing from elsewhere, nothing that runs in markup, nothing missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import coa.web
from coa.web.hues import HUES

FOLDER = Path(coa.web.__file__).parent
SCRIPTS = sorted((FOLDER / "static").glob("*.js"))
FILES = sorted([*(FOLDER / "static").iterdir(), *(FOLDER / "templates").iterdir()])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_file_loads_anything_from_elsewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"(src|href|url|from|import)\s*[=(]?\s*[\"']?(https?:)?//", text)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_script_makes_markup_or_code_of_text(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc", text)


@pytest.mark.parametrize("path", sorted((FOLDER / "templates").iterdir()), ids=lambda path: path.name)
def test_no_template_has_scripts_or_styles_in_its_markup(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\son\w+=|<style|\sstyle=|\|\s*safe|<script(?![^>]*src=)", text)


def test_every_script_that_is_imported_is_there() -> None:
    for path in SCRIPTS:
        for name in re.findall(r'(?:from |import\()"\./([\w.-]+)"', path.read_text(encoding="utf-8")):
            assert (path.parent / name).is_file(), f"{path.name} imports {name}"


def test_every_hue_has_its_shades() -> None:
    style = (FOLDER / "static" / "base.css").read_text(encoding="utf-8")
    assert set(re.findall(r'\[data-hue="(\w+)"\] \{ --hue', style)) == set(HUES)


def test_text_in_every_colour_is_readable_on_light_and_dark() -> None:
    """A contrast of 4.5 to 1, as WCAG 2 asks of normal text."""
    style = (FOLDER / "static" / "base.css").read_text(encoding="utf-8")
    shades = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", style)
    grounds = [(light, dark) for name, light, dark in shades if name in ("ground", "panel")]
    texts = [(light, dark) for name, light, dark in shades if name in ("ink", "soft", "good", "bad", "hue")]
    assert len(grounds) == 2 and len(texts) == 4 + 1 + len(HUES)
    for text in texts:
        for ground in grounds:
            assert _contrast(text[0], ground[0]) >= 4.5 and _contrast(text[1], ground[1]) >= 4.5, (text, ground)


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
