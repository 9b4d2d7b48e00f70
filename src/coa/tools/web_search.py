"""`web_search`: titles, addresses, dates and snippets for a query, from a search service or a local index."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from coa.errors import ToolError
from coa.http import Spent, Unserved
from coa.tools.base import Observation, ToolContext
from coa.tools.registry import SEARCH_FOLDER
from coa.tools.results import MAX_QUERIES, parse_setting, queries_of, show, show_briefly, whole_number
from coa.tools.search_engines import LocalEngine, SearchEngine, SearXng, SerpApi, Serper
from coa.trajectory import Form, Shape

RESULTS: Final = 10
_OPTIONS: Final = {"k": "results of a query", "show": "full or brief, a line a result"}


class WebSearch:
    about = "looks queries up on the web and gets titles, addresses, dates and snippets."
    shape = Shape(form=Form.LIST)
    uses = ()

    def __init__(self, engine: SearchEngine, *, k: int = RESULTS, brief: bool = False, timeout_s: float = 75.0) -> None:
        self.engine, self.k, self.brief, self.timeout_s = engine, k, brief, timeout_s
        self.settings: JsonValue = {"engine": engine.settings, "k": k, **({"show": "brief"} if brief else {})}

    async def call(self, arguments: Mapping[str, JsonValue], context: ToolContext) -> Observation:
        queries = queries_of(arguments)
        if not queries:
            return Observation("error: there is no query", ok=False, meta={"error": "request"})
        answers = await asyncio.gather(*(self._one(query) for query in queries[:MAX_QUERIES]))
        blocks = [text for text, _, _ in answers]
        if len(queries) > MAX_QUERIES:
            blocks.append(f"note: only the first {MAX_QUERIES} of {len(queries)} queries were looked up.")
        errors = [error for _, error, _ in answers if error]
        spent = sum((spent for _, _, spent in answers), Spent())
        meta: dict[str, JsonValue] = {"source": self.engine.name, "queries": len(answers), **spent.meta()}
        if errors:
            meta["error"] = errors[0]
        return Observation(("\n" if self.brief else "\n\n").join(blocks), ok=len(errors) < len(answers), meta=meta)

    async def close(self) -> None:
        await self.engine.close()

    async def _one(self, query: str) -> tuple[str, str, Spent]:
        spent = Spent()
        try:
            found = await self.engine.search(query, self.k, spent)
            return show_briefly(found) if self.brief else show(self.engine.name, query, found), "", spent
        except Unserved as error:
            return f'error: no results for "{query}": {error}', error.error, spent
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            # The answer has an unknown shape: the service has changed, or is another one than assumed.
            why = f"{self.engine.name} answers in an unknown shape ({type(error).__name__}: {error})"
            return f'error: no results for "{query}": {why}', "shape", spent


def open_web_search(setting: str | None, environment: Mapping[str, str]) -> WebSearch:
    """The setting is an engine, a folder or an address; without one, the first engine with a key or address is used."""
    target, options = parse_setting("web_search", setting or "", _OPTIONS)
    k = whole_number("web_search", options, "k", RESULTS)
    how = options.get("show", "full")
    if how not in ("full", "brief"):
        raise ToolError(f"--tool web_search: show={how} is neither full nor brief")
    return WebSearch(_engine(target, environment), k=k, brief=how == "brief")


ENGINES: Final = {"serpapi": "SERPAPI_API_KEY", "serper": "SERPER_API_KEY", "searxng": "SEARXNG_URL"}
"""The engines and the variable that each needs. Without a name, the first one whose variable is set is used."""


def _engine(target: str, environment: Mapping[str, str]) -> SearchEngine:
    if target.startswith(("http://", "https://")):
        return SearXng(target)
    price = _price(environment.get("COA_SEARCH_PRICE"))
    if target and target not in ENGINES:
        return LocalEngine(target)
    name = target or next((name for name, variable in ENGINES.items() if environment.get(variable)), "")
    value = environment.get(ENGINES[name]) if name else None
    if not value:
        missing = ENGINES[name] if name else ", ".join(ENGINES.values())
        raise ToolError(f"no {missing} in the environment", hint=f"set it, or {SEARCH_FOLDER}")
    if name == "serpapi":
        return SerpApi(value, environment.get("SERPAPI_URL") or "https://serpapi.com", price=price)
    if name == "serper":
        return Serper(value, environment.get("SERPER_URL") or "https://google.serper.dev", price=price)
    return SearXng(value)


def _price(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        hint = "give the price of one search in dollars, e.g. 0.001"
        raise ToolError(f"COA_SEARCH_PRICE={text} is not a number", hint=hint) from None
