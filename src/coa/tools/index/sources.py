"""The documents of an index: JSONL (also gzipped), Parquet, folders and files of HTML, Markdown and text.

Rows are read one at a time, so the corpus may be larger than memory. A row that cannot be used is counted and named,
and reading continues.
"""

from __future__ import annotations

import gzip
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import orjson

from coa.errors import StoreError, nothing_at
from coa.tools.index.documents import IndexedDocument

log = logging.getLogger(__name__)

PAGES: Final = {".html": "html", ".htm": "html", ".xhtml": "html", ".md": "markdown", ".markdown": "markdown",
                ".txt": "text", ".rst": "text"}  # fmt: skip
TABLES: Final = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".parquet")
NAMED: Final = 5
"""The number of bad rows that are named one by one; all are counted."""
_TEXT: Final = ("text", "contents", "content", "passage", "body")
_ID: Final = ("id", "_id", "docid", "doc_id")
_URL: Final = ("url", "link")
_DATE: Final = ("date", "published")


class Unusable(Exception):
    """Why a row is left out."""


@dataclass
class Sources:
    """The documents of several files and folders, and counts of what was read and left out so far."""

    paths: Sequence[Path]
    base_url: str = ""
    """The address of a page in a folder is this and its path."""
    read_bytes: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    """The number of rows that were left out, by reason."""

    def __post_init__(self) -> None:
        self.files = [file for path in self.paths for file in _files(Path(path))]
        if not self.files:
            hint = f"give files ending in {', '.join(TABLES)}, or a folder with {', '.join(PAGES)} files"
            raise StoreError(f"nothing to index in {', '.join(map(str, self.paths))}", hint=hint)
        self.total_bytes = sum(file.stat().st_size for _, file in self.files)

    def __iter__(self) -> Iterator[IndexedDocument]:
        for root, file in self.files:
            before = self.read_bytes
            if file.suffix in PAGES:
                yield from self._page(root, file)
            elif file.suffix == ".parquet":
                yield from self._parquet(file, before)
            else:
                yield from self._jsonl(file, before)
            self.read_bytes = before + file.stat().st_size

    def _jsonl(self, file: Path, before: int) -> Iterator[IndexedDocument]:
        with file.open("rb") as raw:
            lines: Iterable[bytes] = gzip.GzipFile(fileobj=raw) if file.suffix == ".gz" else raw
            number = 0
            try:
                for number, line in enumerate(lines, 1):
                    if not line.strip():
                        continue
                    try:
                        row = orjson.loads(line)
                        if not isinstance(row, dict):
                            raise Unusable("it is not a JSON object")
                        yield document_of(row, f"{file.name}:{number}")
                    except orjson.JSONDecodeError as error:
                        self._leave_out(f"{file}, line {number}", "it is not JSON", str(error))
                    except Unusable as error:
                        self._leave_out(f"{file}, line {number}", str(error))
                    if number % 1024 == 0:
                        self.read_bytes = before + raw.tell()
            except (OSError, EOFError) as error:
                self._leave_out(f"{file}, after line {number}", "the file cannot be read to its end", str(error))

    def _parquet(self, file: Path, before: int) -> Iterator[IndexedDocument]:
        import pyarrow as pa
        from pyarrow import parquet

        size, number = file.stat().st_size, 0
        try:
            table = parquet.ParquetFile(file)
            rows = max(table.metadata.num_rows, 1)
            for batch in table.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    try:
                        yield document_of(row, f"{file.name}:{number}")
                    except Unusable as error:
                        self._leave_out(f"{file}, row {number}", str(error))
                self.read_bytes = before + size * number // rows
        except (pa.ArrowException, OSError) as error:
            self._leave_out(f"{file}, after row {number}", "the file cannot be read to its end", str(error))

    def _page(self, root: Path, file: Path) -> Iterator[IndexedDocument]:
        place = file.relative_to(root).as_posix() if root != file else file.name
        try:
            raw = file.read_bytes()
            title, text, date, url = _READERS[PAGES[file.suffix]](raw)
            if not text.strip():
                raise Unusable("it has no text")
            url = url or (self.base_url.rstrip("/") + "/" + place if self.base_url else "")
            yield IndexedDocument(place, title or file.stem, text, url, date)
        except OSError as error:
            self._leave_out(str(file), "the file cannot be read", str(error.strerror))
        except Unusable as error:
            self._leave_out(str(file), str(error))

    def _leave_out(self, where: str, reason: str, detail: str = "") -> None:
        self.bad[reason] += 1
        if self.bad.total() <= NAMED:
            log.warning("left out %s: %s%s", where, reason, f" ({detail})" if detail else "")
        elif self.bad.total() == NAMED + 1:
            log.warning("more is left out; the counts follow at the end")


