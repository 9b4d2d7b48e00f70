"""The documentation site: it builds without a warning, and its hand-written lists are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import coa
from support.documents import ROOT, built_site

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory)


def test_the_site_builds_without_a_broken_link_or_an_orphan(site: Path) -> None:
    assert (site / "index.html").is_file()


def test_the_python_page_of_the_site_describes_every_public_name(site: Path) -> None:
    page = (site / "reference" / "python.html").read_text(encoding="utf-8")
    described = {name.rpartition(".")[2] for name in re.findall(r'<h[34] id="(coa\.[\w.]+)"', page)}
    assert set(coa.__all__) <= described, sorted(set(coa.__all__) - described)


def test_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    for page in ("index.html", "reference/python.html"):
        text = (site / page).read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(https?:[^\"\s>]+)", text)
        fetched += [link for link in re.findall(r"<link[^>]*>", text) if "http" in link and "canonical" not in link]
        assert not fetched, page


def test_the_python_page_names_nothing_that_is_not_public() -> None:
    page = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    named = [name.rpartition(".")[2] for name in re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE)]
    assert sorted(named) == sorted(coa.__all__)


def test_every_decision_is_listed_with_its_title() -> None:
    folder = DOCS / "decisions"
    listed = (folder / "index.md").read_text(encoding="utf-8")
    titles = {
        name: " ".join(title.split())
        for name, title in re.findall(r"- \[\d{4}\]\((\S+)\)((?:\s+\S.*)+?)(?=\n-|\n\n|\n?\Z)", listed)
    }
    for page in sorted(folder.glob("[0-9]*.md")):
        heading = page.read_text(encoding="utf-8").splitlines()[0]
        assert titles.pop(page.name, None) == re.sub(r"^# \d{4}:? ", "", heading), page.name
    assert not titles
