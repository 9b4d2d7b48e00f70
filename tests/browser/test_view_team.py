"""A recorded team in the viewer: the tree beside the trajectory, each side lighting up what belongs to the other."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from support.browsing import Visitor
from support.stage_folders import stage_folders
from support.viewing import asked, viewed

CORPUS = Path(__file__).parents[1] / "corpus" / "teams"


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stage_folders(tmp_path_factory.mktemp("team")) / "traces"


@contextmanager
def team_page(visitor: Visitor, traces: Path, cache: Path, **options: Any) -> Iterator[Page]:
    with viewed(visitor, traces, cache=cache) as viewer:
        (row,) = asked(viewer, "api/runs.json")["rows"]
        yield visitor.open(f"{viewer.url}/#/run/{row['id']}", **options)


def node(page: Page, text: str) -> str:
    """The number of the tree's row with this text."""
    row = page.locator(".team-node").filter(has_text=text).last
    return str(row.get_attribute("data-number"))


def test_the_tree_is_beside_the_trajectory(visitor: Visitor, traces: Path, tmp_path: Path) -> None:
    with team_page(visitor, traces, tmp_path) as page:
        tree, steps = page.locator(".team-tree"), page.locator(".run .steps")
        expect(tree).to_have_role("tree")
        expect(page.locator(".team-node[data-type=run] > .team-row .title")).to_have_text(["manager", "search_agent"])
        expect(page.locator(".run [data-step='0']")).to_contain_text("I ask.")
        left, right = tree.bounding_box(), steps.bounding_box()
        assert left is not None and right is not None
        assert left["x"] + left["width"] <= right["x"]
        assert abs(left["y"] - right["y"]) < 400


def test_pointing_at_an_event_lights_up_its_steps_and_says_why(visitor: Visitor, traces: Path, tmp_path: Path) -> None:
    with team_page(visitor, traces, tmp_path) as page:
        page.locator(".team-row").filter(has_text="I search.").last.hover()
        lit = page.locator(".run .step[data-linked]")
        expect(lit).to_have_count(2)
        expect(lit.first).to_contain_text("I search.")
        expect(page.locator(".team-bridge")).to_contain_text("search_agent · Reply → steps #1, #2")
        expect(page.locator(".team-bridge")).to_contain_text("web_search is a tool agent of the profile")
        page.locator(".team-row").filter(has_text="Hurry up.").hover()
        expect(lit).to_have_count(0)
        expect(page.locator(".team-bridge")).to_contain_text("no step: no agent wrote it: a message of the system")


def test_pointing_at_a_step_lights_up_its_events(visitor: Visitor, traces: Path, tmp_path: Path) -> None:
    with team_page(visitor, traces, tmp_path) as page:
        page.locator(".run [data-step='2']").hover()
        lit = page.locator(".team-node[data-linked]")
        expect(lit).to_have_count(2)  # the call, and the result that is shown with it
        expect(page.locator(".team-bridge")).to_contain_text(
            "Steps #2, #3 ← search_agent · Reply, search_agent · Result"
        )
        page.locator(".run [data-step='5']").hover()
        expect(page.locator(".team-bridge")).to_contain_text(
            "Step #5 ← manager · Answer or request: the answer of the team"
        )


def test_what_was_left_out_is_struck_with_its_reason(visitor: Visitor, traces: Path, tmp_path: Path) -> None:
    with team_page(visitor, traces, tmp_path) as page:
        left = page.locator(".team-node[data-left-out=yes] > .team-row").filter(has_text="it is not there")
        expect(left.locator(".team-peek")).to_have_css("text-decoration-line", "line-through")
        expect(left.locator(".team-why")).to_contain_text("the call that it answers is not in the trajectory")
        expect(left).to_contain_text("failed")


def test_keys_move_in_the_tree_and_between_the_sides(visitor: Visitor, traces: Path, tmp_path: Path) -> None:
    with team_page(visitor, traces, tmp_path) as page:
        focused = page.locator(".team-node:focus")
        page.keyboard.press("t")
        expect(focused).to_have_attribute("data-number", "0")
        for key, number in (
            ("ArrowDown", "1"), ("ArrowDown", "2"), ("ArrowUp", "1"), ("End", "10"), ("Home", "0"), ("ArrowRight", "1"),
            ("ArrowLeft", "0"),
        ):  # fmt: skip
            page.keyboard.press(key)
            expect(focused).to_have_attribute("data-number", number)
        page.keyboard.press("ArrowLeft")
        expect(focused).to_have_attribute("aria-expanded", "false")
        expect(page.locator(".team-node:visible")).to_have_count(1)
        page.keyboard.press(" ")
        expect(focused).to_have_attribute("aria-expanded", "true")
        searching = node(page, "I search.")
        while focused.get_attribute("data-number") != searching:
            page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        expect(focused).to_have_attribute("aria-expanded", "true")
        expect(focused.locator(".team-detail")).to_contain_text("web_search: arguments")
        page.keyboard.press("t")
        expect(page.locator(".step:focus")).to_have_attribute("data-step", "1")
        page.keyboard.press("t")
        expect(focused).to_have_attribute("data-number", searching)
        page.keyboard.press("Enter")
        expect(page.locator(".step:focus")).to_have_attribute("data-step", "1")
        assert "step=1" in page.url


