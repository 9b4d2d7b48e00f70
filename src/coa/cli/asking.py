"""One question: watched while it is answered, or tried several times to pick one. Ctrl-C keeps what there is."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass

import typer

from coa.cli.display import display
from coa.errors import ModelError
from coa.models.base import Model, Sampling
from coa.models.price import Price
from coa.runtime import Chain, ChainEvent, Constrain, Progress, Select, run_many, select
from coa.tools import Tool
from coa.trajectory import Limits, Message, Profile, Task, Trajectory
from coa.trajectory.types import FrozenDict

log = logging.getLogger(__name__)
Prompt = Callable[[Task], Sequence[Message] | None]


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything but the task."""

    model: Model
    tools: Mapping[str, Tool]
    profile: Profile
    sampling: Sampling
    limits: Limits | None
    price: Price | None
    prompt: Prompt
    constrain: Constrain = Constrain.AUTO


async def watched(setting: Setting, task: Task, *, show: bool) -> Trajectory:
    """One attempt, shown as it is made."""
    chain = Chain(
        task,
        setting.model,
        setting.tools,
        setting.profile,
        sampling=setting.sampling,
        limits=setting.limits,
        price=setting.price,
        prompt=setting.prompt(task),
        constrain=setting.constrain,
        listen=display(setting.profile) if show else _unshown,  # heard all the same, for what Ctrl-C would cut off
    )
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
    runs = run_many(
        [task],
        setting.model,
        setting.tools,
        setting.profile,
        samples=count,
        concurrency=count,
        sampling=setting.sampling,
        limits=setting.limits,
        price=setting.price,
        prompt=setting.prompt,
        constrain=setting.constrain,
        progress=progress,
    )

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
