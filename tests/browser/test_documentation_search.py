"""The documentation site opened from its folder, without a server: its search finds pages, and phones can read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.browsing import Visitor
from support.documents import built_site

PHONE = {"viewport": {"width": 390, "height": 844}}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory)


def test_search_finds_a_page_from_a_folder(visitor: Visitor, site: Path) -> None:
    page = visitor.open((site / "index.html").as_uri(), ready=False)
    page.locator(".md-search__input").click()
    page.keyboard.type("ledger")
    page.locator("a.md-search-result__link").first.click()
    page.wait_for_url("**/concepts/ledger.html*")


@pytest.mark.parametrize("name", ["index.html", "reference/python.html", "reference/config.html", "guides/rl.html"])
def test_a_page_is_no_wider_than_a_phone(name: str, visitor: Visitor, site: Path) -> None:
    page = visitor.open((site / name).as_uri(), ready=False, **PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
