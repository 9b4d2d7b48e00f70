"""`teach`: run a smolagents team over tasks and record everything it does, as one call.

It asks the server which model it has, resolves `world` to the team of an offline world, and leaves the running to
`pool.py`: processes that build the team anew for each task and write one ATIF file each.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Final

from pydantic import Field, JsonValue

from coa.blocking import run_blocking
from coa.distill.teaching.pool import TeachCounts, run_team
from coa.distill.teaching.team import Team
from coa.errors import ModelError, RecordingError
from coa.models.price import Price, price_of
from coa.models.server import ModelServer
from coa.progress import Progress, Silent
from coa.trajectory.formats.tasks import read_tasks
from coa.trajectory.types import Frozen, Task, Usage
from coa.worlds.folder import locate
from coa.worlds.team import FACTORY

WORLD: Final = "world"
"""The team that comes with an offline world."""


class TeachConfig(Frozen):
    """Which team to run, with which model, and within which limits."""

    team: str
    """`module:factory` or `file.py:factory`, where `factory(model)` returns an agent; or `world`."""
    model: str | None = None
    """URL of an OpenAI-compatible server for the team; None where the team brings its own models."""
    model_name: str | None = None
    """Name of the model, where its server has several."""
    api_key_env: str = "COA_API_KEY"
    """Environment variable that holds the server's key."""
    temperature: float | None = Field(None, ge=0)
    """Sampling temperature of the team's model; the server's default if not given."""
    max_tokens: int | None = Field(None, ge=1)
    """Maximum number of tokens of each model call."""
    world: str | None = None
    """Offline world of the team `world`: atlas, atlas:SEED, or a folder of `coa world build`."""
    seed: int = Field(0, ge=0)
    """Decides where the scripted expert errs. For the team `world` without a model."""
    errors: float = Field(0.25, ge=0, le=1)
    """Probability that the scripted expert errs where it can. For the team `world` without a model."""
    jobs: int = Field(8, ge=1)
    """Number of teams that run at the same time, each in its own process."""
    time_limit_s: float = Field(1800.0, gt=0)
    """Seconds for each task."""
    limit: int | None = Field(None, ge=1)
    """Run only the first N tasks."""
    retry_failed: bool = False
    """Run tasks again that failed or timed out."""
    price: Price | None = None
    """Price of the model's tokens."""
    prices: Path | None = None
    """TOML file with the prices of several models."""


@dataclass(frozen=True, slots=True)
class TeachReport:
    """What came of it. Counts and usage are of this call; `resumed` tasks had a trace before."""

    out: Path
    total: int
    resumed: int
    answered: int
    failed: int
    refused: int
    """Runs that could not be recorded faithfully; only their cost is kept."""
    timed_out: int
    usage: Usage
    cost: float | None
    """None where no price is known."""
    problems: dict[str, int]
    """What went wrong, and how often."""
    seconds: float

    @property
    def done(self) -> int:
        return self.resumed + self.answered + self.failed + self.refused + self.timed_out

    @property
    def complete(self) -> bool:
        """Whether every run of this call ended with an answer or by its own decision."""
        return not (self.failed or self.refused or self.timed_out)


def teach(
    config: TeachConfig, tasks: str | Path | Iterable[Task], out: str | Path, *, progress: Progress | None = None
) -> TeachReport:
    """Run a team over tasks (a file or tasks) and record each run in `out`, one ATIF file for each task.

    Tasks that have a file already are not run again. Ctrl-C ends the teams and is raised; finished runs are in their
    files, and the same call runs the rest.
    """
    if importlib.util.find_spec("smolagents") is None:
        raise RecordingError(
            "running a team needs smolagents", hint=f"{sys.executable} -m pip install 'chain-of-agents[teacher]'"
        )
    progress, started = progress or Silent(), time.monotonic()
    team = _team(config)
    price = _price(config, team.model_name or "")
    source = read_tasks(tasks) if isinstance(tasks, str | Path) else tasks
    progress.start("tasks")
    try:
        counts = run_team(
            islice(source, config.limit),
            team,
            out,
            jobs=config.jobs,
            time_limit_s=config.time_limit_s,
            retry_failed=config.retry_failed,
            show=lambda counts: progress.update(counts.done, counts.total, _note(counts, price)),
        )
    finally:
        progress.finish()
    return TeachReport(
        out=Path(out),
        total=counts.total,
        resumed=counts.resumed,
        answered=counts.answered,
        failed=counts.failed,
        refused=counts.refused,
        timed_out=counts.cut,
        usage=counts.usage,
        cost=None if price is None else price.of(counts.usage),
        problems=dict(counts.problems),
        seconds=time.monotonic() - started,
    )


def _team(config: TeachConfig) -> Team:
    name = config.model_name
    if config.model is not None:
        name = run_blocking(_served(config.model, name, config.api_key_env))
    team = Team(config.team, config.model, name, config.api_key_env, config.temperature, config.max_tokens)
    if config.team != WORLD:
        if config.world is not None:
            raise RecordingError("--world is for --team world", hint="teams of your own bring their own tools")
        return team
    if config.world is None:
        raise RecordingError("--team world needs a world", hint="add --world atlas, or the folder of a world")
    arguments: dict[str, JsonValue] = {"world": str(locate(config.world).resolve())}
    if team.url is None:
        # Without a server the expert plays every agent, and does the same at any time.
        arguments |= {"seed": config.seed, "errors": config.errors}
    return replace(team, factory=FACTORY, arguments=tuple(arguments.items()), timeless=team.url is None)


async def _served(url: str, name: str | None, api_key_env: str) -> str:
    """The name to ask for: the given one, or the only one the server has."""
    if not url.startswith(("http://", "https://")):
        raise ModelError(f"--model {url!r} is not a URL", hint="give the team an OpenAI-compatible server: http://...")
    if name is not None:
        return name
    server = ModelServer(url, key=os.environ.get(api_key_env))
    try:
        answer = await server.get("/v1/models")
    finally:
        await server.close()
    rows = answer.get("data") if isinstance(answer, dict) else None
    names = [str(row.get("id")) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    if len(names) != 1:
        raise ModelError(f"{url} serves {', '.join(names) or 'no model that it lists'}", hint="add --model-name NAME")
    return names[0]


def _price(config: TeachConfig, name: str) -> Price | None:
    if config.price is not None or config.prices is None:
        return config.price
    return price_of(name, config.prices)


def _note(counts: TeachCounts, price: Price | None) -> str:
    """For a progress line: what came of the tasks, what they cost, how long the rest will take."""
    named = {"before": counts.resumed, "answered": counts.answered, "failed": counts.failed}
    named |= {"refused": counts.refused, "timed out": counts.cut, "running": counts.running}
    parts = [f"{count} {name}" for name, count in named.items() if count]
    parts.append(f"{counts.usage.total_tokens:,} tokens in {counts.usage.model_calls:,} calls")
    if price is not None:
        parts.append(f"cost {price.of(counts.usage):.4g}")
    now, left = counts.done - counts.resumed, counts.total - counts.done
    if now and left:
        each = (time.monotonic() - counts.started) / now
        parts.append(f"{timedelta(seconds=round(each * left))} left")
    return ", ".join(parts)
