"""Text of PDF, Word, Excel, PowerPoint and ZIP files, with a direct reader for each (docs/decisions/0016)."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from coa.tools.documents.record import Document

_UNPACKED: Final = 256 << 20
_RATIO: Final = 200
_MEMBERS: Final = 1_000
_PAGES: Final = 500


class Damaged(Exception):
    """The file cannot be read; the message says why."""


def check_archive(body: bytes) -> zipfile.ZipFile:
    """Open an archive whose declared sizes are acceptable; `zipfile` unpacks no more than is declared."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(body))
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise Damaged(f"it is not a readable ZIP archive ({error})") from error
    members = archive.infolist()
    if len(members) > 10 * _MEMBERS:
        raise Damaged(f"the archive has {len(members):,} members, more than is read")
    unpacked = sum(member.file_size for member in members)
    if unpacked > _UNPACKED or unpacked > max(_RATIO * len(body), 8 << 20):
        raise Damaged(f"the archive unpacks to {unpacked:,} bytes from {len(body):,} and is refused")
    return archive


def read_pdf(body: bytes, max_characters: int) -> Document:
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, PyPdfError

    try:
        reader = PdfReader(io.BytesIO(body))
        if reader.is_encrypted and not reader.decrypt(""):
            raise Damaged("the PDF is locked with a password")
        pages, length = [], 0
        count = len(reader.pages)
        for number, page in enumerate(reader.pages, start=1):
            text = (page.extract_text() or "").strip()
            pages.append(f"[page {number}]\n{text}")
            length += len(text)
            if number == _PAGES or length > max_characters:
                break
        title = str(reader.metadata.title or "") if reader.metadata is not None else ""
    except DependencyError as error:
        raise Damaged(f"the PDF is encrypted in a way that needs another package ({error})") from error
    except (PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OSError) as error:
        raise Damaged(f"the PDF is damaged ({type(error).__name__}: {error})") from error
    note = "" if length else "the PDF has no text layer; its pages are images"
    if len(pages) < count:
        note = f"only the first {len(pages)} of {count} pages were read"
    return Document(text="\n\n".join(pages) if length else "", title=" ".join(title.split())[:200], note=note)


def read_docx(body: bytes) -> Document:
    from docx import Document as open_docx
    from docx.table import Table

    check_archive(body)
    document = open_docx(io.BytesIO(body))
    parts: list[str] = []
    for block in document.iter_inner_content():
        if isinstance(block, Table):
            parts.append(_table([cell.text for cell in row.cells] for row in block.rows))
        elif block.text.strip():
            style = (block.style.name or "") if block.style is not None else ""
            parts.append(f"# {block.text}" if style.startswith(("Heading", "Title")) else block.text)
    return Document(text="\n\n".join(parts), title=document.core_properties.title or "")


def read_xlsx(body: bytes) -> Document:
    """The values that Excel last computed, sheet by sheet, as CSV; including hidden sheets."""
    from openpyxl import load_workbook

    check_archive(body)
    book = load_workbook(io.BytesIO(body), read_only=True, data_only=True)
    parts = []
    for sheet in book.worksheets:
        rows = [["" if value is None else str(value) for value in row] for row in sheet.iter_rows(values_only=True)]
        while rows and not any(rows[-1]):
            rows.pop()
        parts.append(f"# sheet {sheet.title}\n{_table(rows) if rows else '(empty)'}")
    return Document(text="\n\n".join(parts))


def read_pptx(body: bytes) -> Document:
    from pptx import Presentation

    check_archive(body)
    show = Presentation(io.BytesIO(body))
    parts = []
    for number, slide in enumerate(show.slides, start=1):
        lines = [text for shape in slide.shapes for text in _shape_texts(shape)]
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            notes = slide.notes_slide.notes_text_frame.text.strip()
            lines += [f"notes: {notes}"] if notes else []
        parts.append(f"[slide {number}]\n" + "\n".join(lines))
    return Document(text="\n\n".join(parts), title=show.core_properties.title or "")


def read_zip(body: bytes, read_member: Callable[[str, bytes], Document], max_characters: int) -> Document:
    """The list of members, then their text where they have any. Archives inside it are listed but not opened."""
    archive = check_archive(body)
    members = [member for member in archive.infolist() if not member.is_dir()]
    shown = members[:_MEMBERS]
    parts = ["\n".join(f"{member.filename} ({member.file_size:,} bytes)" for member in shown)]
    length = len(parts[0])
    for member in shown:
        if length > max_characters:
            break
        if member.filename.lower().endswith(".zip"):
            continue
        try:
            text = read_member(member.filename, archive.read(member)).text
        except Exception as error:  # one bad member must not hide the others
            text = f"(cannot be read: {error})"
        parts.append(f"# {member.filename}\n{text}")
        length += len(parts[-1])
    note = f"only the first {_MEMBERS:,} of {len(members):,} members are listed" if len(members) > _MEMBERS else ""
    return Document(text="\n\n".join(parts), note=note)


def _shape_texts(shape: object) -> Iterator[str]:
    """The text of a shape on a slide, including groups and tables."""
    for inner in getattr(shape, "shapes", ()):
        yield from _shape_texts(inner)
    if getattr(shape, "has_table", False):
        yield _table([cell.text for cell in row.cells] for row in shape.table.rows)  # type: ignore[attr-defined]
    text = shape.text_frame.text.strip() if getattr(shape, "has_text_frame", False) else ""  # type: ignore[attr-defined]
    if text:
        yield text


def _table(rows: Iterable[list[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().rstrip("\n")
