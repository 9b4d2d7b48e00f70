"""Which reader a body goes to. Runs in a worker process (worker.py), never in the one that holds the run."""

from __future__ import annotations

from coa.tools.documents.charset import decode
from coa.tools.documents.record import Document
from coa.tools.documents.sniff import Kind, kind_of


def read_document(
    kind: Kind, body: bytes, *, declared: str = "", url: str = "", name: str = "", max_characters: int
) -> Document:
    from coa.tools.documents import office

    match kind:
        case Kind.HTML:
            from coa.tools.documents.html import read_html

            return read_html(decode(body, declared), url)
        case Kind.TEXT:
            return Document(text=decode(body, declared).replace("\r\n", "\n"))
        case Kind.PDF:
            return office.read_pdf(body, max_characters)
        case Kind.DOCX:
            return office.read_docx(body)
        case Kind.XLSX:
            return office.read_xlsx(body)
        case Kind.PPTX:
            return office.read_pptx(body)
        case Kind.ZIP:
            return office.read_zip(body, lambda member, data: _member(member, data, max_characters), max_characters)
        case Kind.IMAGE:
            raise office.Damaged("it is an image; visual_inspector can look at it")
        case Kind.UNKNOWN:
            raise office.Damaged(f"{name or 'it'} is of a kind that has no readable text")


def _member(name: str, body: bytes, max_characters: int) -> Document:
    kind = kind_of(body, "text/html" if name.lower().endswith((".html", ".htm")) else "")
    return read_document(Kind.UNKNOWN if kind is Kind.ZIP else kind, body, name=name, max_characters=max_characters)
