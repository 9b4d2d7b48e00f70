"""Reads the key-value header of a GGUF file, not the weights behind it.

The `gguf` package maps every array element separately and takes seconds for a vocabulary, which is too long for
`coa inspect --mask`. Tests compare the two. Weights are read by transformers and llama.cpp, never here.

A vocabulary takes more than a tenth of a second here too, at every start of a command that tokenises. So a large header
is kept as JSON in the cache folder of the user, for as long as the file has the same place, size and time. A cache that
cannot be read or written changes nothing.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

import orjson

from coa.errors import CoaError, TokenizerError
from coa.folder import cache_place, write_atomic

_NUMBERS: Final = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING: Final = 8
_ARRAY: Final = 9
_MOST: Final = 1 << 24
"""No vocabulary and no template is this long, so a larger count means a damaged file."""


_KEPT_FROM: Final = 1 << 20
"""Headers of this number of bytes are kept. Smaller ones are read as quickly as the copy would be."""


def read_header(path: Path) -> dict[str, object]:
    """All keys of the header with their values."""
    with _opened(path) as (file, _, keys):
        found = os.fstat(file.fileno())
        place = str(path.resolve())
        identity = [1, place, found.st_size, found.st_mtime_ns]
        copy = cache_place("gguf") / f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:32]}.json"
        if (known := _kept(copy, identity)) is not None:
            return known
        header = dict(_keys(file, keys))
        if file.tell() >= _KEPT_FROM:
            _keep(copy, identity, header)
        return header


def _kept(copy: Path, identity: list[object]) -> dict[str, object] | None:
    """The header of this very file, if a whole copy of it is in the cache."""
    with suppress(OSError, ValueError):
        found = orjson.loads(copy.read_bytes())
        if isinstance(found, dict) and found.get("file") == identity:
            header = found.get("header")
            return header if isinstance(header, dict) else None
    return None


def _keep(copy: Path, identity: list[object], header: dict[str, object]) -> None:
    with suppress(OSError, CoaError, TypeError):
        data = orjson.dumps({"file": identity, "header": header})
        if orjson.loads(data)["header"] == header:  # JSON has no NaN and no infinity
            write_atomic(copy, data)


def read_tensors(path: Path) -> dict[str, tuple[int, ...]]:
    """The sizes of all tensors, by their names."""
    with _opened(path) as (file, tensors, keys):
        for _ in _keys(file, keys):
            pass
        return dict(_tensor(file) for _ in range(tensors))


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int, int]]:
    """The file behind its first numbers, the number of tensors and the number of keys."""
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ValueError("it does not begin with GGUF")
            version, tensors, keys = struct.unpack("<IQQ", _exactly(file, 20))
            if version not in (2, 3):
                raise ValueError(f"its version {version} is not known")
            yield file, tensors, keys
    except (ValueError, OSError, KeyError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path} is not a readable GGUF file: {error}", hint="download it again") from error


def _keys(file: BinaryIO, count: int) -> Iterator[tuple[str, object]]:
    for _ in range(count):
        key = _string(file)
        yield key, _value(file, _number(file, "<I"))


def _tensor(file: BinaryIO) -> tuple[str, tuple[int, ...]]:
    name, dimensions = _string(file), _number(file, "<I")
    sizes = struct.unpack(f"<{dimensions}Q", _exactly(file, 8 * dimensions))
    _exactly(file, 12)  # its type and its place among the weights
    return name, sizes


def _value(file: BinaryIO, kind: int) -> object:
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        return _number(file, _NUMBERS[kind])
    inner, length = struct.unpack("<IQ", _exactly(file, 12))
    if length > _MOST:
        raise ValueError(f"it claims an array of {length} elements")
    if inner in (_STRING, _ARRAY):
        return [_value(file, inner) for _ in range(length)]
    form = _NUMBERS[inner]
    return list(struct.unpack(f"<{length}{form[1]}", _exactly(file, length * struct.calcsize(form))))


def _string(file: BinaryIO) -> str:
    length = _number(file, "<Q")
    if length > _MOST:
        raise ValueError(f"it claims a string of {length} bytes")
    return _exactly(file, length).decode()


def _number(file: BinaryIO, form: str) -> int:
    (value,) = struct.unpack(form, _exactly(file, struct.calcsize(form)))
    return value  # type: ignore[no-any-return]


def _exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise ValueError("it ends too early")
    return data
