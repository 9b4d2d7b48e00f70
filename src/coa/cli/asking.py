"""One question: watched while it is answered, or tried several times to pick one. Ctrl-C keeps what there is."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine

import typer

from coa.cli.display import display
from coa.errors import ModelError
from coa.models.base import Model
from coa.runtime import ChainEvent, Progress, Select, Setting, select
from coa.trajectory import Task, Trajectory
from coa.trajectory.types import FrozenDict

log = logging.getLogger(__name__)


async def watched(setting: Setting, task: Task, *, show: bool) -> Trajectory:
    """One attempt, shown as it is made."""
    # Heard even where nothing is shown, for what Ctrl-C would cut off.
    chain = setting.chain(task, display(setting.profile) if show else _unshown)
    made: list[Trajectory] = []

    async def run() -> None:
        made.append(await chain.run())

    return made[0] if await came_to_its_end(run()) else chain.trajectory()


def _unshown(event: ChainEvent) -> None:
    pass


async def best_of(setting: Setting, task: Task, count: int, how: Select, judge: Model | None) -> list[Trajectory]:
    """All candidates; the chosen one is marked in its meta. After Ctrl-C none is, and some may be unfinished."""
    progress, candidates = Progress(total=count), list[Trajectory]()
    partial: list[Trajectory] = []
    runs = setting.many([task], samples=count, concurrency=count, progress=progress)

    async def collect() -> None:
        try:
            async for candidate in runs:
                candidates.append(candidate)
                typer.echo(f"{len(candidates)} of {count}: {candidate.stop}, answer {candidate.answer!r}", err=True)
        finally:
            await runs.aclose()

    ended = await came_to_its_end(
        collect(), before=lambda: partial.extend(chain.trajectory() for _, chain in progress.running.values())
    )
    candidates = sorted([*candidates, *partial], key=lambda candidate: candidate.sample)
    if not ended:
        return candidates
    try:
        chosen = await select(candidates, how, setting.profile, judge or setting.model)
    except ModelError as error:
        log.warning("the judge failed, so the commonest answer is taken: %s", error.message)
        how = Select.MAJORITY
        chosen = await select(candidates, how, setting.profile)
    return [
        c.model_copy(update={"meta": FrozenDict({**c.meta, "selected": how.value})}) if c is chosen else c
        for c in candidates
    ]


async def came_to_its_end(work: Coroutine[None, None, None], *, before: Callable[[], object] = bool) -> bool:
    """Ctrl-C ends the work, not the command; `before` is called first."""
    running = asyncio.ensure_future(work)
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if not interrupted:
            before()
        interrupted = True
        running.cancel()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        await running
        return True
    except asyncio.CancelledError:
        if not interrupted:
            raise
        return False
    finally:
        loop.remove_signal_handler(signal.SIGINT)
