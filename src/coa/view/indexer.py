"""Keeps an index up to date in a process of its own, so that pages do not wait while files are read.

    python -m coa.view.indexer INDEX ROOT...

It ends when its standard input does, that is, when the viewer that started it ends, however that happens.
"""

from __future__ import annotations

import fcntl
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from coa.view.index import IndexWriter, remove
from coa.view.scanning import scan_some
from coa.view.updating import Updater

log = logging.getLogger(__name__)
_PAUSE_S: Final = 1.0
_RESTARTS: Final = 4
_SHARE: Final = 0.1
"""Share of the time that looking for changes may take, where there are very many files."""


class Indexer:
    """The process, seen from the viewer. Use it as a context manager."""

    def __init__(self, index: Path, roots: Sequence[Path]) -> None:
        self._command = [sys.executable, "-m", "coa.view.indexer", str(index), *(str(root) for root in roots)]
        self._process: subprocess.Popen[bytes] | None = None
        self._lock, self._closing = threading.Lock(), False

    def __enter__(self) -> Indexer:
        self._start()
        threading.Thread(target=self._watch, name="coa-view-indexer", daemon=True).start()
        return self

    def _start(self) -> None:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def _watch(self) -> None:
        """Start the process again if it is killed, for example because memory ran out."""
        for left in reversed(range(_RESTARTS)):
            process = self._process
            assert process is not None
            process.wait()
            with self._lock:
                if self._closing:
                    return
                log.warning("the index is no longer brought up to date%s", "; starting again" if left else "")
                if left:
                    self._start()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closing = True
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def update_index(index: Path, roots: Sequence[Path], *, scan: bool = True) -> None:
    """Bring an index up to date once, in this process."""
    with _writing(index, wait=True):
        writer = IndexWriter(index)
        try:
            Updater(writer, roots).update()
            while scan and scan_some(writer):
                pass
        finally:
            writer.close()


def main(index: Path, roots: Sequence[Path]) -> None:
    """Update the index until standard input ends. If another process keeps it up to date, wait in case it ends."""
    while not _ended(0):
        with _writing(index, wait=False) as mine:
            if mine:
                _follow(index, roots)
                return
        _ended(_PAUSE_S)


def _follow(index: Path, roots: Sequence[Path]) -> None:
    writer = IndexWriter(index)
    if writer.mostly_dead:
        writer.close()
        remove(index)
        writer = IndexWriter(index)
    updater = Updater(writer, roots)
    try:
        while True:
            began = time.monotonic()
            try:
                changed = updater.update()
                busy = changed or scan_some(writer)
            except Exception:  # the border: whatever one round meets, the next one may do better
                log.exception("the index could not be brought up to date")
                busy = False
            took = time.monotonic() - began
            if _ended(0 if busy else max(_PAUSE_S, took / _SHARE)):
                return
    finally:
        writer.close()


def _ended(wait_s: float) -> bool:
    """Whether the viewer is gone, after waiting for that for a while."""
    ready, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(ready) and not os.read(sys.stdin.fileno(), 1)


@contextmanager
def _writing(index: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the index as its only writer; False if another process does."""
    index.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with index.with_suffix(".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s")
    with suppress(KeyboardInterrupt):
        main(Path(sys.argv[1]), [Path(root) for root in sys.argv[2:]])
