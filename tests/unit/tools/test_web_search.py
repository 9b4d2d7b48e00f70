"""web_search against the documented shapes of each service, and against everything that goes wrong with one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import JsonValue

from coa.errors import StoreError, ToolError
from coa.http import Breaker, Client, Patience, Transient, Unserved, retried
from coa.tools import Observation, ToolContext
from coa.tools.index import IndexedDocument, build
from coa.tools.search_engines import SearchEngine, SearXng, SerpApi, Serper
from coa.tools.web_search import WebSearch, open_web_search
from coa.trajectory import Task
from support.search_servers import (
    KEY,
    SEARXNG,
    SERPAPI,
    SERPER,
    Handler,
    SearchServer,
    answered,
    dropped,
    echoing_the_key,
    endless,
    hanging,
    html,
)

CONTEXT = ToolContext(Task(id="1", question="who?"))
QUICK = Patience(attempts=3, timeout_s=60, backoff_s=0.001)
ENGINES: dict[str, Callable[[str, Patience], SearchEngine]] = {
    "serpapi": lambda url, patience: SerpApi(KEY, url, price=0.015, patience=patience),
    "serper": lambda url, patience: Serper(KEY, url, patience=patience),
    "searxng": lambda url, patience: SearXng(url, patience=patience),
}
SHAPES = {"serpapi": SERPAPI, "serper": SERPER, "searxng": SEARXNG}


def ask(
    engine: str, query: str, *answers: Handler, k: int = 10, patience: Patience = QUICK
) -> tuple[Observation, SearchServer]:
    async def go() -> tuple[Observation, SearchServer]:
        server = SearchServer(*answers)
        async with server.running() as url:
            tool = WebSearch(ENGINES[engine](url, patience), k=k)
            try:
                return await tool.call({"text": query}, CONTEXT), server
            finally:
                await tool.close()

    return asyncio.run(go())


def test_serpapi_is_asked_and_read_as_documented() -> None:
    seen, server = ask("serpapi", "first programmer", answered(SERPAPI), k=2)
    assert server.asked[0].path == "/search.json"
    assert dict(server.asked[0].query) == {"engine": "google", "q": "first programmer", "num": "2", "api_key": KEY}
    assert seen.ok and seen.text == (
        'SerpAPI, results for "first programmer":\n'
        "1. First programmer - https://a.example/ada\n"
        "   Ada Lovelace\n"
        "2. Ada Lovelace - https://a.example/ada (Dec 10, 2023)\n"
        "   English mathematician, the first programmer.\n"
        "3. Programs before computers - https://b.example/\n"
        "   Notes."
    )
    assert seen.meta["calls"] == 1 and seen.meta["dollars"] == 0.015 and seen.meta["source"] == "SerpAPI"


def test_serper_is_asked_and_read_as_documented() -> None:
    seen, server = ask("serper", "first programmer", answered(SERPER))
    assert (server.asked[0].method, server.asked[0].path) == ("POST", "/search")
    assert server.asked[0].headers["X-API-KEY"] == KEY and server.bodies == [{"q": "first programmer", "num": 10}]
    assert "1. Who? - https://a.example/who\n   Ada Lovelace wrote it." in seen.text
    assert "2. Ada Lovelace - https://a.example/ada (10 Dec 2023)\n   The first programmer." in seen.text
    assert seen.meta["credits"] == 1 and "dollars" not in seen.meta, "nobody told the price"


def test_searxng_is_asked_and_read_as_documented() -> None:
    seen, server = ask("searxng", "first programmer", answered(SEARXNG))
    assert server.asked[0].path == "/search"
    assert dict(server.asked[0].query) == {"q": "first programmer", "format": "json"}
    assert seen.text.endswith(
        "1. Ada Lovelace - https://a.example/ada (2023-12-10)\n   The first programmer.\n2. Other - https://b.example/"
    )


@pytest.mark.parametrize(
    ("engine", "empty"),
    [
        ("serpapi", {"search_metadata": {}, "error": "Google hasn't returned any results for this query."}),
        ("serper", {"organic": [], "credits": 1}),
        ("searxng", {"results": [], "unresponsive_engines": []}),
    ],
)
def test_no_results_are_an_answer(engine: str, empty: object) -> None:
    seen, _ = ask(engine, "xyzzy", answered(empty))
    assert seen.ok and 'found nothing for "xyzzy"' in seen.text


@pytest.mark.parametrize(
    ("engine", "status", "body", "error", "said"),
    [
        ("serpapi", 401, {"error": "Invalid API key. Your API key should be here: https://serpapi.com/manage-api-key"},
         "key", "refuses the key in SERPAPI_API_KEY: Invalid API key"),
        ("serpapi", 429, {"error": "Your account has run out of searches."}, "quota", "is used up"),
        ("serpapi", 200, {"error": "Some parameter is odd."}, "service", "says: Some parameter is odd."),
        ("serper", 403, {"message": "Unauthorized.", "statusCode": 403}, "key", "refuses the key in SERPER_API_KEY"),
        ("serper", 400, {"message": "Not enough credits", "statusCode": 400}, "quota", "is used up"),
        ("searxng", 403, {}, "key", "settings.yml must list json"),
        ("searxng", 200, {"results": [], "unresponsive_engines": [["bing", "timeout"]]}, "service", "bing: timeout"),
        ("serper", 200, {"unexpected": 1}, "shape", "unknown shape"),
        ("serper", 200, [1, 2], "shape", "unknown shape"),
        ("serpapi", 200, {"organic_results": ["text"]}, "shape", "unknown shape"),
        ("serpapi", 404, {"error": "gone"}, "request", "answers 404: gone"),
        ("searxng", 302, {}, "request", "has moved to https://elsewhere.example/"),
    ],
)  # fmt: skip
def test_what_will_not_pass_is_told_at_once(engine: str, status: int, body: object, error: str, said: str) -> None:
    headers = {"Location": "https://elsewhere.example/"} if status == 302 else {}
    seen, server = ask(engine, "q", answered(body, status, **headers))
    assert not seen.ok and seen.meta["error"] == error and said in seen.text, seen.text
    assert len(server.asked) == 1


@pytest.mark.parametrize("trouble", [answered({"error": "busy"}, 429), answered({}, 503), html, dropped])
def test_what_may_pass_is_tried_again(trouble: Handler) -> None:
    seen, server = ask("serper", "q", trouble, trouble, answered(SERPER))
    assert seen.ok and len(server.asked) == 3 and seen.meta["calls"] == 3


@pytest.mark.parametrize("trouble", [hanging, dropped, html, answered({}, 500)])
def test_a_service_that_stays_away_is_given_up(trouble: Handler) -> None:
    impatient = Patience(attempts=3, timeout_s=0.3, backoff_s=0.001)
    seen, _ = ask("searxng", "q", trouble, patience=impatient if trouble is hanging else QUICK)
    assert not seen.ok and "did not answer in 3 attempts" in seen.text and seen.meta["calls"] == 3


def test_a_long_wait_that_the_service_asks_for_is_not_waited() -> None:
    seen, server = ask("serper", "q", answered({"message": "slow down"}, 429, **{"Retry-After": "3600"}))
    assert not seen.ok and "asks to wait 3600 seconds" in seen.text and len(server.asked) == 1


def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "max_bytes", 1 << 20)
    seen, _ = ask("searxng", "q", endless)
    assert not seen.ok and seen.meta["error"] == "size"
    spent = seen.meta["bytes"]
    assert isinstance(spent, int) and spent < 2 << 20


@pytest.mark.parametrize("engine", ["serpapi", "serper"])
def test_the_key_appears_nowhere(engine: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for trouble in (echoing_the_key, dropped, html):
        seen, _ = ask(engine, "q", trouble)
        assert not seen.ok and KEY not in seen.text and KEY not in str(seen.meta)
    assert KEY not in "".join(record.getMessage() for record in caplog.records if record.name.startswith("coa"))
    assert "[key]" in ask(engine, "q", echoing_the_key)[0].text
    assert KEY not in str(WebSearch(ENGINES[engine]("http://x", QUICK)).settings)


def test_a_password_in_an_address_appears_nowhere() -> None:
    async def go() -> tuple[Observation, JsonValue]:
        tool = WebSearch(SearXng("http://me:pass%20word@127.0.0.1:9/", patience=Patience(attempts=1)))
        try:
            return await tool.call({"text": "q"}, CONTEXT), tool.settings
        finally:
            await tool.close()

    seen, settings = asyncio.run(go())
    assert not seen.ok and "pass" not in seen.text and "pass" not in str(settings)


def test_queries_between_bars_are_run_at_once_and_fail_alone() -> None:
    meeting = asyncio.Barrier(3)

    async def together(request: object) -> object:
        query = request.query["q"]  # type: ignore[attr-defined]
        await meeting.wait()  # nobody is answered before all have asked
        return answered({} if query == "b" else SEARXNG, 418 if query == "b" else 200)(request)  # type: ignore[arg-type]

    seen, server = ask("searxng", "a | b |c| a |", together)
    assert seen.ok and [request.query["q"] for request in server.asked].count("a") == 1
    blocks = seen.text.split("\n\n")
    assert blocks[0].startswith('SearXNG, results for "a"') and blocks[2].startswith('SearXNG, results for "c"')
    assert blocks[1] == 'error: no results for "b": SearXNG answers 418: {}' and seen.meta["queries"] == 3
    assert not seen.whole


def test_more_queries_than_allowed_are_said_to_be_left_out() -> None:
    seen, server = ask("searxng", "|".join("abcdefghijk"), answered(SEARXNG))
    assert len(server.asked) == 8 and "only the first 8 of 11 queries" in seen.text
    assert ask("searxng", "|", answered(SEARXNG))[0].text == "error: there is no query"


def test_a_list_of_queries_is_read_as_well() -> None:
    async def go() -> Observation:
        async with SearchServer(answered(SEARXNG)).running() as url:
            tool = WebSearch(SearXng(url))
            try:
                return await tool.call({"items": ["a", "b"]}, CONTEXT)
            finally:
                await tool.close()

    assert asyncio.run(go()).meta["queries"] == 2


def test_a_service_that_keeps_failing_is_left_alone_for_a_while() -> None:
    now = [0.0]
    breaker = Breaker("it", failures=2, rest_s=30, clock=lambda: now[0])
    calls: list[float] = []
    working = False

    async def attempt() -> str:
        calls.append(now[0])
        if not working:
            raise Transient("down")
        return "fine"

    def once() -> str:
        return asyncio.run(retried("it", attempt, Patience(attempts=1), breaker))

    for _ in range(2):
        with pytest.raises(Unserved, match="did not answer: down"):
            once()
    with pytest.raises(Unserved, match="left alone for 30 more seconds"):
        once()
    assert len(calls) == 2
    now[0] = 31.0
    with pytest.raises(Unserved, match="down"):  # one call tries, and fails
        once()
    with pytest.raises(Unserved, match="left alone"):
        once()
    now[0], working = 62.0, True
    assert once() == "fine" and once() == "fine" and len(calls) == 5


def test_a_refusal_shows_that_the_service_is_alive() -> None:
    breaker = Breaker("it", failures=2)

    async def refuse() -> None:
        raise Unserved("no", error="key")

    for _ in range(5):
        with pytest.raises(Unserved, match="no"):
            asyncio.run(retried("it", refuse, Patience(), breaker))
    breaker.check()


def test_the_engine_is_chosen_by_setting_or_by_what_the_environment_has(tmp_path: Path) -> None:
    both = {"SERPER_API_KEY": "x", "SEARXNG_URL": "http://s"}
    assert open_web_search(None, both).engine.name == "Serper"
    assert open_web_search("searxng", both).engine.name == "SearXNG"
    assert open_web_search("https://my.searx/,k=3", {}).k == 3
    assert open_web_search("k=4", both).k == 4
    for wrong, said in (("serpapi", "no SERPAPI_API_KEY"), ("serper,n=3", "no option 'n'"), ("serper,k=x", "k=x")):
        with pytest.raises(ToolError, match=said):
            open_web_search(wrong, {"SERPER_API_KEY": "x"})
    with pytest.raises(ToolError, match="no SERPAPI_API_KEY, SERPER_API_KEY, SEARXNG_URL"):
        open_web_search(None, {})
    with pytest.raises(ToolError, match="COA_SEARCH_PRICE"):
        open_web_search(None, {**both, "COA_SEARCH_PRICE": "cheap"})
    with pytest.raises(StoreError, match="not a search index"):
        open_web_search(str(tmp_path), {})


def test_a_local_index_takes_the_place_of_the_web(tmp_path: Path) -> None:
    long = " ".join(["filler."] * 200 + ["The lighthouse of Brannock was lit in 1871."] + ["filler."] * 200)
    documents = [
        IndexedDocument("a", "Brannock", long, "https://atlas.example/brannock", "2020-05-01"),
        IndexedDocument("b", "Else", "x"),
    ]
    build(documents, tmp_path / "idx")
    tool = open_web_search(str(tmp_path / "idx"), {})
    seen = asyncio.run(tool.call({"text": "Brannock lighthouse lit"}, CONTEXT))
    assert seen.text.count("https://atlas.example/brannock") == 1, "one result a document, not one a passage"
    assert "1. Brannock - https://atlas.example/brannock (2020-05-01)" in seen.text and "lit in 1871" in seen.text
    assert seen.meta["source"] == "index idx"
