"""The parent's side of the workers: a few processes, reused while they behave, killed when they do not.

Threads wait for them, not the event loop, so that one pool serves any number of loops, one after another.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final

from pydantic import ValidationError

from coa.tools.documents.record import Document, Job, Reply
from coa.tools.documents.sniff import Kind

_JOBS_EACH: Final = 500
"""After so many a worker is replaced: parsers leak."""
_LARGEST_REPLY: Final = 64 << 20
_START: Final = (
    # CLONE_NEWUSER | CLONE_NEWNET: an empty network, so that no parser can be talked into fetching what a document
    # names. Not every system allows it, and none once there are threads, which imports make: hence before them.
    "import ctypes; getattr(ctypes.CDLL(None), 'unshare', id)(0x50000000)\n"
    "from coa.tools.documents.worker import main; main()"
)


class Unreadable(Exception):
    """No text could be had; the message says why, for the model to read."""


class _Worker:
    def __init__(self, memory_bytes: int) -> None:
        self.jobs = 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Nothing of ours: no keys. The path is needed to find this very package wherever it was imported from.
            env={"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry), "LC_ALL": "C.UTF-8"},
            cwd="/",
        )

    def ask(self, job: Job, body: bytes) -> Reply | None:
        """None where the process ended instead of answering."""
        self.jobs += 1
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(job.model_dump_json().encode() + b"\n")
            stdin.write(body)
            stdin.flush()
            size = int.from_bytes(stdout.read(8), "big")
            if not 0 < size <= _LARGEST_REPLY:
                return None
            return Reply.model_validate_json(stdout.read(size))
        except (OSError, ValidationError, ValueError):
            return None

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                assert pipe is not None
                pipe.close()
            except OSError:
                pass  # the rest of a job that nobody will read
        self._process.wait()


class _Call:
    """One job under way. Whoever ends it kills the worker, but never one that has already gone on to another job."""

    def __init__(self) -> None:
        self.late = False
        self.given_up = False
        self._worker: _Worker | None = None
        self._lock = threading.Lock()

    def ask(self, worker: _Worker, job: Job, body: bytes) -> Reply | None:
        with self._lock:
            if self.late or self.given_up:
                return None
            self._worker = worker
        try:
            return worker.ask(job, body)
        finally:
            with self._lock:
                self._worker = None

    def expire(self) -> None:
        with self._lock:
            self.late = True
            if self._worker is not None:
                self._worker.kill()

    def give_up(self) -> None:
        with self._lock:
            self.given_up = True
            if self._worker is not None:
                self._worker.kill()


class Parsers:
    def __init__(
        self,
        *,
        processes: int | None = None,
        seconds: float = 20.0,
        memory_bytes: int = 1536 << 20,
        max_characters: int = 2_000_000,
    ) -> None:
        self._processes = processes or max(min((os.cpu_count() or 2), 8), 2)
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._max_characters = max_characters
        self._threads: ThreadPoolExecutor | None = None
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()

    async def read(self, kind: Kind, body: bytes, *, declared: str = "", url: str = "", name: str = "") -> Document:
        job = Job(
            size=len(body),
            kind=kind,
            declared=declared,
            url=url,
            name=name,
            max_characters=self._max_characters,
            seconds=self._seconds,
        )
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._processes, thread_name_prefix="coa-parse")
            call = _Call()
            future = self._threads.submit(self._run, call, job, body)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            call.give_up()
            raise

    def close(self) -> None:
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(cancel_futures=True)
        while self._idle:
            self._idle.pop().end()

    def _run(self, call: _Call, job: Job, body: bytes) -> Document:
        timer = threading.Timer(self._seconds, call.expire)
        timer.daemon = True
        timer.start()
        try:
            reply, used_before = self._ask(call, job, body)
            if reply is None and used_before and not (call.late or call.given_up):
                reply, _ = self._ask(call, job, body)  # what ended it may have been an earlier job's doing
        finally:
            timer.cancel()
        if reply is None:
            raise Unreadable(
                f"it took more than {self._seconds:g} seconds to read" if call.late else "the parser crashed on it"
            )
        if reply.document is None:
            raise Unreadable(reply.error)
        return reply.document

    def _ask(self, call: _Call, job: Job, body: bytes) -> tuple[Reply | None, bool]:
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        used_before = worker is not None
        worker = worker or _Worker(self._memory_bytes)
        reply = call.ask(worker, job, body)
        if reply is None or call.late or call.given_up or worker.jobs >= _JOBS_EACH:
            worker.end()
        else:
            with self._lock:
                self._idle.append(worker)
        return reply, used_before


@cache
def shared_parsers() -> Parsers:
    """The pool that all tools of this process share."""
    parsers = Parsers()
    atexit.register(parsers.close)
    return parsers
