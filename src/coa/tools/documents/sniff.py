"""The kind of a file: by its first bytes, else by what its server declares. Servers and file names can be wrong."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class FileKind(StrEnum):
    HTML = "html"
    TEXT = "text"
    """Plain text of any sort: Markdown, JSON, CSV, XML, source."""
    PDF = "pdf"
    DOCX = "docx"
    XLSX = "xlsx"
    PPTX = "pptx"
    ZIP = "zip"
    IMAGE = "image"
    UNKNOWN = "unknown"


_IMAGES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"), (b"GIF89a", "image/gif"),
)  # fmt: skip
_TEXT_TYPES: Final = ("json", "xml", "javascript", "yaml", "toml", "csv", "x-sh", "sql", "rtf")
_OFFICE: Final = ((b"word/", FileKind.DOCX), (b"xl/", FileKind.XLSX), (b"ppt/", FileKind.PPTX))
_HTML_OPENINGS: Final = (b"<!doctype html", b"<html", b"<head", b"<body", b"<title", b"<!--")


def image_type(body: bytes) -> str | None:
    """The media type of an image that vision models accept, or None."""
    if body[:4] == b"RIFF" and body[8:12] == b"WEBP":
        return "image/webp"
    return next((media for magic, media in _IMAGES if body.startswith(magic)), None)


def kind_of(body: bytes, declared: str = "") -> FileKind:
    """`declared` is a media type such as `text/html; charset=utf-8`, or nothing."""
    media = declared.partition(";")[0].strip().lower()
    if body[:1024].lstrip().startswith(b"%PDF-"):
        return FileKind.PDF
    if body.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _archive(body)
    if image_type(body) is not None:
        return FileKind.IMAGE
    if not _looks_like_text(body):
        return FileKind.UNKNOWN
    if media in ("text/html", "application/xhtml+xml"):
        return FileKind.HTML
    start = body[:1024].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if start.startswith(_HTML_OPENINGS) and media in ("", "text/plain", "application/octet-stream", "text/xml"):
        return FileKind.HTML
    if not media or media.startswith("text/") or any(word in media for word in _TEXT_TYPES):
        return FileKind.TEXT
    return FileKind.TEXT if media == "application/octet-stream" else FileKind.UNKNOWN


def _archive(body: bytes) -> FileKind:
    """Office files are ZIP archives that contain the names of their parts uncompressed."""
    if b"[Content_Types].xml" not in body:
        return FileKind.ZIP
    return next((kind for part, kind in _OFFICE if b"PK" in body and part in body), FileKind.ZIP)


def _looks_like_text(body: bytes) -> bool:
    """Text has no NUL, except in UTF-16 and UTF-32, which begin with a byte order mark."""
    start = body[:4096]
    if start.startswith((b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")):
        return True
    controls = sum(byte < 9 or 13 < byte < 27 or 27 < byte < 32 for byte in start)
    return b"\x00" not in start and controls <= len(start) // 50
