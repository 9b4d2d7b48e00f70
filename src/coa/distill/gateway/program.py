"""Runs a program in the foreground, as if the shell had started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

from coa.errors import RecordingError

_PASSED_ON: Final = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip


def run_program(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """The exit code, or 128 and the number of the signal that ended it, as shells report it.

    The program has the stdin, stdout and stderr of this process. Signals that this process gets are passed on to it.
    """
    try:
        process = subprocess.Popen(list(command), env=dict(environment))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        hint = "check the spelling, and give a program with its arguments behind --"
        raise RecordingError(f"cannot run {command[0]}: {reason}", hint=hint) from error
    try:
        with _signals_for(process):
            code = process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    return code if code >= 0 else 128 - code


@contextmanager
def _signals_for(process: subprocess.Popen[bytes]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals arrive in the main thread, and are its business
        return

    def pass_on(number: int, _: FrameType | None) -> None:
        if number in (signal.SIGINT, signal.SIGQUIT) and _in_foreground():
            return  # the terminal has sent it to the program too
        with suppress(ProcessLookupError):
            process.send_signal(number)

    before: dict[signal.Signals, Any] = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    """Whether this process belongs to the foreground of a terminal, which sends Ctrl-C to all processes there."""
    for stream in (sys.stdin, sys.stderr, sys.stdout):
        with suppress(OSError, ValueError, AttributeError):
            if os.tcgetpgrp(stream.fileno()) == os.getpgrp():
                return True
    return False
