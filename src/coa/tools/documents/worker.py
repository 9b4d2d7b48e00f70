"""Runs in a worker process (`coa.workers`), never in the one that holds the run: reads one document after another."""

from __future__ import annotations

from coa.tools.documents.reading import read_document
from coa.tools.documents.record import Document, Job, Reply
from coa.tools.documents.sniff import FileKind


def answer(request: bytes) -> bytes:
    line, _, body = request.partition(b"\n")
    return _reply(Job.model_validate_json(line), body).model_dump_json().encode()


def _reply(job: Job, body: bytes) -> Reply:
    try:
        found = read_document(
            FileKind(job.kind),
            body,
            declared=job.declared,
            url=job.url,
            name=job.name,
            max_characters=job.max_characters,
        )
        return Reply(document=_within(found, job.max_characters))
    except MemoryError:
        return Reply(error="it needs more memory to read than it is given")
    except ImportError as error:
        return Reply(error=f"reading it needs another package ({error}): pip install 'chain-of-agents[tools]'")
    except Exception as error:  # parsers of hostile bytes raise anything
        told = str(error) if type(error).__name__ == "Damaged" else f"it is damaged ({type(error).__name__}: {error})"
        return Reply(error=told[:300].encode("utf-8", "replace").decode())


def _within(document: Document, most: int) -> Document:
    text = document.text.encode("utf-8", "replace").decode()  # lone surrogates can come out of a PDF
    note = document.note
    if len(text) > most:
        text, note = text[:most], f"{note}; only the first {most:,} characters were read".removeprefix("; ")
    clean = {
        name: value.encode("utf-8", "replace").decode() for name, value in (("title", document.title), ("note", note))
    }
    return document.model_copy(update={"text": text, **clean})