def test_the_tree_is_one_stop_of_the_tab_key(visitor: Visitor, traces: Path, tmp_path: Path) -> None:
    with team_page(visitor, traces, tmp_path) as page:
        expect(page.locator(".team-node[tabindex='0']")).to_have_count(1)
        page.locator(".team-row").nth(3).click()
        expect(page.locator(".team-node[tabindex='0']")).to_have_count(1)
        assert page.locator(".team-row a:not([tabindex='-1']), .team-row button").count() == 0


def test_steps_in_the_tree_are_links_to_the_trajectory(visitor: Visitor, traces: Path, tmp_path: Path) -> None:
    with team_page(visitor, traces, tmp_path) as page:
        page.locator(".team-step").filter(has_text="#5").click()
        expect(page.locator(".step:focus")).to_have_attribute("data-step", "5")


def test_hand_overs_decisions_and_what_was_not_read_are_listed(visitor: Visitor, traces: Path, tmp_path: Path) -> None:
    with team_page(visitor, traces, tmp_path) as page:
        expect(page.locator(".team-member")).to_contain_text(["manager", "search_agent"])
        lists = page.locator(".team-list")
        expect(lists.locator("summary")).to_have_text(
            ["2 hand-overs, 1 failed", "1 decision of the importer", "1 part of the trace not read"]
        )
        lists.nth(0).locator("summary").click()
        expect(lists.nth(0).locator("li").first).to_contain_text("manager asked search_agent failed it is not there")
        lists.nth(0).locator("button").first.click()
        expect(page.locator(".team-node:focus")).to_have_attribute("data-number", "1")


def test_a_phone_shows_one_side_with_a_switch(visitor: Visitor, traces: Path, tmp_path: Path) -> None:
    with team_page(visitor, traces, tmp_path, viewport={"width": 390, "height": 800}) as page:
        tree, steps = page.locator(".team-tree"), page.locator(".run .steps")
        expect(tree).to_be_visible()
        expect(steps).to_be_hidden()
        page.get_by_role("button", name="Trajectory").click()
        expect(tree).to_be_hidden()
        expect(steps).to_be_visible()
        page.keyboard.press("t")
        expect(tree).to_be_visible()
        page.locator(".team-step").first.click()
        expect(steps).to_be_visible()
        for side in ("Team", "Trajectory"):
            page.get_by_role("button", name=side).click()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_page_that_is_left_listens_no_longer(visitor: Visitor, traces: Path, tmp_path: Path) -> None:
    with team_page(visitor, traces, tmp_path) as page:
        expect(page.locator(".team-tree")).to_be_visible()
        page.evaluate("location.hash = '#/runs'")
        expect(page.locator(".team-tree")).to_have_count(0)
        page.keyboard.press("t")
        page.mouse.move(300, 300)
        expect(page.locator(".team-tree")).to_have_count(0)


def test_captured_teams_of_every_framework_are_drawn(visitor: Visitor, tmp_path: Path) -> None:
    folder = tmp_path / "teams"
    for own in sorted(CORPUS.glob("*/own")):
        shutil.copytree(own, folder / own.parent.name)
    with viewed(visitor, folder, cache=tmp_path / "cache") as viewer:
        rows = [row for row in asked(viewer, "api/runs.json?limit=500")["rows"] if row["kind"] == "team"]
        assert len({row["path"] for row in rows}) >= 15
        page = visitor.open(viewer.url)
        for row in {row["path"]: row for row in rows}.values():
            page.evaluate("(id) => { delete document.body.dataset.ready; location.hash = `#/run/${id}`; }", row["id"])
            page.wait_for_selector("body[data-ready] .team-tree")
            expect(page.locator(".run .step")).not_to_have_count(0)
            title = page.locator(".team-node[data-type=run] > .team-row .title").first
            expect(title).to_have_text(re.compile(r"\w"))