def _files(path: Path) -> Iterator[tuple[Path, Path]]:
    """Pairs of the folder in which a file was found, and the file."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            relative = file.relative_to(path)
            if any(part.startswith(".") for part in relative.parts) or not file.is_file():
                continue
            if file.suffix in PAGES or file.name.endswith(TABLES):
                yield path, file
    elif not path.exists():
        raise nothing_at(path)
    elif path.suffix in PAGES or path.name.endswith(TABLES):
        yield path, path
    else:
        hint = f"use one of {', '.join(TABLES)}, {', '.join(PAGES)}, or a folder"
        raise StoreError(f"{path} is of no known kind", hint=hint)


def document_of(row: Mapping[str, Any], otherwise: str) -> IndexedDocument:
    """The document in a row of any common shape. Retrieval corpora have `contents` with the title in the first line."""
    name = next((name for name in _TEXT if row.get(name) is not None), None)
    if name is None:
        raise Unusable(f"it has none of the fields {', '.join(_TEXT)}")
    text, title = row[name], row.get("title")
    if not isinstance(text, str) or not isinstance(title, str | None):
        raise Unusable("its text or title is not a string")
    if title is None and name == "contents" and "\n" in text:
        title, text = text.split("\n", 1)
        title = title.strip().strip('"')
    if not (text.strip() or title):
        raise Unusable("its text is empty")
    return IndexedDocument(_first(row, _ID) or otherwise, title or "", text, _first(row, _URL), _first(row, _DATE))


def _first(row: Mapping[str, Any], names: Sequence[str]) -> str:
    return str(next((row[name] for name in names if row.get(name) is not None), ""))


_Page = tuple[str, str, str, str]


def _html(raw: bytes) -> _Page:
    """The main text, found by trafilatura; of a page that is too small for that, all text."""
    try:
        import trafilatura
    except ImportError as error:
        raise StoreError("reading HTML needs trafilatura", needs=["tools"]) from error
    found: Any = trafilatura.bare_extraction(raw, with_metadata=True, include_comments=False)
    everything = _AllText()
    everything.feed(raw.decode("utf-8", "replace"))
    if found is None or not (found.text or "").strip():
        return everything.title, " ".join(everything.words), "", ""
    return found.title or everything.title, found.text, found.date or "", found.url or ""


class _AllText(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.title = ""
        self._inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in ("script", "style", "title"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._inside:
            self._inside.remove(tag)

    def handle_data(self, data: str) -> None:
        if "title" in self._inside:
            self.title += data.strip()
        elif not self._inside:
            self.words += data.split()


def _markdown(raw: bytes) -> _Page:
    text = raw.decode("utf-8", "replace")
    heading = next((line for line in text.splitlines() if line.startswith("#")), "")
    return heading.lstrip("#").strip(), text, "", ""


def _text(raw: bytes) -> _Page:
    return "", raw.decode("utf-8", "replace"), "", ""


_READERS: Final = {"html": _html, "markdown": _markdown, "text": _text}
