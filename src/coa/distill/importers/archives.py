"""The samples in a log of Inspect that is a zip archive (`.eval`).

Its entries are compressed with Zstandard, which Python reads from version 3.14 on. Arrow reads it everywhere.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import pyarrow as pa

DAMAGED: Final = (
    zipfile.BadZipFile,
    pa.ArrowException,
    NotImplementedError,
    zlib.error,
    EOFError,
    struct.error,
    OSError,
)
_ZSTD: Final = 93
_LOCAL_HEADER: Final = struct.Struct("<26xHH")
"""Of an entry, before its data: 30 bytes, the last of which are the lengths of its name and of its extra field."""
_MOST_BYTES: Final = 1 << 30


def samples(path: Path) -> Iterator[tuple[str, bytes | None]]:
    """Name and content of each sample; None for one that is spread over several entries."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            folder, _, name = entry.filename.partition("/")
            if folder == "samples" and name.endswith("/sample.json"):
                yield entry.filename, None
            elif folder == "samples" and "/" not in name and name.endswith(".json"):
                yield entry.filename, _content(file, archive, entry)


def _content(file: IO[bytes], archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    if entry.file_size > _MOST_BYTES:
        raise zipfile.BadZipFile(f"{entry.filename} has more than {_MOST_BYTES >> 30} GiB")
    if entry.compress_type != _ZSTD:
        return archive.read(entry)
    file.seek(entry.header_offset)
    name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    file.seek(name + extra, 1)
    data = file.read(entry.compress_size)
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        content: bytes = stream.read(entry.file_size + 1)
    if zlib.crc32(content) != entry.CRC:
        raise zipfile.BadZipFile(f"the content of {entry.filename} does not match its checksum")
    return content
