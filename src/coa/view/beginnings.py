"""The first JSON values of a file, without reading the rest of it.

Small files are read as the importers read them. Of a large file only the beginning is read: its first lines, or, where
it is one large document, what its first bytes say, with the open brackets closed. That is enough to distinguish
formats, because they differ in their first keys. A large document whose beginning does not say what it is has to be
read whole, up to a limit.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, cast

import orjson

from coa.distill.importers.json_files import Bad, values

_SMALL: Final = 1 << 20
"""Size in bytes up to which a file is simply read."""
_HEAD: Final = 1 << 16
MOST_BYTES: Final = 32 << 20
"""The most that is read of a file to find out what it is."""
LOOKED_AT: Final = 50
"""Number of values of a file after which nothing is expected of it any more."""
_TOKENS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["\[\]{},]', re.DOTALL)
_CLOSING: Final = {b"{": b"}", b"[": b"]"}


def first_values(path: Path) -> Iterator[object]:
    """The first JSON values of a file, or `Bad` for what is not JSON; of a large document perhaps only a part.

    May raise OSError. A value may come twice, first in part and then as a whole.
    """
    if path.stat().st_size <= _SMALL:
        yield from (value for _, value in islice(values(path), LOOKED_AT))
        return
    with _opened(path) as file:
        head = file.read(_HEAD).removeprefix(b"\xef\xbb\xbf")
    first, complete, _ = head.partition(b"\n")
    if not complete or isinstance(_parsed(first), Bad):
        begun = closed(head)
        if begun is not None:
            yield begun
    yield from _lines(path)


def closed(head: bytes) -> object:
    """The JSON value that begins like this, up to its last complete member; None if there is no such thing.

    >>> closed(b'{"a": [1, {"b": 2, "c": "thr')
    {'a': [1, {'b': 2}]}
    """
    stack, end, open_at_end = b"", 0, b""
    for found in _TOKENS.finditer(head):
        token = found.group()
        if token == b'"':
            break
        if token in _CLOSING:
            stack += token
        elif token in (b"}", b"]"):
            stack = stack[:-1]
            if not stack:
                end, open_at_end = found.end(), b""
                break
        elif token == b",":
            end, open_at_end = found.start(), stack
    value = _parsed(head[:end] + b"".join(_CLOSING[bytes([one])] for one in reversed(open_at_end)))
    return None if isinstance(value, Bad) else value


def _lines(path: Path) -> Iterator[object]:
    """The values of the first lines, or of the whole document, as far as the limit allows."""
    left, bad = MOST_BYTES, False
    with _opened(path) as file:
        for _ in range(LOOKED_AT):
            line = file.readline(left).removeprefix(b"\xef\xbb\xbf")
            left -= len(line)
            if not line or left <= 0:
                break
            if line.strip():
                value = _parsed(line)
                bad = bad or isinstance(value, Bad)
                yield value
        if not bad and line:
            return
        file.seek(0)
        whole = file.read(MOST_BYTES + 1)
    if len(whole) > MOST_BYTES:
        yield Bad("", f"nothing in its first {MOST_BYTES >> 20} MB says what it is")
    else:
        yield _parsed(whole)


def _opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


def _parsed(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return Bad("", f"not valid JSON: {error}")
