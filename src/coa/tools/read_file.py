"""`read_file`: the text of a file that belongs to the task: tables, documents, slides, PDF, source, archives."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import PurePath
from typing import Final

from pydantic import JsonValue

from coa.errors import ToolError
from coa.tools.base import Observation, Part, ToolContext
from coa.tools.documents import Unreadable, shared_parsers
from coa.tools.documents.sniff import kind_of
from coa.tools.task_files import NoSuchFile, TaskFiles
from coa.trajectory import Form, Shape
from coa.trajectory.shapes import ArgumentField, FieldType

_PIECE: Final = 16_000


class ReadFile:
    about = "reads a file of the task: csv, xlsx, docx, pptx, pdf, zip, html, or any kind of text."
    shape = Shape(
        form=Form.JSON,
        fields={
            "file_path": ArgumentField(about="the task's own file"),
            "start": ArgumentField(type=FieldType.INTEGER, required=False, about="character to go on from"),
        },
    )
    timeout_s = 60.0
    uses = (Part.FILES,)

    def __init__(self, files: TaskFiles | None = None, *, max_characters: int = _PIECE) -> None:
        self._files = files or TaskFiles()
        self._max_characters = max_characters

    async def fingerprint(self, arguments: Mapping[str, JsonValue], context: ToolContext) -> str:
        name = str(arguments.get("file_path", ""))
        return await asyncio.to_thread(self._files.fingerprint, context, name)

    async def call(self, arguments: Mapping[str, JsonValue], context: ToolContext) -> Observation:
        start = arguments.get("start", 0)
        try:
            name, body = await asyncio.to_thread(self._files.read, context, str(arguments.get("file_path", "")))
            declared = "text/html" if PurePath(name).suffix.lower() in (".html", ".htm") else ""
            kind = kind_of(body, declared)
            document = await shared_parsers().read(kind, body, name=PurePath(name).name, declared=declared)
        except (NoSuchFile, Unreadable) as error:
            return Observation(f"error: {error}", ok=False, meta={"error": type(error).__name__})
        first = max(start, 0) if isinstance(start, int) else 0
        piece = document.text[first : first + self._max_characters]
        lines = [f"file: {name} ({kind}, {len(body):,} bytes)"]
        if document.note:
            lines.append(f"note: {document.note}")
        if not piece:
            lines.append("it is empty" if not document.text else f"it ends at character {len(document.text):,}")
        lines.append(piece)
        if first or first + len(piece) < len(document.text):
            end = first + len(piece)
            more = f'; go on with "start": {end}' if end < len(document.text) else ""
            lines.append(f"[characters {first:,} to {end:,} of {len(document.text):,}{more}]")
        return Observation("\n".join(lines), meta={"bytes": len(body), "kind": kind.value})


def open_read_file(setting: str | None, environment: Mapping[str, str]) -> ReadFile:
    """The setting is the folder with the files of the tasks."""
    files = TaskFiles(setting) if setting else TaskFiles.from_environment(environment)
    if not files.root.is_dir():
        raise ToolError(f"read_file: there is no folder {files.root}", hint="--tool read_file=FOLDER")
    return ReadFile(files)
