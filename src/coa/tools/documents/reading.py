"""Which reader a body goes to. Runs in a worker process (worker.py), never in the one that holds the run."""

from __future__ import annotations

from coa.tools.documents.charset import decode
from coa.tools.documents.record import Document
from coa.tools.documents.sniff import FileKind, kind_of


def read_document(
    kind: FileKind, body: bytes, *, declared: str = "", url: str = "", name: str = "", max_characters: int
) -> Document:
    from coa.tools.documents import office

    match kind:
        case FileKind.HTML:
            from coa.tools.documents.html import read_html

            return read_html(decode(body, declared), url)
        case FileKind.TEXT:
            return Document(text=decode(body, declared).replace("\r\n", "\n"))
        case FileKind.PDF:
            return office.read_pdf(body, max_characters)
        case FileKind.DOCX:
            return office.read_docx(body)
        case FileKind.XLSX:
            return office.read_xlsx(body)
        case FileKind.PPTX:
            return office.read_pptx(body)
        case FileKind.ZIP:
            return office.read_zip(body, lambda member, data: _member(member, data, max_characters), max_characters)
        case FileKind.IMAGE:
            raise office.Damaged("it is an image; visual_inspector can look at it")
        case FileKind.UNKNOWN:
            raise office.Damaged(f"{name or 'it'} is of a kind that has no readable text")


def _member(name: str, body: bytes, max_characters: int) -> Document:
    kind = kind_of(body, "text/html" if name.lower().endswith((".html", ".htm")) else "")
    return read_document(
        FileKind.UNKNOWN if kind is FileKind.ZIP else kind, body, name=name, max_characters=max_characters
    )
