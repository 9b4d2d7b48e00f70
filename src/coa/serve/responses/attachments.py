"""Images and files in a request: decoded, checked, and named as files of the task, which the agent's tools can open."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Mapping
from pathlib import PurePath
from typing import Final

from coa.serve.api_error import ApiError, unsupported
from coa.serve.responses.body import FilePart, ImagePart
from coa.tools.documents.sniff import image_type

_DATA_URL: Final = re.compile(r"data:(?P<media>[^,;]*)(?:;[^,;]*)*?(?P<base64>;base64)?,")
_ENDINGS: Final = {"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp"}
_FILE_READERS: Final = ("read_file", "code")
_IMAGE_READER: Final = "visual_inspector"


class Attachments:
    """Those of one conversation. Names stay the same from turn to turn: they are numbered in the order they came."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self._numbers: dict[str, int] = {}
        """The last number that was given to a name."""

    def add(self, part: ImagePart | FilePart, param: str) -> str:
        """Take the part, and return the name of the file that it becomes."""
        content, name = _image(part, param) if isinstance(part, ImagePart) else _file(part, param)
        name = self._free(name)
        self.files[name] = content
        return name

    def _free(self, name: str) -> str:
        path = PurePath(name)
        number, free = self._numbers.get(name, 1), name
        while free in self.files:
            number += 1
            free = f"{path.stem}-{number}{path.suffix}"
        self._numbers[name] = number
        return free


def check_readable(files: Mapping[str, bytes], tools: Collection[str], agent: str, param: str = "input") -> None:
    """Raise ApiError 400 if the agent has no tool that can open one of these files."""
    for name, content in files.items():
        needed = (_IMAGE_READER,) if image_type(content) is not None else _FILE_READERS
        if not any(tool in tools for tool in needed):
            what = "images" if needed == (_IMAGE_READER,) else "files"
            raise ApiError(
                400,
                f"The agent {agent!r} has no tool to open {what}, such as {needed[0]}; {name} cannot be used.",
                code="unsupported_content",
                param=param,
            )


def _image(part: ImagePart, param: str) -> tuple[bytes, str]:
    if part.file_id is not None:
        raise unsupported(f"{param}.file_id", "the server keeps no files; send the image as a data URL")
    if part.image_url is None:
        raise ApiError(400, f"`{param}.image_url` is required.", code="missing_required_parameter", param=param)
    if not part.image_url.startswith("data:"):
        raise unsupported(f"{param}.image_url", "the server fetches no addresses for clients; send a data URL")
    content = _decoded(part.image_url, f"{param}.image_url")
    media = image_type(content)
    if media is None:
        message = f"`{param}.image_url` is not a PNG, JPEG, GIF or WebP image."
        raise ApiError(400, message, code="invalid_image", param=f"{param}.image_url")
    return content, f"image{_ENDINGS[media]}"


def _file(part: FilePart, param: str) -> tuple[bytes, str]:
    if part.file_id is not None:
        raise unsupported(f"{param}.file_id", "the server keeps no files; send the content in `file_data`")
    if part.file_url is not None:
        raise unsupported(f"{param}.file_url", "the server fetches no addresses for clients; use `file_data`")
    if part.file_data is None:
        raise ApiError(400, f"`{param}.file_data` is required.", code="missing_required_parameter", param=param)
    return _decoded(part.file_data, f"{param}.file_data"), _safe(part.filename) or "file.txt"


def _decoded(text: str, param: str) -> bytes:
    """The bytes of a data URL, or of base64 alone."""
    if text.startswith("data:"):
        head = _DATA_URL.match(text[:256])
        if head is None or not head["base64"]:
            raise ApiError(400, f"`{param}` is not a data URL in base64.", code="invalid_value", param=param)
        text = text[head.end() :]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(400, f"`{param}` is not valid base64.", code="invalid_base64", param=param) from None


def _safe(name: str | None) -> str:
    """The last part of the name, without what would be a path or break a line of the prompt."""
    last = re.split(r"[/\\]", name or "")[-1]
    return re.sub(r"[^\w.()+ -]", "_", last).strip(" .")[:100]
