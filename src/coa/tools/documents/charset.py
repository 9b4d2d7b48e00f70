"""From bytes to text, whatever the server declares about them."""

from __future__ import annotations

import codecs
import re
from typing import Final

_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip
_IN_HEADER: Final = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
_IN_PAGE: Final = re.compile(
    rb"<meta[^>]{0,200}charset\s*=\s*[\"']?([\w.:-]+)|<\?xml[^>]{0,100}encoding=[\"']([\w.:-]+)", re.I
)
_GUESSED_FROM: Final = 1 << 16


def decode(body: bytes, declared: str = "") -> str:
    """A byte order mark decides; else bytes that are valid UTF-8 are UTF-8; else the declared charset counts."""
    for mark, name in _BOMS:
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace")
    in_header, in_page = _IN_HEADER.search(declared), _IN_PAGE.search(body[:4096])
    written = [in_header.group(1)] if in_header else []
    written += [(in_page.group(1) or in_page.group(2)).decode("ascii", "replace")] if in_page else []
    named = [name for name in map(_known, written) if name]
    for name in named:
        if name.startswith(("iso2022", "hz")):  # these look like ASCII, and so like UTF-8
            return body.decode(name, "replace")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        # A page that is damaged in one place is still UTF-8; other encodings fail at their first letter beyond ASCII.
        if "utf-8" in named and error.start > len(body) // 2:
            return body.decode("utf-8", "replace")
    for name in named:
        try:
            return body.decode(name)
        except (UnicodeDecodeError, LookupError):
            continue
    from charset_normalizer import from_bytes

    best = from_bytes(body[:_GUESSED_FROM]).best()
    return body.decode(best.encoding if best is not None else next(iter(named), "utf-8"), "replace")


def _known(name: str) -> str | None:
    """Python's name of the charset; None for an unknown one.

    None also for Python's byte-to-byte codecs, some of which unpack bombs, and for UTF-7, which only smuggles.
    """
    try:
        codec = codecs.lookup(name)
    except LookupError:
        return None
    if not getattr(codec, "_is_text_encoding", True) or codec.name in ("idna", "punycode", "utf-7"):
        return None
    # Browsers read these two as the Windows charset, and pages rely on it.
    return {"iso8859-1": "cp1252", "ascii": "cp1252"}.get(codec.name, codec.name)
