"""Which bytes a vocabulary entry spells, for the two ways in which tokenizers represent bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def speller(decoder: dict[str, Any] | None) -> Callable[[str], bytes | None] | None:
    """A function from entry to bytes, from the decoder of a `tokenizer.json`; None if an entry does not decide."""
    parts = list(_parts(decoder))
    kinds = {part["type"] for part in parts}
    if "ByteLevel" in kinds:
        return _byte_level
    blanks = [str(part["replacement"]) for part in parts if part["type"] == "Metaspace"]
    blanks += [str(part["pattern"].get("String")) for part in parts if part["type"] == "Replace"]
    if not blanks:
        return None
    fallback = "ByteFallback" in kinds

    def sentence_piece(name: str) -> bytes | None:
        if fallback and (byte := _BYTE.fullmatch(name)):
            return bytes([int(byte.group(1), 16)])
        return name.replace(blanks[0], " ").encode()

    return sentence_piece


def _parts(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if decoder is None:
        return
    yield decoder
    for part in decoder.get("decoders", ()):
        yield from _parts(part)


def _stand_ins() -> dict[str, int]:
    """Byte-level BPE writes each byte as a printable character: the byte itself, or the next free one from 256 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES: Final = _stand_ins()


def _byte_level(name: str) -> bytes | None:
    try:
        return bytes(_BYTES[char] for char in name)
    except KeyError:  # the entry does not represent bytes, so no text produces it
        return None
