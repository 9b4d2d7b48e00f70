"""A pool of child processes for work that may hang, swell or crash: reading hostile documents, comparing formulas.

Such work runs inside libraries that no Python thread can interrupt, so it needs a process that can be killed. A worker
module has a function `answer(request: bytes) -> bytes` and, if its libraries take long to load, `prepare()`. Each
process of the pool imports that module and answers one request after another. The parent waits in a thread, not in the
event loop, so that one pool serves any number of loops. A process that does not answer in time is killed, and the next
request gets a new one.

A process starts clean: with no environment variables but those that Python needs to start, no network if the kernel
allows that, a limit on memory, and no right to write files. It ends with its parent. On both pipes a message is its
length in 8 bytes and then its bytes; the first message of a process, which is empty, says that it is prepared.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, Final

_JOBS_EACH: Final = 500
"""The number of requests after which a process is replaced, because parsers leak memory."""
_START_S: Final = 120.0
_GRACE_S: Final = 5.0
"""How long after the time limit a process ends itself, in case its parent is gone."""
_LARGEST_ANSWER: Final = 64 << 20
_INHERITED: Final = ("LD_LIBRARY_PATH", "PYTHONHOME")
_START: Final = (
    # CLONE_NEWUSER | CLONE_NEWNET: an empty network, so that no parser can be talked into fetching what a document
    # names. Not every system allows it, and none after threads were started, which imports do, so this comes first.
    "import ctypes; getattr(ctypes.CDLL(None), 'unshare', id)(0x50000000)\nfrom coa.workers import serve; serve()"
)


class WorkerLost(Exception):
    """The process ended instead of answering; `late` if it was killed because the time was up."""

    def __init__(self, reason: str, *, late: bool = False) -> None:
        super().__init__(reason)
        self.late = late


class WorkerPool:
    """Answers up to `processes` requests at once, each within `timeout_s`. Use it from any thread or event loop."""

    def __init__(self, module: str, *, processes: int, timeout_s: float, memory_bytes: int) -> None:
        self._command = [
            sys.executable, "-P", "-c", _START, module, str(memory_bytes), str(timeout_s + _GRACE_S)
        ]  # fmt: skip
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix=module.rpartition(".")[2])
        self._idle: list[_ChildProcess] = []
        self._all: set[_ChildProcess] = set()
        self._lock, self._closed = threading.Lock(), False

    async def ask(self, request: bytes) -> bytes:
        """The worker's answer. Raises `WorkerLost`. Cancelling the caller kills the process."""
        job = _Job(request)
        with self._lock:
            if self._closed:
                raise WorkerLost("the pool was closed")
            future = self._threads.submit(self._run, job)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            job.give_up()
            raise

    def close(self) -> None:
        """End all processes; requests under way are lost."""
        with self._lock:
            self._closed = True
            workers, self._all = self._all, set()
        for worker in workers:
            worker.kill()
        self._threads.shutdown()  # threads that still wait must not find a closed pipe
        for worker in workers:
            worker.end()

    @property
    def pids(self) -> list[int]:
        with self._lock:
            return [worker.pid for worker in self._all]

    def _run(self, job: _Job) -> bytes:
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        if worker is not None:
            try:
                return self._answer(worker, job)
            except WorkerLost as lost:
                if lost.late or job.given_up:
                    raise
            # An earlier request may have caused its end, so try once more with a new process.
        return self._answer(self._started(), job)

    def _answer(self, worker: _ChildProcess, job: _Job) -> bytes:
        try:
            answer = job.ask(worker, self._timeout_s)
        except WorkerLost:
            self._drop(worker)
            raise
        if job.given_up or worker.jobs >= _JOBS_EACH:
            self._drop(worker)
        else:
            with self._lock:
                self._idle.append(worker)
        return answer

    def _started(self) -> _ChildProcess:
        with self._lock:
            if self._closed:
                raise WorkerLost("the pool was closed")
            worker = _ChildProcess(self._command)
            self._all.add(worker)
        try:
            worker.exchange(b"", _START_S)  # the first message says that it is prepared
        except WorkerLost as lost:
            self._drop(worker)
            raise WorkerLost(f"the process could not start: {lost}") from lost
        return worker

    def _drop(self, worker: _ChildProcess) -> None:
        with self._lock:
            self._all.discard(worker)
        worker.end()


