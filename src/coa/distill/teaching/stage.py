"""`teach`: run a smolagents team over tasks and record everything it does, as one call.

It asks the server which model it has, resolves `world` to the team of an offline world, and leaves the running to
`pool.py`: processes that build the team anew for each task and write one ATIF file each.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from pydantic import Field, JsonValue

from coa.blocking import run_blocking
from coa.distill.teaching.pool import run_team
from coa.distill.teaching.results import TeachReport
from coa.distill.teaching.team import Team
from coa.errors import ModelError, RecordingError
from coa.models.connect import only_model
from coa.models.price import Price, price_of
from coa.progress import Progress, Silent
from coa.trajectory.formats.tasks import read_tasks
from coa.trajectory.types import Frozen, Task
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
    team, progress = _team(config), progress or Silent()
    price = config.price
    if price is None and config.prices is not None:
        price = price_of(team.model_name or "", config.prices)
    source = read_tasks(tasks) if isinstance(tasks, str | Path) else tasks
    progress.start("tasks")
    try:
        return run_team(
            islice(source, config.limit), team, out, jobs=config.jobs, time_limit_s=config.time_limit_s,
            retry_failed=config.retry_failed, price=price, progress=progress,
        )  # fmt: skip
    finally:
        progress.finish()


def _team(config: TeachConfig) -> Team:
    name = config.model_name
    if config.model is not None:
        if not config.model.startswith(("http://", "https://")):
            hint = "give the team an OpenAI-compatible server: http://..."
            raise ModelError(f"--model {config.model!r} is not a URL", hint=hint)
        name = name or run_blocking(only_model(config.model, config.api_key_env))
    team = Team(config.team, config.model, name, config.api_key_env, config.temperature, config.max_tokens)
    if config.team != WORLD:
        if config.world is not None:
            raise RecordingError("--world is for --team world", hint="your own team brings its tools with it")
        return team
    if config.world is None:
        raise RecordingError("--team world needs a world", hint="add --world atlas, or the folder of a world")
    arguments: dict[str, JsonValue] = {"world": str(locate(config.world).resolve())}
    if team.url is None:
        # Without a server the expert plays every agent, and does the same at any time.
        arguments |= {"seed": config.seed, "errors": config.errors}
    return replace(team, factory=FACTORY, arguments=tuple(arguments.items()), timeless=team.url is None)
