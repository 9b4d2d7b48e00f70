"""Descriptors between the supervisor and a run: input in memory files, output in pipes that are read up to a limit."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

CHUNK = 1 << 16


def memory_file(data: bytes) -> int:
    """A file without a name that holds `data`, open at its beginning."""
    handle = os.memfd_create("coa", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        os.lseek(handle, 0, os.SEEK_SET)
    except BaseException:
        os.close(handle)
        raise
    return handle


class Capture:
    """The reading end of a pipe: keeps up to `limit` bytes, and says so once when there are more."""

    def __init__(self, limit: int, when_full: Callable[[], None]) -> None:
        self.data = bytearray()
        self.full = False
        self._limit = limit
        self._when_full = when_full
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._handle, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._handle, False)
        asyncio.get_running_loop().add_reader(self._handle, self._read)

    def _read(self) -> bool:
        """Whether there may be more at once."""
        try:
            chunk = os.read(self._handle, CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if not chunk:
            self.close()
        elif not self.full:
            room = self._limit - len(self.data)
            self.data += chunk[:room]
            if len(chunk) > room:
                self.full = True
                self._when_full()
        return bool(chunk)

    def close_writer(self) -> None:
        """Ours; the run has its own copy."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    async def finish(self, timeout_s: float) -> None:
        """Until the last writer is gone. All of them are dead by then, so it does not take long."""
        self.close_writer()
        while self._handle >= 0 and not self.full and self._read():
            pass  # mostly all of it is there already, and a turn of the event loop for each piece would take longer
        if self._end.done():
            return
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._end)
        except TimeoutError:
            self.full = True
        finally:
            self.close()

    def close(self) -> None:
        self.close_writer()
        if self._handle >= 0:
            asyncio.get_running_loop().remove_reader(self._handle)
            os.close(self._handle)
            self._handle = -1
        if not self._end.done():
            self._end.set_result(None)


def to_bytes(text: bytes | str) -> bytes:
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
