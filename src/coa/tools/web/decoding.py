"""Compressed bodies, unpacked piece by piece under a limit: a few kilobytes can expand to gigabytes."""

from __future__ import annotations

import zlib
from typing import Final

ACCEPTED: Final = "gzip, deflate"
"""The encodings that we ask for. Brotli is not among them: it would be one more parser of hostile bytes."""
_FREE: Final = 1 << 20
_RATIO: Final = 100
"""Past the first megabyte. Text is compressed 5 to 20 times; a hundred times is a page made to be a bomb."""


class BadBody(Exception):
    """A body that is too large, a bomb, or not what its headers say."""


class Unpacker:
    """Unpacks one body: `feed` the pieces as they come, then `end`."""

    def __init__(self, encoding: str, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._read = self._made = 0
        self._packed = True
        self._raw_deflate_possible = False
        self._out: list[bytes] = []
        match encoding.strip().lower():
            case "" | "identity":
                self._packed = False
            case "gzip" | "x-gzip":
                self._inflater = zlib.decompressobj(wbits=31)
            case "deflate":
                self._inflater = zlib.decompressobj(wbits=15)
                self._raw_deflate_possible = True
            case other:
                raise BadBody(f"the page is packed as {other[:40]!r}, which was not asked for")

    def feed(self, piece: bytes) -> None:
        self._read += len(piece)
        if self._read > self._max_bytes:
            raise BadBody(f"the page is larger than {self._max_bytes:,} bytes")
        if not self._packed:
            self._keep(piece)
            return
        rest = piece
        while rest and not self._inflater.eof:
            self._keep(self._inflate(rest))
            rest = self._inflater.unconsumed_tail
        # Bytes after the end of the packed data are ignored, as browsers do.

    def end(self) -> bytes:
        if self._packed and self._read and not self._inflater.eof:
            raise BadBody("the packed page is cut short")
        return b"".join(self._out)

    def _inflate(self, piece: bytes) -> bytes:
        try:
            return self._inflater.decompress(piece, 1 << 16)
        except zlib.error as error:
            if not self._raw_deflate_possible or self._made:
                raise BadBody(f"the page cannot be unpacked ({error})") from error
            self._raw_deflate_possible = False
            self._inflater = zlib.decompressobj(wbits=-15)  # "deflate" without its header: common enough
            return self._inflate(piece)

    def _keep(self, piece: bytes) -> None:
        self._made += len(piece)
        if self._made > self._max_bytes:
            raise BadBody(f"the page is larger than {self._max_bytes:,} bytes when unpacked")
        if self._packed and self._made > max(_FREE, _RATIO * self._read):
            raise BadBody(f"the page unpacks to more than {_RATIO} times its size and is refused")
        if piece:
            self._out.append(piece)
