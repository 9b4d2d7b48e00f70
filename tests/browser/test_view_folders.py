"""Run folders in the viewer: curves, evaluations, the groups of RL, comparisons."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

from coa.trajectory import read, write
from support.browsing import Visitor
from support.stage_folders import stage_folders
from support.viewing import asked, viewed

PHONE = {"viewport": {"width": 390, "height": 800}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stage_folders(tmp_path_factory.mktemp("folders") / "runs")


class Viewed:
    """A viewer, and the pages of its folders."""

    def __init__(self, visitor: Visitor, viewer: Any) -> None:
        self.visitor, self.viewer = visitor, viewer
        self.ids = {row["path"]: row["id"] for row in asked(viewer, "api/index.json")["folders"]}

    def id(self, end: str) -> str:
        return next(uid for path, uid in self.ids.items() if path.endswith(end))

    def open(self, hash: str, **options: Any) -> Page:
        return self.visitor.open(f"{self.viewer.url}/{hash}", **options)

    def folder(self, end: str, rest: str = "", **options: Any) -> Page:
        return self.open(f"#/folder/{self.id(end)}{rest}", **options)

    def compare(self, rest: str = "", **options: Any) -> Page:
        return self.open(f"#/compare?folders={self.id('eval/base')},{self.id('eval/tuned')}{rest}", **options)

    def pages(self) -> dict[str, str]:
        rl, base, tuned = self.id("/rl"), self.id("eval/base"), self.id("eval/tuned")
        sides = [asked(self.viewer, f"api/runs.json?folder={uid}&limit=1")["rows"][0]["id"] for uid in (base, tuned)]
        return {
            "folders": "#/folders", "evaluation": f"#/folder/{base}", "RL": f"#/folder/{rl}",
            "step": f"#/folder/{rl}/step/2",
            "SFT": f"#/folder/{self.id('/sft')}", "distillation": f"#/folder/{self.id('/data')}",
            "comparison": f"#/folder/{self.id('/comparison')}", "compare": f"#/compare?folders={base},{tuned}",
            "choose": "#/compare", "two runs": f"#/compare/runs?left={sides[0]}&right={sides[1]}",
        }  # fmt: skip


@contextmanager
def viewer(visitor: Visitor, runs: Path, cache: Path) -> Iterator[Viewed]:
    with viewed(visitor, runs, cache=cache) as found:
        yield Viewed(visitor, found)


def plot(page: Page, title: str) -> Locator:
    return page.locator(".plot").filter(has=page.get_by_role("heading", name=title, exact=True))


def test_curves_are_drawn_with_a_legend_that_hides_series(visitor: Visitor, runs: Path, tmp_path: Path) -> None:
    with viewer(visitor, runs, tmp_path) as open_:
        page = open_.folder("/rl")
        loss = plot(page, "Loss")
        expect(loss.locator("path.line")).to_have_count(1)
        families = plot(page, "Success by family")
        expect(families.locator("path.line")).to_have_count(2)
        families.get_by_role("button", name="one hop").click()
        expect(families.locator("path.line")).to_have_count(1)
        expect(page.get_by_role("heading", name="odd", exact=True)).to_be_visible()  # a metric nobody knows


def test_a_curve_can_be_smoothed_and_logarithmic(visitor: Visitor, runs: Path, tmp_path: Path) -> None:
    with viewer(visitor, runs, tmp_path) as open_:
        loss = plot(open_.folder("/sft"), "Loss")
        line = loss.locator("path.line").last
        before = line.get_attribute("d")
        loss.get_by_role("button", name="log").click()
        logged = loss.locator("path.line").last.get_attribute("d")
        assert logged != before
        loss.get_by_role("button", name="smooth").click()
        expect(loss.locator("path.line")).to_have_count(2)
        assert loss.locator("path.line").last.get_attribute("d") != logged


def test_a_point_of_a_curve_leads_to_the_attempts_behind_it(visitor: Visitor, runs: Path, tmp_path: Path) -> None:
    with viewer(visitor, runs, tmp_path) as open_:
        page = open_.folder("/rl")
        area = plot(page, "Reward").get_by_role("slider")
        area.hover(position={"x": 2, "y": 40})
        expect(plot(page, "Reward").locator(".plot-tip")).to_contain_text("step 1")
        area.click(position={"x": 2, "y": 40})
        expect(page).to_have_url(re.compile(r"/step/1$"))
        expect(page.get_by_role("heading", level=1)).to_contain_text("Step 1")


def test_a_curve_is_read_and_followed_with_the_keys(visitor: Visitor, runs: Path, tmp_path: Path) -> None:
    with viewer(visitor, runs, tmp_path) as open_:
        page = open_.folder("/rl")
        area = plot(page, "Reward").get_by_role("slider")
        area.focus()
        page.keyboard.press("ArrowRight")
        expect(area).to_have_attribute("aria-valuetext", "step 12: mean reward 1")
        page.keyboard.press("ArrowLeft")
        expect(area).to_have_attribute("aria-valuetext", "step 11: mean reward 0.917")
        page.keyboard.press("Enter")  # step 11 has no groups
        assert "/step/" not in page.url
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        expect(area).to_have_attribute("aria-valuetext", "step 2: mean reward 0.167")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(r"/step/2$"))


def test_the_values_of_a_curve_are_in_a_table(visitor: Visitor, runs: Path, tmp_path: Path) -> None:
    with viewer(visitor, runs, tmp_path) as open_:
        page = open_.folder("/rl")
        reward = plot(page, "Reward")
        reward.get_by_text("Values").click()
        rows = reward.locator("tbody tr")
        expect(rows).to_have_count(12)
        expect(rows.first).to_have_text("121")  # step 12: 1
        expect(rows.locator("a")).to_have_text(["2", "1"])


def test_bars_of_an_evaluation_lead_to_their_runs(visitor: Visitor, runs: Path, tmp_path: Path) -> None:
    with viewer(visitor, runs, tmp_path) as open_:
        page = open_.folder("eval/base")
        expect(page.locator(".tiles")).to_contain_text("pass@1")
        causes = page.locator(".bars").filter(has_text="by cause")
        expect(causes.locator("li")).to_have_count(2)
        causes.get_by_role("link", name="wrong answer").click()
        expect(page).to_have_url(re.compile(r"#/runs\?folder=\w+&outcome=wrong"))


def test_a_distillation_is_a_funnel(visitor: Visitor, runs: Path, tmp_path: Path) -> None:
    with viewer(visitor, runs, tmp_path) as open_:
        page = open_.folder("/data")
        stages = page.locator(".funnel li")
        expect(stages).to_have_count(4)
        expect(stages.last).to_contain_text("7 (−1)")
        fills = [box["width"] for box in map(Locator.bounding_box, stages.locator(".fill").all()) if box]
        assert fills == sorted(fills, reverse=True)


def test_attempts_of_a_group_are_side_by_side(visitor: Visitor, runs: Path, tmp_path: Path) -> None:
    with viewer(visitor, runs, tmp_path) as open_:
        page = open_.folder("/rl", "/step/1")
        group = page.locator(".group").first
        expect(group.locator(".attempt")).to_have_count(4)
        boxes = [box for box in map(Locator.bounding_box, group.locator(".attempt").all()) if box]
        assert len({box["y"] for box in boxes}) == 1
        expect(group.locator(".advantage strong")).to_have_text(["−0.5", "+0.5", "−0.5", "+0.5"])
        expect(group.locator(".attempt").first).to_contain_text("wrong")
        expect(group.locator(".attempt").first.locator(".ribbon span")).to_have_count(12)
        page.get_by_role("button", name="All right").click()
        expect(page.locator(".groups")).to_have_text("No group is like this.")


def test_keys_move_between_groups_attempts_and_steps(visitor: Visitor, runs: Path, tmp_path: Path) -> None:
    with viewer(visitor, runs, tmp_path) as open_:
        page = open_.folder("/rl", "/step/1")

        def focused() -> str | None:
            found: str | None = page.evaluate("document.activeElement.getAttribute('aria-label')")
            return found

        for keys, wanted in (
            ("j", "Group 0"), ("j", "Group 1"), ("k", "Group 0"), ("ArrowDown", "Group 1"), ("ArrowUp", "Group 0"),
            ("l", "Attempt 1"), ("l", "Attempt 2"), ("ArrowRight", "Attempt 3"), ("h", "Attempt 2"),
        ):  # fmt: skip
            page.keyboard.press(keys)
            assert (focused() or "").startswith(wanted), keys
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(r"#/run/\w+"))
        expect(page.locator(".facts-list")).to_contain_text(["Group0"])
        page.keyboard.press("u")
        page.wait_for_selector("body[data-ready] .group")
        expect(page.locator(".attempt:focus")).to_have_attribute("aria-label", re.compile("Attempt 2"))
        expect(page.locator(".crumbs a")).to_have_text(
            ["Folders", next(path for path in open_.ids if path.endswith("/rl"))]
        )
        page.keyboard.press("n")
        expect(page.get_by_role("heading", level=1)).to_contain_text("Step 2")
        page.wait_for_selector("body[data-ready]")
        page.keyboard.press("p")
        expect(page.get_by_role("heading", level=1)).to_contain_text("Step 1")


def test_folders_are_chosen_and_compared(visitor: Visitor, runs: Path, tmp_path: Path) -> None:
    with viewer(visitor, runs, tmp_path) as open_:
        page = open_.open("#/folders")
        for name in ("base", "tuned"):
            page.get_by_role("checkbox", name=re.compile(f"{name} to compare")).check()
        page.get_by_role("link", name="Compare 2 folders").click()
        expect(page.get_by_role("heading", name="Compare")).to_be_visible()
        expect(page.locator(".quarters a")).to_have_text(["2 Both right", "2 Only B right", "2 Neither right"])
        expect(page.locator(".task")).to_have_count(6)
        page.get_by_role("button", name="Disagree").click()
        expect(page.locator(".task")).to_have_count(2)
        expect(page.locator(".task").first).to_contain_text("Who wrote book 2?")


def test_a_third_folder_can_be_added_and_left_out(visitor: Visitor, runs: Path, tmp_path: Path) -> None:
    with viewer(visitor, runs, tmp_path) as open_:
        page = open_.compare()
        page.get_by_label("Add a folder").select_option(open_.id("/data"))
        expect(page.locator(".chosen")).to_have_count(3)
        expect(page.locator(".kinds")).to_contain_text("Only B, C right")
        page.wait_for_selector("body[data-ready]")
        page.get_by_role("button", name=re.compile("Leave out .*data")).click()
        expect(page.locator(".chosen")).to_have_count(2)


def test_two_runs_are_marked_where_they_part(visitor: Visitor, runs: Path, tmp_path: Path) -> None:
    with viewer(visitor, runs, tmp_path) as open_:
        page = open_.compare("&only=disagree")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(r"#/compare/runs\?"))
        left, right = (page.get_by_label(f"{side} run", exact=True) for side in ("Left", "Right"))
        expect(page.locator(".difference-words")).to_contain_text("The runs part at step 9: suggested answer wrote")
        expect(left.locator(".parting mark")).to_have_text("Nobody")
        expect(right.locator(".parting mark")).to_have_text("Ada")
        for side, word in ((left, "Nobody"), (right, "Ada")):
            expect(side.locator(".step[data-parting]")).to_have_count(1)
            expect(side.locator(".step[data-parting] .step-link")).to_have_text("#9")
            expect(side.locator(".step[data-parting] .step-body mark")).to_have_text(word)
        first, second = left.bounding_box(), right.bounding_box()
        assert first and second and first["y"] == second["y"] and first["x"] < second["x"]
        page.evaluate("scrollTo(0, 0)")
        page.keyboard.press("d")
        expect(left.locator(".parting")).to_be_in_viewport()
        page.keyboard.press("s")
        expect(left.locator(".parting mark")).to_have_text("Ada")


def test_the_first_difference_of_two_runs(visitor: Visitor, runs: Path, tmp_path: Path) -> None:
    cases: list[tuple[list[list[str]], list[list[str]], object]] = [
        ([["a", "x y"]], [["a", "x y"]], None),
        ([["a", "read the firm page"]], [["a", "read the first page"]], [0, "text", "firm", "first"]),
        ([["a", "x"], ["b", "go"]], [["a", "x"], ["c", "go"]], [1, "agent", "go", "go"]),
        ([["a", "x"]], [["a", "x"], ["b", "more words"]], [1, "end", None, "more"]),
        ([["a", "one two"]], [["a", "one two three"]], [0, "text", "", "three"]),
        ([["a", "one"]], [["a", "oneself"]], [0, "text", "one", "oneself"]),
        ([], [], None),
    ]
    with viewer(visitor, runs, tmp_path) as open_:
        page = open_.open("#/folders")
        for left, right, wanted in cases:
            found = page.evaluate(
                """async ([left, right]) => {
                    const { firstDifference } = await import("./static/difference.js");
                    const steps = (list) => list.map(([agent, text], item) => ({ item, agent, text, result: false }));
                    const found = firstDifference(steps(left), steps(right));
                    const word = (side) => side && side.word;
                    return found && [found.at, found.why, word(found.left), word(found.right)];
                }""",
                [left, right],
            )
            assert found == wanted


def test_curves_grow_while_a_run_goes_on_and_choices_stay(visitor: Visitor, tmp_path: Path) -> None:
    runs = stage_folders(tmp_path / "runs")
    with viewer(visitor, runs, tmp_path / "cache") as open_:
        page = open_.folder("/rl")
        reward = plot(page, "Reward")
        reward.get_by_role("button", name="smooth").click()
        page.locator(".fold-box summary").last.click()
        page.evaluate("scrollTo(0, 300)")
        metrics = runs / "rl" / "metrics.jsonl"
        whole = metrics.read_text().rpartition("\n")[0]
        metrics.write_text(f"{whole}\n" + json.dumps({"step": 13, "reward": 2.0, "loss": 0.1}) + "\n")
        group = read(runs / "rl" / "groups" / "step-0001.jsonl")
        write(runs / "rl" / "groups" / "step-0003.jsonl", group)
        expect(page.get_by_role("link", name="Groups of step 3")).to_be_visible()
        expect(reward.get_by_role("slider")).to_have_attribute("aria-valuetext", "step 13: mean reward 2")
        expect(reward.get_by_role("button", name="smooth")).to_have_attribute("aria-pressed", "true")
        expect(page.locator(".fold-box").last).to_have_attribute("open", "")
        assert page.evaluate("scrollY") == 300


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_pages_of_folders_are_accessible(visitor: Visitor, runs: Path, tmp_path: Path, scheme: str) -> None:
    violations = {}
    with viewer(visitor, runs, tmp_path) as open_:
        for name, address in open_.pages().items():
            page = open_.open(address, color_scheme=scheme, reduced_motion="reduce")
            page.evaluate("document.querySelectorAll('details').forEach((fold) => (fold.open = true))")
            found = Axe().run(page)
            if broken := found.response["violations"]:
                violations[name] = [(rule["id"], node["html"][:200]) for rule in broken for node in rule["nodes"]]
    assert violations == {}


def test_pages_of_folders_fit_a_phone(visitor: Visitor, runs: Path, tmp_path: Path) -> None:
    with viewer(visitor, runs, tmp_path) as open_:
        for name, address in open_.pages().items():
            page = open_.open(address, **PHONE)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        page = open_.folder("/rl", "/step/1", **PHONE)
        row = page.locator(".attempts").first
        assert row.evaluate("(row) => row.scrollWidth > row.clientWidth")  # its attempts scroll sideways
