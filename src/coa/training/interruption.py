"""Ctrl-C and SIGTERM: finish the current step, save, stop. A second signal stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any


class Interruption:
    def __init__(self, tell: Callable[[str], None], what: str) -> None:
        self.asked = False
        self._tell, self._what = tell, what
        self._before: dict[signal.Signals, Any] = {}

    def listen(self) -> None:
        """From now on; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._ask)

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _ask(self, *_: object) -> None:
        self.asked = True
        self.restore()
        self._tell(f"asked to stop: this {self._what} is finished and saved first; once more stops at once")
