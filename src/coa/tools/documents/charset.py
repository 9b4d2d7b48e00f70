"""Bytes -> text, whatever the server says about them."""

from __future__ import annotations

import codecs
import re
from typing import Final

_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_IN_HEADER: Final = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
_IN_PAGE: Final = re.compile(
    rb"<meta[^>]{0,200}charset\s*=\s*[\"']?([\w.:-]+)|<\?xml[^>]{0,100}encoding=[\"']([\w.:-]+)", re.I
)
_GUESSED_FROM: Final = 1 << 16


def decode(body: bytes, declared: str = "") -> str:
    """A mark at the start decides; then, bytes that happen to be valid UTF-8 are UTF-8; then what is declared."""
    for mark, name in _BOMS:
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace")
    named = [name for name in (_of_header(declared), _of_page(body)) if name]
    for name in named:
        if name.startswith(("iso2022", "hz")):  # these look like ASCII, and so like UTF-8
            return body.decode(name, "replace")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        # A page cut or spoiled in one place is still UTF-8; other encodings break at their first letter beyond ASCII.
        if "utf-8" in named and error.start > len(body) // 2:
            return body.decode("utf-8", "replace")
    for name in named:
        try:
            return body.decode(name)
        except (UnicodeDecodeError, LookupError):
            continue
    return _guess(body, named)


def _guess(body: bytes, named: list[str]) -> str:
    from charset_normalizer import from_bytes

    best = from_bytes(body[:_GUESSED_FROM]).best()
    return body.decode(best.encoding if best is not None else next(iter(named), "utf-8"), "replace")


def _of_header(declared: str) -> str | None:
    found = _IN_HEADER.search(declared)
    return _known(found.group(1)) if found else None


def _of_page(body: bytes) -> str | None:
    found = _IN_PAGE.search(body[:4096])
    return _known((found.group(1) or found.group(2)).decode("ascii", "replace")) if found else None


def _known(name: str) -> str | None:
    try:
        found = codecs.lookup(name).name
    except LookupError:
        return None
    # Browsers read these two as their Windows relatives, and pages rely on it.
    return {"iso8859-1": "cp1252", "ascii": "cp1252"}.get(found, found) if _is_text(found) else None


def _is_text(name: str) -> bool:
    """Not one of Python's byte-to-byte codecs, some of which unpack bombs, nor UTF-7, which only smuggles."""
    return getattr(codecs.lookup(name), "_is_text_encoding", True) and name not in ("idna", "punycode", "utf-7")
