"""`teach`: run a team over tasks and record everything it does, as one call.

A team is a smolagents factory or any program. For a factory it asks the server which model it has, resolves `world` to
the team of an offline world, and leaves the running to `pool.py`: processes that build the team anew for each task and
write one ATIF file each. A program (`command`) is run by `program.py` behind the recording gateway.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from pydantic import Field, JsonValue

from coa.blocking import run_blocking
from coa.distill.gateway.config import RecordConfig
from coa.distill.teaching.pool import run_team
from coa.distill.teaching.program import Program, run_command
from coa.distill.teaching.results import TeachReport
from coa.distill.teaching.team import Team
from coa.errors import ModelError, RecordingError
from coa.models.connect import only_model
from coa.models.price import Price, price_of
from coa.models.server import key_for
from coa.progress import Progress, Silent
from coa.trajectory.formats.tasks import read_tasks
from coa.trajectory.types import Frozen, Task
from coa.worlds.folder import locate
from coa.worlds.team import FACTORY

WORLD: Final = "world"
"""The team that comes with an offline world."""


class TeachConfig(Frozen):
    """Settings of `coa teach`: the team or command to run, its model and its limits."""

    team: str | None = None
    """`module:factory` or `file.py:factory`, where `factory(model)` returns a smolagents agent; or `world`."""
    command: str | None = None
    """Program to run once for each task, instead of `team`. `{question}`, `{id}` and `{file}` stand for the task."""
    answer_field: str | None = None
    """Field with the answer in the JSON object that the program prints. Default: the answer is its last line."""
    model: str | None = None
    """URL of the model server for the team. A program's calls are recorded on their way there; a smolagents team may
    bring its own models instead."""
    upstream_anthropic: str | None = None
    """URL of another server for the program's calls of Anthropic Messages."""
    tokens: bool = False
    """Ask vLLM, SGLang or llama.cpp for token ids and log probabilities of the program's calls."""
    redact: tuple[str, ...] = ()
    """Regular expressions whose matches in the recorded calls of the program are replaced by `[redacted]`."""
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
    """Seed of the scripted expert's errors. For the team `world` without a model."""
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
    """Run a team over tasks and record each run.

    Args:
        config: The team, its model and its limits.
        tasks: A file, folder or hub id of tasks, or the tasks themselves.
        out: Folder of the recordings, one file for each task. Tasks that have a file are not run again.
        progress: Shows how far the work is.

    Returns:
        Counts, usage and problems of this call.

    Raises:
        CoaError: The team cannot be run, or a setting is wrong.
        KeyboardInterrupt: Ctrl-C was pressed. Finished runs are kept, and the same call runs the rest.
    """
    if (config.team is None) == (config.command is None):
        raise RecordingError(
            "name the team with --team, or a program with --command"
            if config.team is None
            else "give --team or --command, not both",
            hint="--team module:factory for smolagents, --command 'python my_team.py {question}' for anything else",
        )
    source, progress = read_tasks(tasks) if isinstance(tasks, str | Path) else tasks, progress or Silent()
    source = islice(source, config.limit)
    progress.start("tasks")
    try:
        return (
            _teach_command(config, source, out, progress)
            if config.command is not None
            else _teach_team(config, source, out, progress)
        )
    finally:
        progress.finish()


def _teach_command(config: TeachConfig, tasks: Iterable[Task], out: str | Path, progress: Progress) -> TeachReport:
    assert config.command is not None
    for name in ("world", "temperature", "max_tokens"):
        if getattr(config, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise RecordingError(
                f"{flag} is for --team", hint="the program decides this itself; write it into --command"
            )
    if config.model is None:
        raise RecordingError(
            "--command needs a model server", hint="add --model URL: the program's calls are sent there"
        )
    recording = RecordConfig(
        upstream=config.model, upstream_anthropic=config.upstream_anthropic, port=0, tokens=config.tokens,
        redact=config.redact,
    )  # fmt: skip
    program = Program(config.command, config.answer_field, key_for(config.model, config.api_key_env))
    return run_command(
        tasks, program, recording, out, jobs=config.jobs, time_limit_s=config.time_limit_s,
        retry_failed=config.retry_failed, price=_price(config, config.model_name), progress=progress,
    )  # fmt: skip


def _teach_team(config: TeachConfig, tasks: Iterable[Task], out: str | Path, progress: Progress) -> TeachReport:
    if importlib.util.find_spec("smolagents") is None:
        raise RecordingError("running a team needs smolagents", needs=["teacher"])
    for name in ("answer_field", "upstream_anthropic", "tokens", "redact"):
        if getattr(config, name):
            flag = "--answer-field" if name == "answer_field" else f"--set {name}"
            raise RecordingError(
                f"{flag} is for --command", hint="a smolagents team is recorded without the gateway; leave this out"
            )
    team = _team(config)
    return run_team(
        tasks, team, out, jobs=config.jobs, time_limit_s=config.time_limit_s,
        retry_failed=config.retry_failed, price=_price(config, team.model_name), progress=progress,
    )  # fmt: skip


def _price(config: TeachConfig, model: str | None) -> Price | None:
    if config.price is None and config.prices is not None:
        return price_of(model or "", config.prices)
    return config.price


def _team(config: TeachConfig) -> Team:
    assert config.team is not None
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