class _Job:
    """One request under way. Giving it up kills its worker, but never a worker that already has another request."""

    def __init__(self, request: bytes) -> None:
        self.given_up = False
        self._request = request
        self._worker: _ChildProcess | None = None
        self._lock = threading.Lock()

    def ask(self, worker: _ChildProcess, timeout_s: float) -> bytes:
        with self._lock:
            if self.given_up:
                raise WorkerLost("nobody waits for the answer")
            self._worker = worker
        try:
            return worker.ask(self._request, timeout_s)
        finally:
            with self._lock:
                self._worker = None

    def give_up(self) -> None:
        with self._lock:
            self.given_up = True
            if self._worker is not None:
                self._worker.kill()


class _ChildProcess:
    """The parent's end of one process. Its methods block and use no signals, so any thread may call them."""

    def __init__(self, command: list[str]) -> None:
        self.jobs = 0
        # The path is needed to find this package wherever it was imported from.
        path = os.pathsep.join(entry for entry in sys.path if entry)
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PYTHONPATH": path, "LC_ALL": "C.UTF-8", **inherited},
            cwd="/",
            bufsize=0,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: bytes, timeout_s: float) -> bytes:
        """Raises `WorkerLost`, after which this worker cannot be used."""
        self.jobs += 1
        return self.exchange(len(request).to_bytes(8, "big") + request, timeout_s)

    def kill(self) -> None:
        """A thread that waits for it learns that it is gone."""
        self._process.kill()

    def end(self) -> None:
        self.kill()
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        self._process.wait()

    def exchange(self, data: bytes, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        unsent, received, size = memoryview(data), bytearray(), 8
        poll = select.poll()  # select() itself fails above 1024 descriptors
        poll.register(self._stdout, select.POLLIN)
        if unsent:
            poll.register(self._stdin, select.POLLOUT)
        while len(received) < size:
            left = deadline - time.monotonic()
            ready = [descriptor for descriptor, _ in poll.poll(left * 1000)] if left > 0 else []
            if not ready:
                raise WorkerLost(f"no answer within {timeout_s:g} seconds", late=True)
            try:
                if self._stdin.fileno() in ready:
                    unsent = unsent[os.write(self._stdin.fileno(), unsent[: 1 << 16]) :]
                    if not unsent:
                        poll.unregister(self._stdin)
                chunk = os.read(self._stdout.fileno(), 1 << 16) if self._stdout.fileno() in ready else None
            except OSError:
                chunk = b""
            if chunk == b"":
                raise WorkerLost(f"the process ended with code {self._code()}")
            received += chunk or b""
            if size == 8 and len(received) >= 8:
                size += int.from_bytes(received[:8], "big")
                if size > _LARGEST_ANSWER:
                    raise WorkerLost("the answer is too large")
        return bytes(received[8:])

    def _code(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=1.0)
        return None


# ---- in the child


def serve() -> None:
    """Answer requests until the parent closes the pipe. Arguments: the module, bytes of memory, seconds per request."""
    name, memory_bytes, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    _confine(memory_bytes)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer
    module = importlib.import_module(name)
    answer: Callable[[bytes], bytes] = module.answer
    getattr(module, "prepare", lambda: None)()
    _send(answers, b"")
    while len(length := requests.read(8)) == 8:
        request = requests.read(int.from_bytes(length, "big"))
        signal.setitimer(signal.ITIMER_REAL, seconds)
        found = answer(request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(answers, found)


def _send(pipe: BinaryIO, data: bytes) -> None:
    pipe.write(len(data).to_bytes(8, "big") + data)
    pipe.flush()


def _confine(memory_bytes: int) -> None:
    logging.disable(logging.CRITICAL)
    limits = {resource.RLIMIT_AS: memory_bytes, resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0}
    for limit, value in {**limits, resource.RLIMIT_NOFILE: 64}.items():
        _, hard = resource.getrlimit(limit)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(ValueError, OSError):  # a system that does not know this limit
            resource.setrlimit(limit, (bound, bound))
