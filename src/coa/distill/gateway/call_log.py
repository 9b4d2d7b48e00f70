"""Writes calls to `*.calls.jsonl`, in a thread of its own, so that forwarding never waits for a disk or for JSON.

Every line is one `write` to a file that is open for appending: after `kill -9` the files hold all lines up to then, and
at most the last one is torn. A disk that refuses to write loses lines and nothing else: calls go on, the lost lines are
counted, and the first of them is reported. What bodies need in memory until they are written is bounded (`Memory`).
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from coa.distill.gateway.assembly import assemble
from coa.distill.gateway.privacy import Redaction, without_credential_fields, without_keys, without_tokens
from coa.distill.gateway.routes import Origin
from coa.distill.importers.content import as_usage, at
from coa.distill.run_files import CALLS, run_file
from coa.errors import refused
from coa.http import lenient_json
from coa.trajectory.types import Usage

log = logging.getLogger(__name__)
RECORD: Final = 1
"""Version of the lines."""
_OPEN_FILES: Final = 100
_TEXT: Final = 100_000
"""How much is kept of a body that is no JSON."""
_MOST_DECODED: Final = 1 << 28
_MODEL_CALLS: Final = frozenset({"chat", "responses", "messages", "completions"})


class Memory:
    """Counts the bytes of bodies that are kept. One thread calls `take` and another `free`, without a lock."""

    def __init__(self, most: int) -> None:
        self._most, self._taken, self._freed = most, 0, 0

    def take(self, size: int) -> bool:
        if self._taken - self._freed + size > self._most:
            return False
        self._taken += size
        return True

    def free(self, size: int) -> None:
        self._freed += size


class Kept:
    """A copy of a body as it passes, as far as the limits allow."""

    __slots__ = ("_memory", "_most", "kept", "pieces", "size")

    def __init__(self, memory: Memory, most: int) -> None:
        self._memory, self._most = memory, most
        self.pieces: list[bytes] = []
        self.size = self.kept = 0

    def add(self, piece: bytes) -> None:
        fits = piece[: self._most - self.kept] if self.whole else b""
        self.size += len(piece)
        if fits and self._memory.take(len(fits)):
            self.kept += len(fits)
            self.pieces.append(fits)

    @property
    def whole(self) -> bool:
        return self.kept == self.size

    def release(self) -> bytes:
        """What was kept; its memory counts as free from now on."""
        raw = b"".join(self.pieces)
        self._memory.free(self.kept)
        self.pieces = []
        return raw


@dataclass(slots=True)
class Call:
    """One request and its response, as the proxy sees them."""

    id: str
    protocol: str
    path: str
    origin: Origin
    headers: dict[str, str]
    keys: Sequence[bytes]
    sent: Kept
    got: Kept
    sent_encoding: str = ""
    sent_type: str = ""
    arrived: float = field(default_factory=time.time)
    began: float = field(default_factory=time.monotonic)
    status: int | None = None
    got_encoding: str = ""
    got_type: str = ""
    error: str | None = None
    whole: bool = False
    """Whether the body of the response came to its end."""
    seconds: float = 0.0
    written: bool = False
    """Whether the request has been handed to the writer."""
    redacted: bool = False


@dataclass
class Counts:
    """What the gateway has recorded so far."""

    calls: int = 0
    """Calls of a model that have ended; lists of models and the like do not count."""
    failed: int = 0
    """Those of them that ended with an error, were cut off, or were refused by the server."""
    problem: str = ""
    """What was wrong with the last of these."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unmetered: int = 0
    """Calls whose reply says nothing about tokens."""
    lost: int = 0
    """Lines that could not be written."""

    def add(self, usage: Usage | None, problem: str) -> None:
        """`problem` is empty for a call that was answered."""
        self.calls += 1
        self.failed += bool(problem)
        self.problem = problem or self.problem
        self.unmetered += usage is None and not problem
        if usage is not None:
            self.prompt_tokens += usage.prompt_tokens
            self.completion_tokens += usage.completion_tokens


