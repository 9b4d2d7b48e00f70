"""A folder full of what strangers could have written: nothing of it runs, and nothing of it breaks the layout."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from coa.trajectory import Profile, load_profile, write
from coa.trajectory.profile import shipped_toml
from support.browsing import Visitor
from support.builders import make_trajectory
from support.stage_folders import stage_folders
from support.viewing import asked, viewed, views

SCRIPTS = (
    """<script>window.hurt=1</script><img src=x onerror="window.hurt=2"><svg/onload=window.hurt=3>"""
    """<iframe srcdoc="<script>parent.hurt=4</script>"></iframe>"'><a href=javascript:window.hurt=5>x</a> """
    """javascript:window.hurt=6 data:text/html,<script>window.hurt=7</script> {{7*7}} ${window.hurt=8} """
    """</title></style></textarea>--><!--"""
)
TERMINAL = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J \x08\x08\x08 \r\x00"
TURNED = (
    "\u202egnp.exe\u202c \u2066\u2067\u200f\u200e\u061c \u200b\ufeff\u2028\u2029 e\u0301\u0301\u0301" + "\u0316" * 30
)
LONG = "W" * 3_000 + "/" + "-" * 500
HOSTILE = {"long": LONG, "all": f"{SCRIPTS} {TERMINAL} {TURNED} {LONG}"}
NAME = """<img src=x onerror=window.hurt=9>"' &lt;b&gt;\x1b[31m\u202egnp %2e%2e ?#&"""
WIDTHS = (1200, 390)
FORBIDDEN = ", ".join(f"main {tag}" for tag in ("img", "script", "iframe", "object", "embed", "style", "base"))
HANDLERS = "[onerror], [onload], [onclick], [srcdoc]"


def profile_of(tmp_path: Path) -> Profile:
    """The agents of every profile, with titles and colours of a stranger."""
    text = shipped_toml("all")
    file = tmp_path / "evil.toml"
    evil = SCRIPTS.replace("'", "").replace("\\", "")
    text = text.replace('title = "Plan"', f"title = '{evil}'").replace('title = "Search"', f"title = '''{evil}'''")
    file.write_text(text, encoding="utf-8")
    return load_profile(str(file))


def visit(page: Page, address: str) -> None:
    page.evaluate(
        "(hash) => { if (location.hash === hash) return; delete document.body.dataset.ready; location.hash = hash; }",
        address,
    )
    page.wait_for_selector("body[data-ready]")


def harm(page: Page, place: str) -> list[str]:
    """What ran, what became markup, and whether the page is wider than the window."""
    page.wait_for_timeout(50)
    found = []
    if (hurt := page.evaluate("window.hurt")) is not None:
        found.append(f"{place}: script {hurt} ran")
    if made := page.locator(f"{FORBIDDEN}, {HANDLERS}").count():
        found.append(f"{place}: {made} elements out of texts")
    protocols = page.eval_on_selector_all("a[href]", "all => [...new Set(all.map((one) => one.protocol))]")
    if not set(protocols) <= {"http:", "https:"}:
        found.append(f"{place}: links to {protocols}")
    width, room = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    if width > room:
        found.append(f"{place}: {width} px in a window of {room} px: {widest(page)}")
    return found


def widest(page: Page) -> object:
    """The innermost elements that make the page wider: those that no element around them cuts off."""
    return page.evaluate(
        """() => {
          const cut = (one) => one && (getComputedStyle(one).overflowX !== "visible" || cut(one.parentElement));
          const wide = [...document.querySelectorAll("main *, header *")]
            .filter((one) => one.getBoundingClientRect().right > innerWidth + 1 && !cut(one.parentElement));
          return wide.filter((one) => !wide.some((other) => other !== one && one.contains(other)))
            .slice(0, 4).map((one) => `${one.parentElement.className} > ${one.tagName}.${one.className}`);
        }"""
    )


