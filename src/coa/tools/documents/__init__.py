"""Text of pages and files of any origin, read in a separate process that may hang, crash or swell without harm.

`Parsers` is the pool of those worker processes; a failure there becomes an `Unreadable` here.
"""

from __future__ import annotations

import atexit
import os
from functools import cache
from typing import Final

from coa.tools.documents.record import Document, Job, Reply
from coa.tools.documents.sniff import FileKind
from coa.workers import WorkerLost, WorkerPool

__all__ = ["Document", "Parsers", "Unreadable", "shared_parsers"]

_MAX_CHARACTERS: Final = 2_000_000


class Unreadable(Exception):
    """There is no text; the message says why, for the model to read."""


class Parsers:
    def __init__(self, *, processes: int | None = None, seconds: float = 20.0, memory_bytes: int = 1536 << 20) -> None:
        self._seconds = seconds
        processes = processes or max(min((os.cpu_count() or 2), 8), 2)
        worker = "coa.tools.documents.worker"
        self.pool = WorkerPool(worker, processes=processes, timeout_s=seconds, memory_bytes=memory_bytes)

    async def read(self, kind: FileKind, body: bytes, *, declared: str = "", url: str = "", name: str = "") -> Document:
        job = Job(kind=kind, declared=declared, url=url, name=name, max_characters=_MAX_CHARACTERS)
        try:
            reply = Reply.model_validate_json(await self.pool.ask(job.model_dump_json().encode() + b"\n" + body))
        except WorkerLost as lost:
            late = f"it took more than {self._seconds:g} seconds to read"
            raise Unreadable(late if lost.late else "the parser crashed on it") from lost
        if reply.document is None:
            raise Unreadable(reply.error)
        return reply.document

    def close(self) -> None:
        self.pool.close()


@cache
def shared_parsers() -> Parsers:
    """The pool that all tools of this process share."""
    parsers = Parsers()
    atexit.register(parsers.close)
    return parsers
