"""What can stand behind web_search: services that search the web, or a local index in its place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic import JsonValue

from coa.http import Client, Patience, Spent, Unserved, public
from coa.tools.results import Found


class SearchEngine(Protocol):
    """Something that answers queries."""

    name: str
    settings: JsonValue
    """What decides its answers, without keys."""

    async def search(self, query: str, k: int, spent: Spent) -> list[Found]: ...

    async def close(self) -> None: ...


class SerpApi:
    """Google through serpapi.com."""

    name = "SerpAPI"

    def __init__(self, key: str, url: str, *, price: float | None = None, patience: Patience | None = None) -> None:
        self.settings: JsonValue = "serpapi"
        self._key = key
        self._price = price
        self._client = _SerpApiClient(self.name, url, secrets=[key], patience=patience)

    async def search(self, query: str, k: int, spent: Spent) -> list[Found]:
        params = {"engine": "google", "q": query, "num": str(k), "api_key": self._key}
        data = await self._client.get("/search.json", params, spent)
        spent.dollars = self._price
        told = str(data.get("error", ""))
        if told and "hasn't returned any results" not in told:
            raise Unserved(f"{self.name} says: {told}")
        rows = [Found(_text(row, "title"), _text(row, "link"), _text(row, "snippet"), _text(row, "date"))
                for row in data.get("organic_results", [])]  # fmt: skip
        return [*_answer_box(data.get("answer_box")), *rows[:k]]

    async def close(self) -> None:
        await self._client.close()


class _SerpApiClient(Client):
    def refusal(self, status: int, message: str, path: str) -> Exception:
        if status == 401:
            return Unserved(f"{self.name} refuses the key in SERPAPI_API_KEY: {message}", error="key")
        if status == 429 and "run out" in message:
            return Unserved(f"the account at {self.name} is used up: {message}", error="quota")
        return super().refusal(status, message, path)


class Serper:
    """Google through serper.dev."""

    name = "Serper"

    def __init__(self, key: str, url: str, *, price: float | None = None, patience: Patience | None = None) -> None:
        self.settings: JsonValue = "serper"
        self._price = price
        self._client = _SerperClient(self.name, url, headers={"X-API-KEY": key}, secrets=[key], patience=patience)

    async def search(self, query: str, k: int, spent: Spent) -> list[Found]:
        data = await self._client.post("/search", {"q": query, "num": k}, spent)
        credits = data.get("credits")
        spent.credits = float(credits) if isinstance(credits, int | float) else None
        spent.dollars = self._price
        rows = [Found(_text(row, "title"), _text(row, "link"), _text(row, "snippet"), _text(row, "date"))
                for row in data["organic"]]  # fmt: skip
        return [*_answer_box(data.get("answerBox")), *rows[:k]]

    async def close(self) -> None:
        await self._client.close()


class _SerperClient(Client):
    def refusal(self, status: int, message: str, path: str) -> Exception:
        if status in (401, 403):
            return Unserved(f"{self.name} refuses the key in SERPER_API_KEY: {message}", error="key")
        if "credits" in message.lower():
            return Unserved(f"the account at {self.name} is used up: {message}", error="quota")
        return super().refusal(status, message, path)


class SearXng:
    """An instance of SearXNG, one's own or a public one."""

    name = "SearXNG"

    def __init__(self, url: str, *, patience: Patience | None = None) -> None:
        self.settings: JsonValue = {"searxng": public(url)}
        self._client = _SearXngClient(self.name, url, patience=patience)

    async def search(self, query: str, k: int, spent: Spent) -> list[Found]:
        data = await self._client.get("/search", {"q": query, "format": "json"}, spent)
        rows = [Found(_text(row, "title"), _text(row, "url"), _text(row, "content"), _text(row, "publishedDate")[:10])
                for row in data["results"]]  # fmt: skip
        silent = data.get("unresponsive_engines") or []
        if not rows and silent:
            reasons = ", ".join(": ".join(map(str, one)) for one in silent[:5])
            raise Unserved(f"none of the search engines behind {self.name} answered ({reasons})")
        return rows[:k]

    async def close(self) -> None:
        await self._client.close()


class _SearXngClient(Client):
    def refusal(self, status: int, message: str, path: str) -> Exception:
        if status == 403:
            told = f"{self.name} refuses JSON; its settings.yml must list json under search: formats:"
            return Unserved(told, error="key")
        return super().refusal(status, message, path)


class LocalEngine:
    """A local index in the place of the web; each document once, shown by the part that fits the query."""

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
                found[document] = Found(
                    passage.title, passage.url or passage.id, snippet(passage.text, terms), passage.date
                )
        return list(found.values())[:k]

    async def close(self) -> None:
        pass


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""


def _answer_box(box: object) -> list[Found]:
    """The answer that the engine shows above its results."""
    if not isinstance(box, dict):
        return []
    text = _text(box, "answer") or _text(box, "result") or _text(box, "snippet")
    return [Found(_text(box, "title") or "Answer", _text(box, "link"), text, _text(box, "date"))] if text else []
