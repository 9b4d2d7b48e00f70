"""The garbage collector while many runs are under way.

Runs make few cycles, but Python's collector looks for some after every 700 new objects, and with hundreds of runs at a
time it visits all of their objects again and again: 6 % of the client's CPU time with 64 runs at a time, 13 % with 256.
So it looks less often then, but often enough that the cycles of runs that failed do not fill the memory.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_RARELY: Final = (10_000, 10, 3)


class _Shared:
    """The thresholds belong to the process, and several batches may run at a time: the last one restores them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.before = gc.get_threshold()


_shared: Final = _Shared()


@contextmanager
def rare_collections() -> Iterator[None]:
    """The garbage collector looks for cycles less often while the block runs. A collector that is off stays off, and
    thresholds that somebody else sets meanwhile stay."""
    with _shared.lock:
        _shared.users += 1
        if _shared.users == 1:
            _shared.before = gc.get_threshold()
            if 0 < _shared.before[0] < _RARELY[0]:
                gc.set_threshold(*_RARELY)
    try:
        yield
    finally:
        with _shared.lock:
            _shared.users -= 1
            if not _shared.users and gc.get_threshold() == _RARELY:
                gc.set_threshold(*_shared.before)
