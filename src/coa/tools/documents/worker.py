"""The process that parses: reads jobs from its standard input, answers on its standard output, ends with its parent.

It starts with an empty environment, gives up what it can (memory, files to write, the network where the kernel allows),
and is killed from outside when it takes too long. `pool.py` starts it.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
from contextlib import suppress
from typing import BinaryIO

from coa.tools.documents.record import Document, Job, Reply


def main() -> None:
    confine(int(sys.argv[1]))
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer
    while line := requests.readline():
        job = Job.model_validate_json(line)
        # A backstop for the case that the parent is gone and nobody else will end an endless loop.
        signal.alarm(int(job.seconds) + 5)
        reply = answer(job, requests).model_dump_json().encode()
        signal.alarm(0)
        replies.write(len(reply).to_bytes(8, "big") + reply)
        replies.flush()


def answer(job: Job, requests: BinaryIO) -> Reply:
    body = requests.read(job.size)
    try:
        from coa.tools.documents.reading import read_document
        from coa.tools.documents.sniff import Kind

        found = read_document(
            Kind(job.kind),
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


def confine(memory_bytes: int) -> None:
    logging.disable(logging.CRITICAL)
    for limit, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        _, hard = resource.getrlimit(limit)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with suppress(ValueError, OSError):  # a system that does not know this limit
            resource.setrlimit(limit, (bound, bound))
