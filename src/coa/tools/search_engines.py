"""The search engines of web_search: services that search the web, or a local index instead of the web."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pydantic import JsonValue

from coa.addresses import public
from coa.http import Client, Patience, Spent, Unserved
from coa.tools.results import Found


class SearchEngine(Protocol):
    """Something that answers queries."""

    name: str
    settings: JsonValue
    """The settings that decide its answers, without keys."""

    async def search(self, query: str, k: int, spent: Spent) -> list[Found]: ...

    async def close(self) -> None: ...


class SerpApi(Client):
    """Google through serpapi.com."""

    def __init__(self, key: str, url: str, *, price: float | None = None, patience: Patience | None = None) -> None:
        super().__init__("SerpAPI", url, secrets=[key], patience=patience)
        self.settings: JsonValue = "serpapi"
        self._key, self._price = key, price

    async def search(self, query: str, k: int, spent: Spent) -> list[Found]:
        params = {"engine": "google", "q": query, "num": str(k), "api_key": self._key}
        data = await self.get("/search.json", params, spent)
        spent.dollars = self._price
        error = str(data.get("error", ""))
        if error and "hasn't returned any results" not in error:
            raise Unserved(f"{self.name} says: {error}")
        return [*_answer_box(data.get("answer_box")), *_rows(data.get("organic_results", []))[:k]]

    def refusal(self, status: int, message: str, path: str) -> Exception:
        if status == 401:
            return Unserved(f"{self.name} refuses the key in SERPAPI_API_KEY: {message}", error="key")
        if status == 429 and "run out" in message:
            return Unserved(f"the account at {self.name} is used up: {message}", error="quota")
        return super().refusal(status, message, path)


class Serper(Client):
    """Google through serper.dev."""

    def __init__(self, key: str, url: str, *, price: float | None = None, patience: Patience | None = None) -> None:
        super().__init__("Serper", url, headers={"X-API-KEY": key}, secrets=[key], patience=patience)
        self.settings: JsonValue = "serper"
        self._price = price

    async def search(self, query: str, k: int, spent: Spent) -> list[Found]:
        data = await self.post("/search", {"q": query, "num": k}, spent)
        credits = data.get("credits")
        spent.credits = float(credits) if isinstance(credits, int | float) else None
        spent.dollars = self._price
        return [*_answer_box(data.get("answerBox")), *_rows(data["organic"])[:k]]

    def refusal(self, status: int, message: str, path: str) -> Exception:
        if status in (401, 403):
            return Unserved(f"{self.name} refuses the key in SERPER_API_KEY: {message}", error="key")
        if "credits" in message.lower():
            return Unserved(f"the account at {self.name} is used up: {message}", error="quota")
        return super().refusal(status, message, path)


class SearXng(Client):
    """An instance of SearXNG, private or public."""

    def __init__(self, url: str, *, patience: Patience | None = None) -> None:
        super().__init__("SearXNG", url, patience=patience)
        self.settings: JsonValue = {"searxng": public(url)}

    async def search(self, query: str, k: int, spent: Spent) -> list[Found]:
        data = await self.get("/search", {"q": query, "format": "json"}, spent)
        rows = [Found(_text(row, "title"), _text(row, "url"), _text(row, "content"), _text(row, "publishedDate")[:10])
                for row in data["results"]]  # fmt: skip
        silent = data.get("unresponsive_engines") or []
        if not rows and silent:
            reasons = ", ".join(": ".join(map(str, one)) for one in silent[:5])
            raise Unserved(f"none of the search engines behind {self.name} answered ({reasons})")
        return rows[:k]

    def refusal(self, status: int, message: str, path: str) -> Exception:
        if status == 403:
            reason = f"{self.name} refuses JSON; its settings.yml must list json under search: formats:"
            return Unserved(reason, error="key")
        return super().refusal(status, message, path)


class LocalEngine:
    """A local index instead of the web. Each document appears once, with the part that fits the query."""

    def __init__(self, folder: str | Path) -> None:
        from coa.tools.index import Index

        self._index = Index(folder)
        self.name = f"index {self._index.folder.name}"
        self.settings: JsonValue = {"index": self._index.manifest.hash}

    async def search(self, query: str, k: int, spent: Spent) -> list[Found]:
        start = time.monotonic()
        found = await asyncio.to_thread(self._search, query, k)
        spent.calls += 1
        spent.seconds += time.monotonic() - start
        return found

    def _search(self, query: str, k: int) -> list[Found]:
        from coa.tools.index import snippet

        terms = self._index.terms(query)
        found: dict[str, Found] = {}
        for hit in self._index.search(query, 3 * k):
            passage = hit.passage
            document = passage.url or passage.id.rpartition("#")[0] or passage.id
            if document not in found:
                url, text = passage.url or passage.id, snippet(passage.text, terms)
                found[document] = Found(passage.title, url, text, passage.date)
        return list(found.values())[:k]

    async def close(self) -> None:
        pass


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""


def _rows(rows: Sequence[Mapping[str, Any]]) -> list[Found]:
    """Results as both services for Google write them."""
    return [Found(*(_text(row, name) for name in ("title", "link", "snippet", "date"))) for row in rows]


def _answer_box(box: object) -> list[Found]:
    """The answer that the engine shows above its results."""
    if not isinstance(box, dict):
        return []
    text = _text(box, "answer") or _text(box, "result") or _text(box, "snippet")
    return [Found(_text(box, "title") or "Answer", _text(box, "link"), text, _text(box, "date"))] if text else []
