"""The command line. This module is its border: no traceback passes it.

`main` runs a command and turns whatever goes wrong into `error: ...`, `hint: ...` and an exit code: 0 done, 1 failed,
2 misused, 130 interrupted. It is the only place that does. The library raises `CoaError` where it knows what a person
can do; anything else ends here too and is explained as well as it can be (`coa.cli.explaining`).

The commands themselves are in `coa.cli.commands` (`coa.cli.app`). They are imported by `main`, because importing them
takes a quarter of a second, in which Ctrl-C must not print a traceback either.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from coa.cli.commands import app

__all__ = ["app", "main"]
_INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line with these arguments, by default those of the process, and exit."""
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    """The exit code."""
    try:
        with _dying_of_ctrl_c():
            from coa.cli.commands import app
        app(arguments, prog_name="coa")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code == _INTERRUPTED:
            _say("interrupted")
        return _flushed(code)
    except KeyboardInterrupt:
        _say("interrupted")
        return _flushed(_INTERRUPTED)
    except BaseException as error:
        if _was_interrupted(error):
            _say("interrupted")
            return _flushed(_INTERRUPTED)
        return _flushed(_failed(error, offering=arguments is None))
    return _flushed(0)


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is the cause of this error.

    Python 3.11 wraps what is raised while a class is made (`__set_name__`) in a RuntimeError, and most classes are made
    while a command imports its library.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None


def _failed(error: BaseException, *, offering: bool = False) -> int:
    """Say what went wrong. `offering`: first ask whether to install what the command lacks, and run it again."""
    from coa.addresses import without_passwords
    from coa.cli.explaining import explained
    from coa.cli.output import error_text

    failure = explained(error)
    if failure.needs and offering:
        from coa.cli.setup import offer

        try:
            offer(failure.needs)
        except Exception as trouble:
            failure = explained(trouble)
    _say(without_passwords(error_text(failure.message, failure.hint)))
    return failure.exit_code


def _flushed(code: int) -> int:
    """Write out what stdout still holds: a full disk shows only now. The reader of a pipe may have seen enough."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
    except OSError as error:
        _drop_stdout()
        return code or _failed(error)
    return code


def _drop_stdout() -> None:
    """Let nothing be written any more: Python would try again when it exits, and print a traceback."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(text: str) -> None:
    """To stderr, if there is one."""
    with suppress(OSError, ValueError, AttributeError):
        print(text, file=sys.stderr, flush=True)


@contextmanager
def _dying_of_ctrl_c() -> Iterator[None]:
    """Ctrl-C ends the process at once and silently, as it ends `cat`. Not if Ctrl-C is ignored or handled otherwise."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def __getattr__(name: str) -> Any:
    if name == "app":
        from coa.cli import commands

        return commands.app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
