"""Reads documents, one after another, in a worker process (`coa.workers`), never in the process that holds the run."""

from __future__ import annotations

from coa.tools.documents.charset import decode
from coa.tools.documents.record import Document, Job, Reply
from coa.tools.documents.sniff import FileKind, kind_of


def answer(request: bytes) -> bytes:
    line, _, body = request.partition(b"\n")
    return _reply(Job.model_validate_json(line), body).model_dump_json().encode()


def _reply(job: Job, body: bytes) -> Reply:
    try:
        return Reply(document=_within(_read(job, body), job.max_characters))
    except MemoryError:
        return Reply(error="it needs more memory to read than it is given")
    except ImportError as error:
        return Reply(error=f"reading it needs another package ({error}): coa setup tools")
    except Exception as error:  # parsers of hostile bytes raise anything
        why = str(error) if type(error).__name__ == "Damaged" else f"it is damaged ({type(error).__name__}: {error})"
        return Reply(error=_writable(why[:300]))


def _read(job: Job, body: bytes) -> Document:
    """With the reader for this kind of file. Each reader is imported when it is needed."""
    from coa.tools.documents import office

    match FileKind(job.kind):
        case FileKind.HTML:
            from coa.tools.documents.html import read_html

            return read_html(decode(body, job.declared), job.url)
        case FileKind.TEXT:
            return Document(text=decode(body, job.declared).replace("\r\n", "\n"))
        case FileKind.PDF:
            return office.read_pdf(body, job.max_characters)
        case FileKind.DOCX:
            return office.read_docx(body)
        case FileKind.XLSX:
            return office.read_xlsx(body)
        case FileKind.PPTX:
            return office.read_pptx(body)
        case FileKind.ZIP:
            return office.read_zip(body, lambda name, data: _member(name, data, job.max_characters), job.max_characters)
        case FileKind.IMAGE:
            raise office.Damaged("it is an image; visual_inspector can look at it")
        case FileKind.UNKNOWN:
            raise office.Damaged(f"{job.name or 'it'} is of a kind that has no readable text")


def _member(name: str, body: bytes, max_characters: int) -> Document:
    """A file in an archive. An archive in an archive is not opened."""
    kind = kind_of(body, "text/html" if name.lower().endswith((".html", ".htm")) else "")
    kind = FileKind.UNKNOWN if kind is FileKind.ZIP else kind
    return _read(Job(kind=kind, name=name, max_characters=max_characters), body)


def _within(document: Document, most: int) -> Document:
    text, note = _writable(document.text), document.note
    if len(text) > most:
        text, note = text[:most], f"{note}; only the first {most:,} characters were read".removeprefix("; ")
    return document.model_copy(update={"text": text, "title": _writable(document.title), "note": _writable(note)})


def _writable(text: str) -> str:
    """Lone surrogates, which can come out of a PDF, become question marks."""
    return text.encode("utf-8", "replace").decode()
