"""`coa run QUESTION`: one question, watched while it is answered or tried several times. Ctrl-C keeps what there is."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from coa.cli.display import Display, close
from coa.cli.output import echo, echo_json
from coa.cli.progress import terminal_progress
from coa.folder import lock_file
from coa.runtime import AskConfig, Chain, ChainEvent, best_of, open_setting
from coa.runtime.best_of import SELECTED
from coa.runtime.live import LiveFeed, live_feed
from coa.scoring.opening import open_judge
from coa.tools.task_files import missing_files
from coa.trajectory import CUT_SHORT, JsonlWriter, Task, Trajectory
from coa.trajectory.store import Lines


def ask_one(task: Task, config: AskConfig, out: Path | None, *, as_json: bool) -> int:
    """The exit code."""
    if missing := missing_files([task], config.tools):
        raise missing[0]
    with ExitStack() as stack:
        if out is not None:  # that it cannot be written is better known before anything is spent
            stack.enter_context(lock_file(out))
            JsonlWriter(out).close()
        live = stack.enter_context(live_feed(out.parent)) if out is not None else None
        done = _watched(task, config, live, show=not as_json) if config.best_of == 1 else _best(task, config, live)
        if out is not None:
            with JsonlWriter(out) as writer:
                for trajectory in done:
                    writer.write(trajectory)
    if not done:
        echo("interrupted before anything was written", err=True)
        return 1
    picked = next((attempt for attempt in done if SELECTED in attempt.meta), done[0])
    if as_json:
        echo_json(Lines().line(picked))
    else:
        close(picked, done)
    return int(picked.stop in CUT_SHORT)


def _watched(task: Task, config: AskConfig, live: LiveFeed | None, *, show: bool) -> list[Trajectory]:
    chains: list[Chain] = []

    async def work() -> Trajectory:
        async with open_setting(config, tasks=[task], progress=terminal_progress()) as setting:
            # A listener even where nothing is shown: it keeps what Ctrl-C would cut off.
            seen = replace(setting, live=live)
            shown = Display(setting.profile) if show else None
            chains.append(Chain(task, seen, listen=shown or _unshown))
            try:
                return await chains[0].run()
            finally:
                if shown is not None:
                    shown.end_line()

    try:
        return [asyncio.run(work())]
    except KeyboardInterrupt:
        return [chain.trajectory() for chain in chains]


def _best(task: Task, config: AskConfig, live: LiveFeed | None) -> list[Trajectory]:
    attempts: list[Trajectory] = []
    progress = terminal_progress()

    def made(attempt: Trajectory) -> None:
        attempts.append(attempt)
        progress.say(f"{len(attempts)} of {config.best_of}: {attempt.stop.words}, answer {attempt.answer!r}")

    async def work() -> list[Trajectory]:
        async with open_setting(config, tasks=[task], progress=progress) as setting, open_judge(config) as judge:
            seen = replace(setting, live=live)
            return await best_of(task, seen, config.best_of, config.select, judge, made=made, progress=progress)

    try:
        return asyncio.run(work())
    except KeyboardInterrupt:
        return sorted(attempts, key=lambda attempt: attempt.sample)


def _unshown(event: ChainEvent) -> None:
    pass
