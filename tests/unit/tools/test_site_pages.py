"""crawl_page for one site: short addresses and bare facts, and not a step outside."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import JsonValue

from coa.errors import ToolError
from coa.tools.base import Observation, ToolContext
from coa.tools.registry import open_tool
from coa.tools.results import Found, show_briefly
from coa.tools.web.fetch import Fetcher, FetchRules
from coa.tools.web.guard import AllowList
from coa.tools.web.site import SitePages, facts
from coa.trajectory import Task
from support.site import Names, Recorder, Site, answer, moved

PAGE = (
    "<html><head><title>Velrick</title><style>p{}</style></head><body><nav><a href='/'>home</a></nav><main>"
    "<h1>Velrick</h1>"
    "<table><tr><th>people</th><td>8780</td></tr><tr><th>mayor</th><td><a href='/t/Santon'>t/Santon</a></td></tr>"
    "</table>"
    "<p>A city   of the\natlas.</p></main><footer>old</footer></body></html>"
)
TOLD = "people: 8780\nmayor: t/Santon\nA city of the atlas."
CONTEXT = ToolContext(Task(id="t", question="q"))


def _run(*addresses: str, recorder: Recorder | None = None, **pages: Any) -> tuple[Observation, Site]:
    async def go() -> tuple[Observation, Site]:
        site = Site({"/k/Velrick": answer(PAGE), "/a b": answer("<p>blank</p>"), **pages})
        async with site.running():
            origin = f"127.0.0.1:{site.port}"
            rules = FetchRules(allowed=AllowList.parse([origin]))
            fetcher = Fetcher(rules, resolve=Names(), open_socket=recorder or Recorder())
            tool = SitePages("atlas", origin, fetcher=fetcher)
            try:
                given: list[JsonValue] = [address.replace("PORT", str(site.port)) for address in addresses]
                return await tool.call({"items": given}, CONTEXT), site
            finally:
                await tool.close()

    return asyncio.run(go())


def test_a_page_is_its_facts_a_line_each() -> None:
    assert facts(PAGE) == TOLD
    assert facts("<p>one<p>two<ul><li>three</ul>") == "one\ntwo\nthree"
    assert facts("bare <b>words</b>") == "bare words"
    assert facts("<script>alert(1)</script>") == ""


@pytest.mark.parametrize(
    "address",
    ["k/Velrick", "/k/Velrick", "atlas/k/Velrick", "http://atlas/k/Velrick", "https://ATLAS/k/Velrick", "<k/Velrick>",
     "http://127.0.0.1:PORT/k/Velrick"],
)  # fmt: skip
def test_an_address_is_short_and_knows_no_port(address: str) -> None:
    seen, _ = _run(address)
    assert (seen.ok, seen.text) == (True, TOLD)


def test_several_pages_stand_under_their_addresses() -> None:
    seen, _ = _run("k/Velrick", "k/Nowhere", "a b")
    assert seen.text == f"k/Velrick\n{TOLD}\nk/Nowhere\nerror: no page k/Nowhere\na b\nblank"
    assert seen.ok and not seen.whole


def test_nothing_but_the_site_is_asked_for() -> None:
    recorder = Recorder()
    outside = [
        "http://example.com/",
        "http://127.0.0.1:22/",
        "http://localhost:PORT/k/Velrick",
        "http://169.254.169.254/x",
    ]
    seen, site = _run(*outside, recorder=recorder)
    assert not seen.ok and seen.text.count("error: only pages of atlas can be opened") == len(outside)
    assert recorder.asked == [] and site.requests == []
    # What looks like a host in a bare address is a path of the site.
    seen, site = _run("127.0.0.1:22/x", "example.com/x", recorder=recorder)
    assert {request.path for request in site.requests} == {"/127.0.0.1:22/x", "/example.com/x"} and not seen.ok
    assert set(recorder.asked) == {"127.0.0.1"}


def test_a_redirect_leads_no_further_than_the_site() -> None:
    recorder = Recorder()
    pages: dict[str, Any] = {
        "/out": moved("http://127.0.0.1:9/secret"),
        "/away": moved("http://10.0.0.1/"),
        "/in": moved("/k/Velrick"),
    }
    seen, site = _run("out", "away", recorder=recorder, **pages)
    assert not seen.ok and "port 9 is not opened" in seen.text and "not a public address" in seen.text
    assert {request.path for request in site.requests} == {"/out", "/away"}
    assert _run("in", **pages)[0].text == TOLD


def test_the_setting_names_the_site_and_wrong_ones_are_told() -> None:
    tool = open_tool("crawl_page", "site=atlas@127.0.0.1:8123,edition=abc")
    assert isinstance(tool, SitePages) and tool.settings == {"site": "atlas", "edition": "abc"}
    for wrong in ("site=atlas", "site=atlas@127.0.0.1", "site=atlas@127.0.0.1:8123,robots=off"):
        with pytest.raises(ToolError):
            open_tool("crawl_page", wrong)


def test_brief_results_say_nothing_twice() -> None:
    found = [Found("Velrick", "k/Velrick", "city"), Found("Of Rivers", "http://r.test/1", "All of  them.", "2020")]
    assert show_briefly(found) == "k/Velrick: city\nhttp://r.test/1: Of Rivers: All of them."
    assert show_briefly([]) == "nothing found"
