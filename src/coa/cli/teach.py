"""`coa teach`: run a multi-agent team over a file of tasks and record everything it does."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coa.errors import ModelError, RecordingError
from coa.report import plural

if TYPE_CHECKING:
    from coa.distill.teaching.teach import Progress
    from coa.distill.teaching.team import Team

REDRAW_S: Final = 0.5
LOG_S: Final = 30.0


def teach(
    tasks: Annotated[Path, typer.Argument(help="Tasks: .jsonl, .json or .parquet with `question`.")],
    team: Annotated[
        str,
        typer.Option(help="module:factory or file.py:factory, where factory(model) returns an agent; or world."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the traces, one ATIF file for each task.")],
    model: Annotated[str | None, typer.Option(help="URL of an OpenAI-compatible server for the team.")] = None,
    model_name: Annotated[str | None, typer.Option(help="Which of the server's models.")] = None,
    api_key_env: Annotated[str, typer.Option(help="Environment variable that holds the key.")] = "COA_API_KEY",
    world: Annotated[
        str | None, typer.Option(help="For --team world: atlas, atlas:SEED, or a folder of coa world build.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="For --team world: of the expert's errors.")] = 0,
    errors: Annotated[
        float, typer.Option(min=0, max=1, help="For --team world: how often the expert errs where it can.")
    ] = 0.25,
    jobs: Annotated[int, typer.Option(min=1, help="Teams at work at once, a process each.")] = 8,
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds for each task.")] = 1800.0,
    temperature: Annotated[float | None, typer.Option(min=0, help="The server's default if not given.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of each model call.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed and timed-out tasks again.")] = False,
    price_in: Annotated[float | None, typer.Option(min=0, help="Price of a million tokens read.")] = None,
    price_cached: Annotated[float | None, typer.Option(min=0, help="Of a million read from the cache.")] = None,
    price_out: Annotated[float | None, typer.Option(min=0, help="Price of a million tokens written.")] = None,
    prices: Annotated[Path | None, typer.Option(help="Prices of several models, a .toml file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON.")] = False,
) -> None:
    """Run a smolagents team over tasks and record every agent, call and token as ATIF. Resumes by default."""
    import orjson

    from coa.cli.models import price_finder
    from coa.cli.terminal import show_warnings
    from coa.distill.teaching.teach import teach as run_teams
    from coa.distill.teaching.team import Team
    from coa.trajectory.formats.tasks import read_tasks

    show_warnings()
    if importlib.util.find_spec("smolagents") is None:
        raise RecordingError(
            "running a team needs smolagents", hint=f"{sys.executable} -m pip install 'chain-of-agents[teacher]'"
        )
    if model is not None:
        model_name = asyncio.run(_served(model, model_name, api_key_env))
    chosen = list(islice(read_tasks(tasks), limit))
    setting = Team(team, model, model_name, api_key_env, temperature, max_tokens)
    if team == "world":
        setting = _world_team(setting, world, seed, errors)
    elif world is not None:
        raise typer.BadParameter("--world is for --team world; teams of your own bring their own tools")
    price = price_finder(price_in, price_cached, price_out, prices)(model_name or "")

    def cost(progress: Progress) -> float | None:
        return None if price is None else price.of(progress.usage)

    show, clear = _display(cost)
    started = time.monotonic()
    try:
        progress = run_teams(
            chosen, setting, out, jobs=jobs, time_limit_s=time_limit, retry_failed=retry_failed, show=show
        )
    except KeyboardInterrupt:
        clear()
        typer.echo(f"interrupted; finished runs are in {out}, the same command goes on from there", err=True)
        raise typer.Exit(1) from None
    clear()
    if as_json:
        counts = {
            name: getattr(progress, name) for name in ("total", "resumed", "answered", "failed", "refused", "cut")
        }
        spent = progress.usage.model_dump(mode="json") | {"cost": cost(progress)}
        typer.echo(orjson.dumps({**counts, "usage": spent, "seconds": time.monotonic() - started}).decode())
    else:
        _close(progress, out, cost)
    if progress.failed or progress.refused or progress.cut:
        raise typer.Exit(1)


def _world_team(team: Team, world: str | None, seed: int, errors: float) -> Team:
    """The team of a world: with the model of a server, or played by the expert, which does the same at any time."""
    from coa.worlds.folder import locate
    from coa.worlds.team import FACTORY

    if world is None:
        raise typer.BadParameter("--team world needs --world atlas, or the folder of a world")
    folder = str(locate(world).resolve())
    expert = {} if team.url is not None else {"seed": seed, "errors": errors}
    return replace(
        team, factory=FACTORY, arguments=tuple({"world": folder, **expert}.items()), timeless=team.url is None
    )


async def _served(url: str, name: str | None, api_key_env: str) -> str:
    """The name to ask for: the given one, or the only one the server has."""
    from coa.models.http import Transport

    if not url.startswith(("http://", "https://")):
        raise ModelError(f"--model {url!r} is not a URL", hint="give the team an OpenAI-compatible server: http://...")
    if name is not None:
        return name
    key = os.environ.get(api_key_env)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    transport = Transport(url.rstrip("/").removesuffix("/v1"), headers=headers)
    try:
        answer = await transport.get("/v1/models")
    finally:
        await transport.close()
    rows = answer.get("data") if isinstance(answer, dict) else None
    names = [str(row.get("id")) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    if len(names) != 1:
        raise ModelError(f"{url} serves {', '.join(names) or 'no model that it lists'}", hint="add --model-name NAME")
    return names[0]


def standing(progress: Progress, cost: float | None) -> str:
    """One line: done and total, what came of them, what they cost, how long it will take."""
    parts = [f"{progress.done}/{progress.total} done" + (f" ({progress.resumed} before)" if progress.resumed else "")]
    named = (("answered", progress.answered), ("failed", progress.failed), ("refused", progress.refused))
    parts += [f"{count} {name}" for name, count in (*named, ("timed out", progress.cut)) if count]
    if progress.running:
        parts.append(f"{progress.running} running")
    parts.append(f"{progress.usage.total_tokens:,} tokens in {plural(progress.usage.model_calls, 'call')}")
    if cost is not None:
        parts.append(f"cost {cost:.4g}")
    now, left = progress.done - progress.resumed, progress.total - progress.done
    if now and left:
        each = (time.monotonic() - progress.started) / now
        parts.append(f"{timedelta(seconds=round(each * left))} left")
    return ", ".join(parts)


def _display(cost: Callable[[Progress], float | None]) -> tuple[Callable[[Progress], None], Callable[[], None]]:
    """On stderr: redrawn in place for a person, a line now and then for a log."""
    person = sys.stderr.isatty()
    shown = time.monotonic() - (REDRAW_S if person else 0.0)

    def show(progress: Progress) -> None:
        nonlocal shown
        if time.monotonic() - shown < (REDRAW_S if person else LOG_S):
            return
        shown = time.monotonic()
        line = standing(progress, cost(progress))
        typer.echo(f"\r\033[K{line}" if person else line, err=True, nl=not person)

    def clear() -> None:
        if person:
            typer.echo("\r\033[K", err=True, nl=False)

    return show, clear


def _close(progress: Progress, out: Path, cost: Callable[[Progress], float | None]) -> None:
    from coa.cli.terminal import printable

    typer.echo(standing(progress, cost(progress)))
    used = progress.usage
    typer.echo(
        f"spent now: {used.prompt_tokens:,} tokens read, {used.completion_tokens:,} written, "
        f"{plural(used.tool_calls, 'tool call')}"
    )
    typer.echo(f"kept in {out}")
    for problem, count in sorted(progress.problems.items(), key=lambda item: -item[1])[:5]:
        typer.echo(f"  {count} x {printable(problem)[:300]}", err=True)
    if progress.failed or progress.cut:
        typer.echo("the same command with --retry-failed runs the failed and timed-out ones again", err=True)
