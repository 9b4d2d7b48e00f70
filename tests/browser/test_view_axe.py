"""Accessibility of every view of the viewer, checked with axe: light and dark, on a desktop and on a phone.

axe is a script, and the policy of the page lets no foreign script in, so the contexts of these tests switch it off.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

from support.browsing import Visitor
from support.stage_folders import stage_folders
from support.viewing import viewed, views

GRAVE = ("serious", "critical")
OPENED = ("o", "r")
"""Keys that unfold all steps and show the raw record."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stage_folders(tmp_path_factory.mktemp("every") / "stage")


def faults(page: Page) -> list[str]:
    """What axe finds, with the places."""
    options = {"resultTypes": ["violations"]}
    found: dict[str, Any] = page.evaluate("(options) => axe.run(document, options)", options)
    return [
        f"{one['impact']} {one['id']}: {one['help']}: {node['target']} {node['html'][:160]} {node['failureSummary']}"
        for one in found["violations"]
        if one["impact"] in GRAVE
        for node in one["nodes"][:3]
    ]


@pytest.mark.parametrize(
    ("theme", "width"),
    [
        pytest.param("light", 1200, id="light-desktop"),
        pytest.param("dark", 390, id="dark-phone", marks=pytest.mark.slow),
        pytest.param("dark", 1200, id="dark-desktop", marks=pytest.mark.slow),
        pytest.param("light", 390, id="light-phone", marks=pytest.mark.slow),
    ],
)
def test_no_view_has_grave_faults(visitor: Visitor, root: Path, tmp_path: Path, theme: str, width: int) -> None:
    with viewed(visitor, root, cache=tmp_path) as viewer:
        page = visitor.open(
            viewer.url, bypass_csp=True, color_scheme=theme, viewport={"width": width, "height": 900},
            reduced_motion="reduce",
        )  # fmt: skip
        page.evaluate(AXE_SCRIPT)
        found: dict[str, list[str]] = {}
        for name, address in views(viewer).items():
            page.evaluate("(hash) => { delete document.body.dataset.ready; location.hash = hash; }", address)
            if name != "list":
                page.wait_for_selector("body[data-ready]")
            found[name] = faults(page)
            if name.startswith("run "):
                for key in OPENED:
                    page.keyboard.press(key)
                page.wait_for_timeout(200)
                found[f"{name}, opened"] = faults(page)
        grave = [f"{name}: {fault}" for name, faults_there in found.items() for fault in faults_there]
        assert not grave, "\n".join(grave)


def test_the_list_of_shortcuts_has_no_grave_faults(visitor: Visitor, root: Path, tmp_path: Path) -> None:
    with viewed(visitor, root, cache=tmp_path) as viewer:
        page = visitor.open(viewer.url, bypass_csp=True)
        page.evaluate(AXE_SCRIPT)
        page.keyboard.press("?")
        page.wait_for_selector("dialog[open]")
        assert faults(page) == []
