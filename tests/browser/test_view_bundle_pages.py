"""A bundle behind a plain web server: it answers as the server does, and its pages work without one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from coa.view import write_bundle
from support.browsing import Visitor
from support.stage_folders import stage_folders
from support.viewing import asked, viewed

ASK = """async ([name, query]) => {
  const { ViewData } = await import("./static/view-data.js");
  const found = await new ViewData()[name](query);
  const rows = (found.rows ?? found.tasks.flatMap((task) => task.runs.flat()));
  return { total: found.total, counts: found.counts ?? null, ids: rows.map((row) => row.id) };
}"""
QUERIES: list[dict[str, str]] = [
    {},
    {"limit": "5", "offset": "5"},
    {"outcome": "right"},
    {"outcome": "wrong,failed", "sort": "-tokens"},
    {"stop": "answered", "sort": "task"},
    {"agent": "web_search"},
    {"tool_error": "1"},
    {"repaired": "1"},
    {"min_tokens": "1"},
    {"max_tokens": "100"},
    {"family": "two_hop"},
    {"benchmark": "exam"},
    {"step": "1"},
    {"step": "2", "group": "0"},
    {"sort": "-score"},
    {"sort": "seconds"},
    {"q": "lovelace"},
    {"q": "lovel"},
    {"q": '"Ada Lovelace"'},
    {"q": '"Lovelace Ada"'},
    {"q": "ada", "in": "question"},
    {"q": "ada", "in": "observations"},
    {"q": "plan", "in": "steps", "outcome": "right"},
    {"q": "nothing-of-that-kind"},
]


@contextmanager
def plainly_served(folder: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stage_folders(tmp_path_factory.mktemp("bundled") / "runs")


def test_a_bundle_answers_every_query_as_the_server_does(visitor: Visitor, folders: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    write_bundle([folders], tmp_path / "site" / "below", cache=cache)
    with viewed(visitor, folders, cache=cache) as viewer, plainly_served(tmp_path / "site") as url:
        server, bundle = visitor.open(viewer.url), visitor.open(f"{url}/below/")
        for query in QUERIES:
            there, here = (page.evaluate(ASK, ["runs", query]) for page in (server, bundle))
            assert here == there, query
        evaluations = [one["id"] for one in asked(viewer, "api/index.json")["folders"] if one["kind"] == "eval"]
        for only in ("", "disagree", "10", "01", "11"):
            query = {"folders": ",".join(evaluations), "only": only}
            there, here = (page.evaluate(ASK, ["compare", query]) for page in (server, bundle))
            assert here == there and there["counts"]["tasks"] > 0, only


def test_every_view_of_a_bundle_can_be_opened(visitor: Visitor, folders: Path, tmp_path: Path) -> None:
    write_bundle([folders], tmp_path / "site" / "below", cache=tmp_path / "cache")
    with plainly_served(tmp_path / "site") as url:
        page = visitor.open(f"{url}/below/#/runs?q=lovelace")
        expect(page.locator("mark").first).to_have_text("Lovelace", ignore_case=True)
        page.keyboard.press("Escape")
        for place in ("#/runs", "#/folders", "#/findings", "#/problems"):
            page.goto(f"{url}/below/{place}")
            page.wait_for_selector("body[data-ready]")
            expect(page.locator("main")).not_to_contain_text("cannot be shown")
        page.goto(f"{url}/below/#/runs?outcome=right")
        page.wait_for_selector("body[data-ready]")
        page.locator("main a[href*='#/run/']").first.click()
        page.wait_for_selector("body[data-ready] .steps")
        page.keyboard.press("m")
        expect(page.locator("main")).to_contain_text("trained")
        expect(page.locator("#live")).to_be_hidden()
        visitor.leave()
