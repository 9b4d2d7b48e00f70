r"""Mathematical equivalence with math-verify, in worker processes that may hang, swell or die without harm.

What is literally the gold answer is right, and plain numbers are compared as numbers; only the rest is worth a process.
An answer that cannot be read is wrong; a gold that cannot be read, a time-out or a crash leaves the answer unscored.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from coa.errors import ScoringError
from coa.scoring.answers import Mode, final, golds, matched, mode, splits, unknown_mode
from coa.scoring.base import Verdict, unanswerable
from coa.scoring.numeric import equal, read_number
from coa.scoring.worker import Worker, WorkerGone
from coa.trajectory import Task

_KEPT: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
"""Of the environment: a parser of text that models write needs no keys."""
_LONGEST: Final = 20_000
_LAYOUT: Final = re.compile(r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\[,;!: ]|[\s$]+")
_FRACTION: Final = re.compile(r"\\[dt]frac(?![A-Za-z])")


class MathScorer:
    """Any number of tasks may ask at once; `workers` formulas are compared at a time. Use from any thread or loop."""

    name = "math"

    def __init__(self, *, workers: int | None = None, timeout_s: float = 10.0, memory_bytes: int = 2 << 30) -> None:
        count = workers or min(4, os.cpu_count() or 1)
        self._timeout_s = timeout_s
        # The process ends itself shortly after we would have ended it, should we be gone by then.
        self._command = [
            sys.executable, "-P", "-m", "coa.scoring.math_worker", str(timeout_s + 5.0), str(memory_bytes),
        ]  # fmt: skip
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="coa-math")
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._all: set[Worker] = set()
        self._lock = threading.Lock()
        self._closed = False

    async def score(self, task: Task, answer: str | None) -> Verdict:
        verdict = unanswerable(self.name, task, answer)
        if verdict is not None or answer is None:
            return verdict or Verdict(0.0, "no answer was given", self.name)
        how, wanted = mode(task), golds(task)
        if how is None:
            return unknown_mode(self.name, task)
        if matched(answer, wanted, how, _literally):
            return Verdict(1.0, "literally the gold answer", self.name)
        by_number = _as_numbers(wanted, final(answer)) if how is Mode.ANY else None
        if by_number is not None:
            return by_number
        if max(map(len, [answer, *wanted])) > _LONGEST:
            return Verdict(0.0, f"longer than {_LONGEST} characters", self.name, certain=False)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._compare, how, wanted, answer)

    async def close(self) -> None:
        with self._lock:
            self._closed = True
            workers, self._all = self._all, set()
        for worker in workers:
            worker.kill()
        await asyncio.to_thread(self._threads.shutdown, True)  # threads that still wait must not find a closed pipe
        for worker in workers:
            worker.stop()

    def _compare(self, how: Mode, wanted: list[str], answer: str) -> Verdict:
        """As one piece, then in every way to read it as several; all of it by one worker within the time limit."""
        try:
            worker = self._take()
        except WorkerGone as error:
            return Verdict(None, f"the comparison could not start: {error}", self.name, broken=True)
        deadline = time.monotonic() + self._timeout_s
        try:
            # Several golds that are all needed make one set, or one tuple, which an answer may write as such.
            joined = {Mode.ALL: "{}", Mode.ORDERED: "({})"}.get(how, "").format(", ".join(wanted))
            several = len(list(splits(answer, how))) > 1
            whole = self._ask(worker, [joined] if joined else wanted, final(answer), deadline, prose=not several)
            unread = [whole] if whole.value is None else []

            def same(gold: str, part: str) -> bool:
                if _literally(gold, part):
                    return True
                verdict = self._ask(worker, [gold], part, deadline, prose=False)
                if verdict.value is None:
                    unread.append(verdict)
                return verdict.value == 1.0

            if whole.value != 1.0 and several and matched(answer, wanted, how, same):
                whole, unread = Verdict(1.0, "equivalent part by part", self.name), []
        except WorkerGone as error:
            self._forget(worker)
            told = f"no verdict within {self._timeout_s:g} seconds" if error.late else f"the comparison broke: {error}"
            return Verdict(None, told, self.name, broken=True, detail={"late": error.late})
        self._idle.put(worker)
        return unread[0] if unread else whole

    def _ask(self, worker: Worker, wanted: list[str], answer: str, deadline: float, *, prose: bool) -> Verdict:
        request = {"golds": wanted, "answer": answer, "prose": prose}
        reply = worker.ask(request, max(deadline - time.monotonic(), 0.0))
        return Verdict(
            reply["value"], str(reply["reason"]), self.name, certain=reply["readable"], broken=reply["broken"]
        )

    def _take(self) -> Worker:
        if self._closed:
            raise WorkerGone("the scorer was closed")
        with contextlib.suppress(queue.Empty):
            return self._idle.get_nowait()
        worker = Worker(self._command, {name: os.environ[name] for name in _KEPT if name in os.environ})
        if "missing" in worker.greeting:
            worker.stop()
            raise ScoringError(
                f"comparing mathematics needs math-verify ({worker.greeting['missing']})",
                hint=f"{sys.executable} -m pip install 'chain-of-agents[eval]'",
            )
        with self._lock:
            if not self._closed:
                self._all.add(worker)
                return worker
        worker.stop()
        raise WorkerGone("the scorer was closed")

    def _forget(self, worker: Worker) -> None:
        with self._lock:
            self._all.discard(worker)
        worker.stop()


def _literally(gold: str, part: str) -> bool:
    """The same but for layout."""
    one, other = (_LAYOUT.sub("", _FRACTION.sub(r"\\frac", text)).rstrip(".") for text in (gold, part))
    return one == other


def _as_numbers(wanted: list[str], answer: str) -> Verdict | None:
    """A verdict where gold and answer are bare numbers; None where there is more to them."""
    given = read_number(answer)
    numbers = [read_number(gold) for gold in wanted]
    if given is None or given.unit or any(number is None or number.unit for number in numbers):
        return None
    if any(number is not None and equal(number, given) for number in numbers):
        return Verdict(1.0, "the same number", "math")
    if given.integer and all(number is not None and number.integer for number in numbers):
        return Verdict(0.0, "another number", "math")
    return None