@pytest.mark.parametrize(
    "kind", ["all", *(pytest.param(one, marks=pytest.mark.slow) for one in HOSTILE if one != "all")]
)
def test_no_view_runs_or_is_broken_by_what_strangers_wrote(visitor: Visitor, tmp_path: Path, kind: str) -> None:
    root = stage_folders(tmp_path / "runs", HOSTILE[kind], profile=profile_of(tmp_path))
    with viewed(visitor, root, cache=tmp_path / "cache") as viewer:
        addresses = views(viewer)
        assert {"mask", "compare", "compare runs", "step of RL", "run team unscored"} <= set(addresses)
        found: list[str] = []
        for width in WIDTHS:
            page = visitor.open(viewer.url, viewport={"width": width, "height": 900}, reduced_motion="reduce")
            for name, address in addresses.items():
                visit(page, address)
                expect(page.locator(".view-page > *").first).to_be_attached()
                found += harm(page, f"{name} at {width}")
                if name.startswith("run "):
                    page.keyboard.press("o")
                    page.keyboard.press("r")
                    found += harm(page, f"{name}, opened, at {width}")
                for summary in page.locator("main summary:visible").all()[:12]:
                    summary.evaluate("(one) => { one.parentElement.open = true; }")
                found += harm(page, f"{name}, unfolded, at {width}")
        assert not found, "\n".join(found)


def test_names_of_files_and_folders_are_only_names(visitor: Visitor, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    write(root / NAME / "trajectories.jsonl", [make_trajectory(("answer", "Ada"))])
    write(root / ("n" * 200) / f"{'m' * 200}.jsonl", [make_trajectory(("answer", "Ada"))])
    (root / NAME / "torn\n<script>window.hurt=1</script>.jsonl".replace("/", "")).write_text('{"torn')
    (root / NAME / "config.json").write_text(json.dumps({"stage": "<script>window.hurt=1</script>"}))
    odd = os.fsdecode(os.fsencode(str(root)) + b"/\xff\xfe<b>")
    write(Path(odd) / "trajectories.jsonl", [make_trajectory(("answer", "Ada"))])
    with viewed(visitor, root, cache=tmp_path / "cache") as viewer:
        for width in WIDTHS:
            page = visitor.open(viewer.url, viewport={"width": width, "height": 900})
            for name, address in views(viewer).items():
                visit(page, address)
                assert harm(page, f"{name} at {width}") == []
        visit(page, "#/folders")
        expect(page.locator("main")).to_contain_text("<img src=x onerror=window.hurt=9>")


def test_a_single_line_of_ten_megabytes_is_shown_folded(visitor: Visitor, tmp_path: Path) -> None:
    text = SCRIPTS + "x" * 10_000_000
    run = make_trajectory(
        ("think", text), ("web_search", "x" * 10_000), ("observation", text), ("answer", "Ada"), question=text
    )
    write(tmp_path / "runs" / "trajectories.jsonl", [run])
    with viewed(visitor, tmp_path / "runs", cache=tmp_path / "cache") as viewer:
        (row,) = asked(viewer, "api/runs.json")["rows"]
        for width in WIDTHS:
            page = visitor.open(viewer.url, viewport={"width": width, "height": 900})
            assert harm(page, "list") == []
            visit(page, f"#/run/{row['id']}")
            expect(page.locator(".step")).to_have_count(3)
            assert harm(page, "run") == []
            assert len(page.locator("main").inner_text()) < 200_000
            page.keyboard.press("o")
            assert harm(page, "run, opened") == []


@pytest.mark.parametrize(
    "address",
    [
        "#/run/<script>window.hurt=1</script>", "#/run/%3Cimg%20src=x%20onerror=window.hurt=1%3E", "#/run/__proto__",
        "#/folder/../../etc/passwd", "#/%E0%A4%A", "#/compare?folders=<svg onload=window.hurt=1>", "#/runs?sort=<b>",
        "#/constructor", "#/folder/x/step/<b>", "#javascript:window.hurt=1", "#/compare/runs?left=<b>&right=<b>",
        "#/findings?scanner=<img src=x>",
    ],
)  # fmt: skip
def test_addresses_cannot_carry_markup(visitor: Visitor, tmp_path: Path, address: str) -> None:
    write(tmp_path / "runs" / "trajectories.jsonl", [make_trajectory(("answer", "Ada"))])
    visitor.expected = ("status of 404", "status of 400")
    with viewed(visitor, tmp_path / "runs", cache=tmp_path / "cache") as viewer:
        page = visitor.open(viewer.url)
        visit(page, address)
        assert harm(page, address) == []
