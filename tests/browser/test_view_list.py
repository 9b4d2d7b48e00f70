"""The list of runs in the viewer: sorting, filters, search, pages, keys; what is shown is in the address."""

from __future__ import annotations

import functools
import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode

import pytest
from playwright.sync_api import expect

from coa.trajectory import Score, Step, Task, Trajectory, Usage, load_profile, observation, write
from coa.trajectory.types import Repair, RepairKind
from coa.view import open_viewer, write_bundle
from support.browsing import Visitor
from support.stage_folders import stage_folders
from support.viewing import asked, viewed

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from coa.view import Viewer

WEB = load_profile("web")
COUNT = 230


def run(number: int) -> Trajectory:
    """Every third is wrong, every fifth has a failed call, every seventh was repaired."""
    repairs = (Repair(kind=RepairKind.LOOSE_TAG),) if number % 7 == 0 else ()
    return Trajectory(
        task=Task(
            id=f"task-{number:03}",
            question=f"Which tower has number {number}?",
            answer=f"T{number}",
            meta={"family": f"family-{number % 4}"},
        ),
        profile="web",
        profile_hash=WEB.hash,
        steps=(
            Step(agent="plan", text=f"Look for the zebra{number}.", repairs=repairs),
            Step(agent="web_search", text="tower"),
            observation(f"The giraffe{number} is tall.", meta={"ok": number % 5 != 0}),
            *([Step(agent="reflection", text="hm")] if number % 10 == 0 else []),
            Step(agent="answer", text=f"T{number}" if number % 3 else "nobody knows"),
        ),
        scores={"auto": Score(value=float(number % 3 != 0))},
        usage=Usage(prompt_tokens=100 * number, completion_tokens=number, seconds=float(number), tool_calls=1),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("towers")
    write(root / "many" / "trajectories.jsonl", [run(number) for number in range(COUNT)])
    write(root / "few" / "trajectories.jsonl", [run(3)])
    return root


@pytest.fixture(scope="module")
def viewer(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    nobody = Visitor(browser=None)  # type: ignore[arg-type]
    with viewed(nobody, folder, cache=tmp_path_factory.mktemp("cache")) as found:
        yield found


def rows(page: Page) -> Locator:
    return page.locator(".runs tbody")


def status(page: Page, words: str) -> None:
    expect(page.locator(".list-status")).to_have_text(words)


def query(page: Page) -> dict[str, str]:
    """The parameters in the address."""
    found = parse_qs(page.url.partition("?")[2])
    return {name: values[0] for name, values in found.items()}


def test_every_run_is_listed_with_its_outcome_and_numbers(visitor: Visitor, viewer: Viewer) -> None:
    page = visitor.open(f"{viewer.url}/#/runs?task=task-003&sort=tokens")
    status(page, "2 runs of 231")
    first = rows(page).first
    expect(first.locator(".outcome-badge")).to_have_text("wrong")
    expect(first).to_contain_text("Which tower has number 3?")
    expect(first).to_contain_text("nobody knows expected T3")
    cells = first.locator("td").all_inner_texts()
    shown = dict(zip(page.locator(".runs th:visible").all_inner_texts(), cells, strict=True))
    assert (shown["Score"], shown["Steps"], shown["Tokens"], shown["Tools"], shown["Time"]) == (
        "0", "4", "303", "1", "3.0 s",
    )  # fmt: skip
    assert page.title() == "Runs · coa view"


def test_a_click_on_a_heading_sorts_and_the_next_one_reverses(visitor: Visitor, viewer: Viewer) -> None:
    page = visitor.open(viewer.url)
    heading = page.locator("th").filter(has_text="Tokens")
    heading.locator("button").click()
    expect(rows(page).first).to_contain_text("number 229")
    expect(heading).to_have_attribute("aria-sort", "descending")
    assert query(page) == {"sort": "-tokens"}
    heading.locator("button").click()
    expect(heading).to_have_attribute("aria-sort", "ascending")
    expect(rows(page).first).to_contain_text("number 0?")
    heading.locator("button").click()
    expect(heading).not_to_have_attribute("aria-sort", re.compile("."))
    page.go_back()
    expect(page.locator("th[aria-sort=ascending]")).to_have_text("Tokens")


def count(matches: Any) -> int:
    return sum(bool(matches(number)) for number in [*range(COUNT), 3])


def test_filters_choose_runs_and_stay_in_the_address(visitor: Visitor, viewer: Viewer) -> None:
    page = visitor.open(viewer.url)
    page.click(".pill[data-outcome=wrong]")
    status(page, f"{count(lambda n: n % 3 == 0)} runs of 231")
    page.locator(".filter", has_text="Family").locator("select").select_option("family-1")
    status(page, f"{count(lambda n: n % 3 == 0 and n % 4 == 1)} runs of 231")
    page.get_by_label("Tool error").check()
    status(page, f"{count(lambda n: n % 3 == 0 and n % 4 == 1 and n % 5 == 0)} runs of 231")
    assert query(page) == {"outcome": "wrong", "family": "family-1", "tool_error": "1"}
    page.reload()
    status(page, f"{count(lambda n: n % 3 == 0 and n % 4 == 1 and n % 5 == 0)} runs of 231")
    expect(page.locator(".pill[data-outcome=wrong]")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_label("Tool error")).to_be_checked()
    page.locator("button.clear").click()
    status(page, "231 runs")
    assert query(page) == {}


@pytest.mark.parametrize(
    ("choose", "matches"),
    [
        (lambda page: page.get_by_label("Repaired").check(), lambda n: n % 7 == 0),
        (lambda page: page.get_by_label("Agent").select_option("reflection"), lambda n: n % 10 == 0),
        (lambda page: (page.fill("text=Tokens from", "5000"), page.keyboard.press("Enter")), lambda n: 101 * n >= 5000),
        (lambda page: (page.get_by_label("to", exact=True).fill("5000"), page.keyboard.press("Enter")),
         lambda n: 101 * n <= 5000),
    ],
    ids=["repaired", "agent", "tokens from", "tokens to"],
)  # fmt: skip
def test_each_filter_counts(visitor: Visitor, viewer: Viewer, choose: Any, matches: Any) -> None:
    page = visitor.open(viewer.url)
    choose(page)
    status(page, f"{count(matches)} runs of 231")


def test_a_folder_can_be_chosen(visitor: Visitor, viewer: Viewer) -> None:
    page = visitor.open(viewer.url)
    box = page.locator(".filter", has_text="Folder").locator("select")
    box.select_option(label=next(words for words in box.locator("option").all_inner_texts() if "few" in words))
    status(page, "1 run of 231")


def test_a_search_shows_its_hits_and_each_leads_to_its_step(visitor: Visitor, viewer: Viewer) -> None:
    page = visitor.open(viewer.url)
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("giraffe12")
    status(page, "11 runs of 231")  # 12 and 120 to 129
    assert query(page) == {"q": "giraffe12"}
    page.keyboard.type("5")
    status(page, "1 run of 231")
    hit = rows(page).first.locator(".hits a")
    expect(hit).to_contain_text("The giraffe125 is tall.")
    expect(hit.locator("mark")).to_have_text("giraffe125")
    expect(hit.locator(".hit-where")).to_have_text("Result")
    page.locator(".filter", has_text="Search in").locator("select").select_option("steps")
    expect(page.locator(".empty")).to_contain_text("No run matches.")
    page.locator(".filter", has_text="Search in").locator("select").select_option("observations")
    hit.click()
    expect(page.locator(".result[data-target]")).to_contain_text("giraffe125")
    assert page.url.endswith("?step=2")


def test_keys_move_open_and_come_back_to_the_same_run(visitor: Visitor, viewer: Viewer) -> None:
    page = visitor.open(f"{viewer.url}/#/runs?sort=-tokens")
    keys = page.keyboard
    links = page.locator("a.run-link")
    for key, place in (("j", 0), ("j", 1), ("j", 2), ("k", 1)):
        keys.press(key)
        expect(links.nth(place)).to_be_focused()
    keys.press("Enter")
    expect(page.locator("h1")).to_have_text("Which tower has number 228?")
    keys.press("u")
    expect(page.locator("a.run-link").nth(1)).to_be_focused()
    assert query(page) == {"sort": "-tokens"}
    keys.press("?")
    expect(page.locator("dialog")).to_contain_text("Next run")
    keys.press("Escape")
    keys.press("x")
    keys.press("/")
    keys.press("Escape")
    expect(page.locator("#search")).not_to_be_focused()


def test_no_more_than_a_page_of_rows_is_drawn_and_keys_turn_pages(visitor: Visitor, viewer: Viewer) -> None:
    page = visitor.open(viewer.url)
    expect(rows(page)).to_have_count(100)
    expect(page.locator(".pager.top")).to_contain_text("1–100 of 231")
    page.keyboard.press("n")
    expect(page.locator(".pager.top")).to_contain_text("101–200 of 231")
    expect(page.locator("a.run-link").first).to_be_focused()
    page.keyboard.press("n")
    expect(rows(page)).to_have_count(31)
    page.keyboard.press("n")
    assert query(page) == {"offset": "200"}
    page.keyboard.press("p")
    expect(page.locator(".pager.top")).to_contain_text("101–200 of 231")
    page.go_back()
    expect(page.locator(".pager.top")).to_contain_text("201–231 of 231")


def test_a_run_that_is_added_appears_and_the_focus_stays(visitor: Visitor, tmp_path: Path) -> None:
    file = tmp_path / "runs" / "trajectories.jsonl"
    write(file, [run(1), run(2)])
    with viewed(visitor, tmp_path / "runs", cache=tmp_path / "cache") as viewer:
        page = visitor.open(viewer.url)
        status(page, "2 runs")
        page.keyboard.press("j")
        page.keyboard.press("j")
        with file.open("a") as text:
            text.write(run(4).to_json() + "\n")
        status(page, "3 runs")
        expect(page.locator("a.run-link").nth(1)).to_be_focused()


def test_a_server_that_went_away_is_shown_as_such(visitor: Visitor, folder: Path, tmp_path: Path) -> None:
    visitor.expected = ("ERR_", "Failed to load resource")
    with open_viewer([folder], port=0, cache=tmp_path) as viewer:
        page = visitor.open(viewer.url)
        expect(page.locator("#live")).to_have_text("Live")
    expect(page.locator("#live")).to_have_text("Connection lost")
    visitor.leave()


def test_a_phone_shows_cards_and_nothing_is_wider_than_the_screen(visitor: Visitor, viewer: Viewer) -> None:
    page = visitor.open(f"{viewer.url}/#/runs?q=giraffe7", viewport={"width": 390, "height": 800}, is_mobile=True)
    expect(page.get_by_role("cell", name="Tokens 707")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator(".more-filters > summary").click()
    expect(page.get_by_label("Tool error")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_damaged_files_are_counted_in_the_header_and_listed(visitor: Visitor, tmp_path: Path) -> None:
    with viewed(visitor, stage_folders(tmp_path / "stages"), cache=tmp_path / "cache") as viewer:
        page = visitor.open(viewer.url)
        number = page.locator("#tabs a", has_text="Problems").locator(".count").inner_text()
        assert int(number) >= 1
        page.locator("#tabs a", has_text="Problems").click()
        expect(page.locator("h1")).to_have_text("Problems")
        expect(page.locator("tbody tr")).to_have_count(int(number))
        assert page.title() == "Problems · coa view"


# ---- the same list from plain files


@contextmanager
def served_files(folder: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


QUERIES: tuple[dict[str, str], ...] = (
    {},
    {"sort": "-tokens", "limit": "7", "offset": "5"},
    {"sort": "score"},
    {"outcome": "wrong,unscored", "family": "family-1"},
    {"tool_error": "1", "repaired": "1"},
    {"min_tokens": "2000", "max_tokens": "9000", "sort": "seconds"},
    {"agent": "reflection"},
    {"task": "task-003"},
    {"stop": "answered", "sort": "-added"},
    {"q": "giraffe12"},
    {"q": "giraffe12 "},
    {"q": '"is tall" zebra7', "sort": "-task"},
    {"q": "tower", "in": "steps"},
    {"q": "TÖWER", "in": "question"},
    {"q": "nothing of the kind"},
)


def test_a_bundle_answers_as_the_server_does(visitor: Visitor, viewer: Viewer, folder: Path, tmp_path: Path) -> None:
    assert write_bundle([folder], tmp_path / "site", cache=tmp_path / "cache") == 231
    with served_files(tmp_path / "site") as url:
        page = visitor.open(url)
        status(page, "231 runs")
        expect(page.locator("#live")).to_be_hidden()
        ask = """async (query) => {
            const { ViewData } = await import("./static/view-data.js");
            window.data ??= new ViewData();
            const { total, rows } = await window.data.runs(query);
            return { total, tasks: rows.map((row) => row.task), hits: rows.some((row) => row.hits?.length) };
        }"""
        for wanted in QUERIES:
            expected = asked(viewer, f"api/runs.json?{urlencode(wanted)}")
            found = page.evaluate(ask, wanted)
            tasks = [row["task"] for row in expected["rows"]]
            assert (found["total"], found["tasks"]) == (expected["total"], tasks), wanted
            if wanted.get(
                "q", ""
            ).isascii():  # accents do not count in a search, but the server does not mark such hits
                assert found["hits"] == any(row.get("hits") for row in expected["rows"]), wanted
        page.keyboard.press("/")
        page.keyboard.type("giraffe125")
        rows(page).first.locator(".hits a").click()
        expect(page.locator(".result[data-target]")).to_contain_text("giraffe125")
        visitor.leave()


def test_a_bundle_compares_folders_as_the_server_does(
    visitor: Visitor, viewer: Viewer, folder: Path, tmp_path: Path
) -> None:
    write_bundle([folder], tmp_path / "site", cache=tmp_path / "cache")
    ids = ",".join(row["id"] for row in asked(viewer, "api/index.json")["folders"] if row["runs"])
    with served_files(tmp_path / "site") as url:
        page = visitor.open(url)
        for only in ("", "disagree", "00", "10"):
            expected = asked(viewer, f"api/compare.json?folders={ids}&only={only}")
            found = page.evaluate(
                """async ([folders, only]) => {
                    const { ViewData } = await import("./static/view-data.js");
                    return new ViewData().compare({ folders, only });
                }""",
                [ids, only],
            )
            assert found["counts"] == expected["counts"]
            assert found["total"] == expected["total"]
            shown = [[task["task"], task["pattern"], [len(runs) for runs in task["runs"]]] for task in found["tasks"]]
            wanted = [[one["task"], one["pattern"], [len(runs) for runs in one["runs"]]] for one in expected["tasks"]]
            assert shown == wanted
        visitor.leave()