class CallLog:
    """The files of a folder. Its methods may be called from any thread; one thread of its own writes."""

    def __init__(
        self, folder: Path, *, redact: Sequence[str] = (), on_problem: Callable[[str], None] | None = None
    ) -> None:
        self.folder = folder
        self.counts = Counts()
        self.by_run: dict[str, Counts] = {}
        """Of the runs that are followed."""
        self.files: set[Path] = set()
        self._redaction = Redaction(redact)
        self._on_problem = on_problem or log.warning
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._open: dict[Path, int] = {}
        self._torn: set[Path] = set()
        self._session: Path | None = None
        self._token, self._number = secrets.token_hex(4), 0
        self._thread = threading.Thread(target=self._work, name="coa-record", daemon=True)

    def start(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise refused(f"write {self.folder}", error) from error
        self._thread.start()

    def close(self) -> None:
        """Returns when everything is written."""
        self._queue.put(None)
        self._thread.join()
        for handle in self._open.values():
            os.close(handle)
        self._open = {}

    def next_id(self) -> str:
        """Unique also in a file that another gateway has written to before. Called by one thread only."""
        self._number += 1
        return f"c{self._number}-{self._token}"

    def request(self, call: Call) -> None:
        call.written = True
        self._queue.put(lambda: self._request(call))

    def response(self, call: Call) -> None:
        call.seconds = time.monotonic() - call.began
        if not call.written:
            self.request(call)
        self._queue.put(lambda: self._response(call))

    def event(self, kind: str, run: str | None, values: dict[str, Any]) -> None:
        """A line about a run as a whole: its task or its outcome."""
        line = {"coa_record": RECORD, "event": kind, "time": time.time(), "run": run, **values}
        self._queue.put(lambda: self._event(run, orjson.dumps(self._redaction.apply(line)[0])))

    def warn(self, problem: str) -> None:
        self._on_problem(problem)

    # ---- in the writing thread

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                job()
            except Exception as error:  # one line that cannot be written must not end the recording
                self._lose(f"a call could not be recorded: {type(error).__name__}: {error}")

    def _event(self, run: str | None, line: bytes) -> None:
        # Where every call has a run, a session file would hold nothing but this line.
        if run is not None or self._session is not None or not self.files:
            self._write(run, line)

    def _request(self, call: Call) -> None:
        origin = call.origin
        line: dict[str, Any] = {
            "coa_record": RECORD, "event": "request", "id": call.id, "time": call.arrived, "protocol": call.protocol,
            "path": call.path, "run": origin.run, "agent": origin.agent, "given_by": origin.given_by,
            "trace": origin.trace, "headers": call.headers,
        }  # fmt: skip
        line |= _body(call.sent, call.sent_encoding, call.sent_type)
        line["body"] = without_credential_fields(line["body"])
        if self._redaction:
            for name in ("body", "text"):
                if line.get(name) is not None:
                    line[name], matched = self._redaction.apply(line[name])
                    call.redacted = call.redacted or matched
        self._write(origin.run, without_keys(_dumped(line), call.keys))

    def _response(self, call: Call) -> None:
        stream = call.got_type.startswith("text/event-stream")
        line: dict[str, Any] = {
            "coa_record": RECORD, "event": "response", "id": call.id, "time": call.arrived + call.seconds,
            "seconds": round(call.seconds, 6), "status": call.status, "stream": stream, "complete": call.whole,
            "error": call.error,
        }  # fmt: skip
        if stream:
            line |= _streamed(call)
        else:
            line |= _body(call.got, call.got_encoding, call.got_type)
        if self._redaction:
            self._redact(line, call)
        if call.protocol in _MODEL_CALLS:
            problem = line["error"] or ("the response was cut off" if not line["complete"] else "")
            if not problem and (call.status or 500) >= 400:
                problem = f"the server answered {call.status}"
            usage = as_usage(at(line["body"], "usage"))
            self.counts.add(usage, problem)
            if call.origin.run in self.by_run:
                self.by_run[call.origin.run].add(usage, problem)
        self._write(call.origin.run, without_keys(_dumped(line), call.keys))

    def _redact(self, line: dict[str, Any], call: Call) -> None:
        for name in ("body", "text", "error"):
            if line.get(name) is not None:
                line[name], matched = self._redaction.apply(line[name])
                call.redacted = call.redacted or matched
        if call.redacted and line["body"] is not None:
            line["body"] = without_tokens(line["body"])

    def _write(self, run: str | None, line: bytes) -> None:
        path = run_file(self.folder, run, CALLS) if run is not None else self._session_file()
        data = memoryview((b"\n" if path in self._torn else b"") + line.rstrip(b"\n") + b"\n")
        written = 0
        try:
            handle = self._handle(path)
            while written < len(data):
                written += os.write(handle, data[written:])
        except OSError as error:
            if written:
                self._torn.add(path)
            self._lose(f"{refused(f'write {path}', error)}\n  calls are forwarded, but not all of them are recorded")
        else:
            self._torn.discard(path)

    def _lose(self, problem: str) -> None:
        self.counts.lost += 1
        if self.counts.lost == 1:
            self._on_problem(problem)

    def _handle(self, path: Path) -> int:
        handle = self._open.pop(path, None)
        if handle is None:
            if len(self._open) >= _OPEN_FILES:
                os.close(self._open.pop(next(iter(self._open))))
            handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self.files.add(path)
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":
                os.write(handle, b"\n")  # a gateway was killed while it wrote here
        self._open[path] = handle  # the one used last is closed last
        return handle

    def _session_file(self) -> Path:
        if self._session is None:
            stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
            name = f"session-{stamp}-{os.getpid()}"
            taken = (self.folder / f"{name}{'' if again == 1 else f'-{again}'}{CALLS}" for again in range(1, 1000))
            self._session = next(path for path in taken if not path.exists())
        return self._session


def _body(kept: Kept, encoding: str, kind: str) -> dict[str, Any]:
    """`body`, and where that is not all: `text` of what is no JSON, and `left_out`, which says what is missing."""
    size, whole, raw = kept.size, kept.whole, kept.release()
    if not size:
        return {"body": None}
    if not whole:
        return {"body": None, "left_out": f"a body of {size:,} bytes, which is more than is recorded"}
    raw, problem = decoded(raw, encoding)
    if problem:
        return {"body": None, "left_out": f"a body of {size:,} bytes: {problem}"}
    try:
        return {"body": lenient_json(raw)}
    except ValueError:
        pass
    kind = kind.partition(";")[0].strip()
    if kind.startswith(("multipart/", "audio/", "image/", "video/", "application/octet-stream")):
        return {"body": None, "left_out": f"a body of {size:,} bytes of {kind}"}
    text = raw.decode("utf-8", "replace")
    cut = {"left_out": f"{len(text) - _TEXT:,} characters of the text"} if len(text) > _TEXT else {}
    return {"body": None, "text": text[:_TEXT], **cut}


def _streamed(call: Call) -> dict[str, Any]:
    size, whole, kept = call.got.size, call.got.whole, call.got.kept
    raw, problem = decoded(call.got.release(), call.got_encoding)
    if problem and not raw:
        return {"body": None, "left_out": f"a stream of {size:,} bytes: {problem}"}
    found = assemble(call.protocol, raw)
    complete = found.complete and whole
    # A client may close the connection as soon as it has read the last event; then nothing went wrong.
    error = found.error or (None if complete else call.error or ("the stream ended early" if call.whole else None))
    left_out = {} if whole else {"left_out": f"all but the first {kept:,} of {size:,} bytes of the stream"}
    return {"complete": complete, "error": error, "body": found.body, **left_out}


def decoded(raw: bytes, encoding: str) -> tuple[bytes, str | None]:
    """A body without its compression, as far as it goes, and what is wrong with it."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return raw, None
    if encoding not in ("gzip", "x-gzip", "deflate"):
        return b"", f"its encoding {encoding!r} cannot be read here"
    try:
        # Some servers send a raw deflate stream under the name of the one with a header.
        bare = encoding == "deflate" and bool(raw) and raw[0] & 0x0F != 8
        found = zlib.decompressobj(-15 if bare else 47).decompress(raw, _MOST_DECODED + 1)
    except zlib.error as error:
        return b"", f"it cannot be decompressed: {error}"
    return (found, None) if len(found) <= _MOST_DECODED else (b"", "it is too large when it is decompressed")


def _dumped(line: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(line)
    except TypeError as error:  # nested too deeply
        return orjson.dumps({**line, "body": None, "left_out": f"the body cannot be written: {error}"})
