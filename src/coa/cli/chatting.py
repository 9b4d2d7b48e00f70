"""`coa run --chat`: one question after another in the terminal, each with the conversation before it.

The model is opened once. Ctrl-C stops the run that is under way and leads back to the prompt; the question stays in the
conversation without an answer. Where no terminal is at the other end, each line of the input is a question.
"""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from coa.cli.display import Display, close
from coa.cli.output import echo, echo_json, echo_text, error_text
from coa.cli.progress import terminal_progress
from coa.errors import CoaError
from coa.folder import lock_file
from coa.runtime import AskConfig, Chain, ChainEvent, open_setting
from coa.runtime.live import LiveFeed, live_feed
from coa.tools.task_files import missing_files
from coa.trajectory import JsonlWriter, Stop, Task, Trajectory
from coa.trajectory.store import Lines

_HELP: Final = "/new starts a new conversation, /quit or Ctrl-D ends, Ctrl-C stops an answer"


def chat(first: str | None, begin: Callable[[str], Task], config: AskConfig, out: Path | None, *, as_json: bool) -> int:
    """Ask `first`, then what the user types; the exit code. `begin` makes the first task of a conversation."""
    opening = [begin("?" if first is None else first)]
    if missing := missing_files(opening, config.tools):
        raise missing[0]
    last: Trajectory | None = None
    live: LiveFeed | None = None

    async def work() -> None:
        nonlocal last
        lines = Lines() if as_json else None
        async with open_setting(config, tasks=opening, progress=terminal_progress()) as opened:
            setting = replace(opened, live=live)
            if sys.stdin.isatty():
                with suppress(ImportError):
                    import readline  # noqa: F401 - gives `input` its line editing and history
                echo(_HELP, err=True)
            for question in _questions(first):
                if question is None:
                    last = None
                    continue
                try:
                    task = last.follow_up(question) if last is not None else begin(question)
                except CoaError as error:
                    echo_text(error_text(error.message, error.hint), err=True)
                    continue
                # A listener even where nothing is shown: it keeps what Ctrl-C would cut off.
                shown = None if as_json else Display(setting.profile)
                chain = Chain(task, setting, listen=shown or _unshown)
                last = await _answer(chain)
                if shown is not None:
                    shown.end_line()
                if out is not None:
                    with JsonlWriter(out) as writer:
                        writer.write(last)
                chain.leave_feed()
                if lines is not None:
                    echo_json(lines.line(last))
                else:
                    close(last, [last])

    with ExitStack() as stack:
        if out is not None:
            stack.enter_context(lock_file(out))
            JsonlWriter(out).close()
            live = stack.enter_context(live_feed(out.parent))
        asyncio.run(work())
    return int(last is not None and last.stop is Stop.FAILED)


async def _answer(chain: Chain) -> Trajectory:
    """One run; what there is of it where Ctrl-C stopped it."""
    run = asyncio.create_task(chain.run())
    loop = asyncio.get_running_loop()
    with _on_interrupt(lambda *_: loop.call_soon_threadsafe(run.cancel)):
        await asyncio.wait({run})
    return chain.trajectory() if run.cancelled() else run.result()


def _questions(first: str | None) -> Iterator[str | None]:
    """What the user asks; None where a new conversation begins."""
    if first is not None:
        yield first
    while (line := _read_line()) is not None:
        line = line.strip()
        if line in ("/quit", "/exit"):
            return
        if line == "/new":
            yield None
        elif re.fullmatch(r"/[a-z]*", line):
            echo(_HELP, err=True)
        elif line:
            yield line


def _read_line() -> str | None:
    """A line of the input; None at its end. Ctrl-C drops what was typed."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        if line.strip():
            echo(f"> {line.strip()}", err=True)
        return line or None
    try:
        # While it waits for input, the event loop of the run stands still, and Ctrl-C has its usual meaning.
        with _on_interrupt(signal.default_int_handler):
            echo()
            return input("> ")
    except EOFError:
        echo()
        return None
    except KeyboardInterrupt:
        return "/"


@contextmanager
def _on_interrupt(handler: Callable[..., object]) -> Iterator[None]:
    """What Ctrl-C does in this block. Only the main thread may decide that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _unshown(event: ChainEvent) -> None:
    pass
