"""`crawl_page` for one site: the pages of a single server, by short addresses, shown as bare facts.

It is for worlds that are served on this machine. The guard is opened for exactly that host and port, and nothing else
is fetched, not even public pages: what a model in training makes up never leaves the machine. Addresses are relative
(`k/Velrick`) or have the site's name (`http://atlas/k/Velrick`), whatever port the server uses. A page is shown as its
main part, with a line for each row or paragraph. It is parsed in this process, since these pages are trusted.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Final

from pydantic import JsonValue
from yarl import URL

from coa.errors import ToolError
from coa.tools.base import Observation, ToolContext
from coa.tools.web.fetch import Fetcher, FetchFailed, FetchRules
from coa.tools.web.guard import AllowList, Refused
from coa.trajectory import Form, Shape

_AT_ONCE: Final = 5
_MAX_BYTES: Final = 256 << 10
_SITE: Final = re.compile(r"(?P<name>[\w.-]+)@(?P<origin>[\w.\-\[\]:]+:\d+)")
_SCHEME: Final = re.compile(r"https?://([^/]*)/?", re.IGNORECASE)


class SitePages:
    about = "opens pages of the site by address and gets what they say."
    shape = Shape(form=Form.LIST)
    uses = ()
    timeout_s = 30.0

    def __init__(self, name: str, origin: str, *, edition: str = "", fetcher: Fetcher | None = None) -> None:
        self.name = name
        self._base = URL(f"http://{origin}/")
        self._fetcher = fetcher or Fetcher(FetchRules(allowed=AllowList.parse([origin]), max_bytes=_MAX_BYTES))
        # Without the port: the same pages are served on any.
        self.settings: JsonValue = {"site": name, "edition": edition}

    async def call(self, arguments: Mapping[str, JsonValue], context: ToolContext) -> Observation:
        items = arguments.get("items")
        given = [str(item) for item in items] if isinstance(items, list) else [str(items or "")]
        asked = list(dict.fromkeys(item.strip().strip("<>\"'`").strip() for item in given))[:_AT_ONCE]
        answers = await asyncio.gather(*(self._page(address) for address in asked))
        texts = [text for text, _ in answers]
        if len(asked) > 1:
            texts = [f"{address}\n{text}" for address, text in zip(asked, texts, strict=True)]
        pages: list[JsonValue] = [
            {"url": address, **({} if ok else {"error": text})}
            for address, (text, ok) in zip(asked, answers, strict=True)
        ]
        return Observation("\n".join(texts), ok=any(ok for _, ok in answers), meta={"pages": pages})

    async def close(self) -> None:
        await self._fetcher.close()

    async def _page(self, address: str) -> tuple[str, bool]:
        path = self._path(address)
        if path is None:
            return f"error: only pages of {self.name} can be opened", False
        try:
            fetched = await self._fetcher.get(str(self._base.with_path(f"/{path}")))
        except FetchFailed as error:
            return f"error: no page {path}" if error.status == 404 else f"error: {error}", False
        except Refused as error:
            return f"error: {error}", False
        return facts(fetched.body.decode("utf-8", "replace")) or "error: the page is empty", True

    def _path(self, address: str) -> str | None:
        """The path on this site; None for an address of another site."""
        if found := _SCHEME.match(address):
            host = found.group(1).lower()
            return address[found.end() :] if host in (self.name, self._base.authority) else None
        return address.removeprefix(f"{self.name}/").lstrip("/")


def open_site(options: Mapping[str, str]) -> SitePages:
    """`site=NAME@HOST:PORT`; `edition` distinguishes states of the site in a cache."""
    found = _SITE.fullmatch(options["site"])
    if others := sorted(set(options) - {"site", "edition"}):
        raise ToolError(f"crawl_page: {others[0]} has no meaning with site", hint="leave it out")
    if found is None:
        raise ToolError(f"crawl_page: site={options['site']} is not of the form NAME@HOST:PORT")
    try:
        return SitePages(found["name"], found["origin"], edition=options.get("edition", ""))
    except ValueError as error:
        raise ToolError(f"crawl_page: {error}", hint="write for instance site=atlas@127.0.0.1:8080") from error


def facts(html: str) -> str:
    """The text of the page's main part, without its heading."""
    reader = _FactsParser()
    reader.feed(html)
    reader.close()
    return "\n".join(reader.lines)


class _FactsParser(HTMLParser):
    """The cells of a row become one line, separated by colons; a paragraph or a list entry becomes another."""

    _LINES: Final = frozenset({"p", "li", "tr"})
    _SILENT: Final = frozenset({"script", "style", "title", "nav", "footer", "header", "h1"})

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._cells: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self._SILENT:
            self._silent += 1
        elif tag in self._LINES:
            self._end()
        if tag in ("th", "td") or not self._cells:
            self._cells.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._SILENT:
            self._silent = max(0, self._silent - 1)
        elif tag in self._LINES:
            self._end()

    def handle_data(self, data: str) -> None:
        if not self._silent:
            if not self._cells:
                self._cells.append("")
            self._cells[-1] += data

    def close(self) -> None:
        super().close()
        self._end()

    def _end(self) -> None:
        cells = [" ".join(cell.split()) for cell in self._cells]
        if line := ": ".join(cell for cell in cells if cell):
            self.lines.append(line)
        self._cells = []
