"""`coa run`: ask one question and watch the agents at work, or run a file of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from coa.cli.asking import Prompt
    from coa.trajectory import Limits, Profile, Task, Trajectory


class Prompts(StrEnum):
    PROFILE = "profile"
    ROW = "row"


def run(
    question: Annotated[str | None, typer.Argument(help="What to find out.")] = None,
    tasks: Annotated[
        Path | None, typer.Option(help="A file of tasks (.jsonl, .parquet) instead of a question.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="URL of a model server, smollm2, a model folder, or a hub id.")
    ] = "smollm2",
    model_name: Annotated[str | None, typer.Option(help="Which model of the server, if it serves several.")] = None,
    profile: Annotated[str, typer.Option(help="Profile by name or .toml.")] = "web",
    tool: Annotated[
        list[str] | None, typer.Option(help="name=setting, or name=module:factory for one of your own. Repeatable.")
    ] = None,
    mcp: Annotated[
        list[str] | None,
        typer.Option(help="All tools of an MCP server: its command in quotes, or its URL. Repeatable."),
    ] = None,
    file: Annotated[
        list[str] | None, typer.Option(help="A file that the question is about, in this folder. Repeatable.")
    ] = None,
    mode: Annotated[str, typer.Option(help="How to talk to a server: auto, tokens, or chat.")] = "auto",
    tokenizer: Annotated[
        str | None, typer.Option(help="For token mode, where the server's model does not tell.")
    ] = None,
    api_key_env: Annotated[str, typer.Option(help="Environment variable that holds the server's key.")] = "COA_API_KEY",
    prompt: Annotated[str, typer.Option(help="Whose prompt: profile, or row (each task's own).")] = "profile",
    prompt_file: Annotated[Path | None, typer.Option(help="A system prompt to use instead of the profile's.")] = None,
    temperature: Annotated[float, typer.Option(min=0)] = 1.0,
    top_p: Annotated[float, typer.Option(min=0, max=1)] = 0.9,
    top_k: Annotated[int, typer.Option(min=0, help="0: all of the vocabulary.")] = 20,
    seed: Annotated[int | None, typer.Option(help="For the same run again, where the model allows it.")] = None,
    constrain: Annotated[
        str, typer.Option(help="Hold the model to the protocol: auto (small local models), always, or never.")
    ] = "auto",
    budget: Annotated[
        list[str] | None, typer.Option(help="Of a run, instead of the profile's: seconds=60, cost=0.1, ... Repeatable.")
    ] = None,
    price_in: Annotated[float | None, typer.Option(min=0, help="Price of a million tokens read.")] = None,
    price_cached: Annotated[float | None, typer.Option(min=0, help="Of a million read from the cache.")] = None,
    price_out: Annotated[float | None, typer.Option(min=0, help="Price of a million tokens written.")] = None,
    prices: Annotated[Path | None, typer.Option(help="Prices of several models, a .toml file.")] = None,
    best_of: Annotated[int, typer.Option(min=1, help="Sample so many and pick one.")] = 1,
    select: Annotated[str, typer.Option(help="How to pick: majority, self-check, or judge.")] = "majority",
    judge: Annotated[
        str | None, typer.Option(help="For --select judge: URL of the judge; else the model itself.")
    ] = None,
    judge_name: Annotated[str | None, typer.Option(help="Which model of the judge's server.")] = None,
    judge_key_env: Annotated[str, typer.Option(help="Environment variable with the judge's key.")] = "COA_API_KEY",
    samples: Annotated[int, typer.Option(min=1, help="With --tasks: attempts at each.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="With --tasks: runs at a time.")] = 64,
    limit: Annotated[int | None, typer.Option(min=1, help="With --tasks: only the first so many.")] = None,
    retry_failed: Annotated[bool, typer.Option(help="With --tasks: try the failed runs of --out again.")] = False,
    cache: Annotated[
        str, typer.Option(help="Answers of the tools: off, record (keep and use), or replay (never ask).")
    ] = "off",
    cache_file: Annotated[Path | None, typer.Option(help="Where they are kept; one file may serve many runs.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Append the trajectories to this .jsonl file, or to the one in this folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print trajectories as JSON, nothing else.")] = False,
) -> None:
    """Ask one question and see the agents as they act; or run a file of tasks, going on from what --out holds."""
    from coa.cli.asking import Setting, watched
    from coa.cli.asking import best_of as pick_best
    from coa.cli.batch import Batch, run_batch, summary
    from coa.cli.display import close
    from coa.cli.models import open_model, price_finder
    from coa.cli.terminal import show_warnings
    from coa.cli.tools import check_files, tell_absent
    from coa.models.base import Sampling
    from coa.models.connect import Mode
    from coa.runtime import Constrain, Select
    from coa.tools.cache import CacheMode
    from coa.tools.recorded import open_cached_tools
    from coa.trajectory import JsonlWriter, Stop, load_profile

    show_warnings()
    if tasks is not None and best_of > 1:
        raise typer.BadParameter("--best-of is for one question; with --tasks, --samples makes several attempts")
    if tasks is not None and out is None and not as_json:
        raise typer.BadParameter("--tasks needs --out to keep the runs in, or --json to print them")
    if tasks is None and (samples > 1 or retry_failed):
        raise typer.BadParameter(
            "--samples and --retry-failed are for --tasks; --best-of tries a question several times"
        )
    if cache_file is not None and cache == "off":
        raise typer.BadParameter("--cache-file needs --cache record or --cache replay")
    how, talk = _one_of(Select, select, "--select"), _one_of(Mode, mode, "--mode")
    held, keeping = _one_of(Constrain, constrain, "--constrain"), _one_of(CacheMode, cache, "--cache")
    chosen = load_profile(profile)
    price = price_finder(price_in, price_cached, price_out, prices)
    limits, given = _limits(chosen, budget or []), _tasks(question, tasks, limit, file or [])
    if keeping is not CacheMode.REPLAY:  # which opens no file
        check_files(given, tool or [], named_by_hand=tasks is None)
    used = _profiles(chosen, given)
    files = ["read_file"] if any(task.files for task in given) else []
    wanted = tuple(dict.fromkeys([*(tag for one in used for tag in one.tools), *files]))
    tags = tuple(dict.fromkeys(tag for one in used for tag in one.tags))
    prompting = _prompting(_one_of(Prompts, prompt, "--prompt"), prompt_file, given, tasks)
    sampling = Sampling(temperature, top_p, top_k, seed=seed)
    kept = _file(out) if out is not None else None
    if kept is not None:
        JsonlWriter(kept).close()  # that it cannot be written is better known before anything is spent

    async def go() -> int:
        async with AsyncExitStack() as stack:
            box = await stack.enter_async_context(
                open_cached_tools(tool or [], wanted=wanted, mode=keeping, file=cache_file, mcp=mcp or [], tags=tags)
            )
            tell_absent(box.absent)
            at_once = concurrency if tasks is not None else best_of
            asked = await open_model(
                model, model_name, mode=talk, tokenizer=tokenizer, api_key_env=api_key_env, rows=min(at_once, 32)
            )
            stack.push_async_callback(asked.close)
            setting = Setting(asked, box.tools, chosen, sampling, limits, price(asked.name), prompting, held)
            if tasks is not None:
                batch = Batch(given, samples, concurrency, kept, retry_failed, as_json)
                progress, ended = await run_batch(batch, setting)
                typer.echo(summary(progress, batch, ended=ended), err=as_json)
                return int(progress.failed > 0 or not ended)
            if best_of == 1:
                return finish([await watched(setting, given[0], show=not as_json)])
            other = None
            if how is Select.JUDGE and judge is not None:
                other = await open_model(judge, judge_name, mode=Mode.CHAT, api_key_env=judge_key_env)
                stack.push_async_callback(other.close)
            return finish(await pick_best(setting, given[0], best_of, how, other))

    def finish(done: Sequence[Trajectory]) -> int:
        if kept is not None:
            with JsonlWriter(kept) as writer:
                for trajectory in done:
                    writer.write(trajectory)
        if not done:
            typer.echo("interrupted before anything was written", err=True)
            return 1
        picked = next((t for t in done if t.meta.get("selected")), done[0])
        if as_json:
            typer.echo(picked.to_json())
        else:
            close(picked, done)
        return int(picked.stop in (Stop.FAILED, Stop.INTERRUPTED))

    if code := asyncio.run(go()):
        raise typer.Exit(code)


Choice = TypeVar("Choice", bound=StrEnum)


def _one_of(kind: type[Choice], text: str, option: str) -> Choice:
    try:
        return kind(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option} is one of {', '.join(kind)}, not {text!r}") from error


def _tasks(question: str | None, file: Path | None, limit: int | None, attached: Sequence[str]) -> list[Task]:
    from coa.errors import StoreError
    from coa.trajectory import Task
    from coa.trajectory.formats.tasks import content_id, read_tasks

    if (question is None) == (file is None):
        raise typer.BadParameter("give a question, or --tasks FILE")
    if question is not None:
        return [Task(id=content_id(question, None), question=question, files=tuple(attached))]
    if attached:
        raise typer.BadParameter("--file belongs to a question; the rows of --tasks name their own files")
    assert file is not None
    found = list(islice(read_tasks(file), limit))
    if not found:
        raise StoreError(f"{file} holds no task")
    return found


def _profiles(chosen: Profile, tasks: Sequence[Task]) -> list[Profile]:
    """All that the tasks use. One that cannot be read is left to the rows that name it: they fail, the others run."""
    from coa.errors import CoaError
    from coa.trajectory import load_profile

    found = []
    for name in dict.fromkeys(task.profile for task in tasks):
        try:
            found.append(load_profile(name) if name else chosen)
        except CoaError:
            continue
    return found


def _limits(profile: Profile, budgets: Sequence[str]) -> Limits | None:
    """The profile's, with what `--budget` says instead."""
    from pydantic import ValidationError

    from coa.trajectory import Limits

    if not budgets:
        return None
    pairs = dict(item.partition("=")[::2] for item in budgets)
    try:
        return Limits.model_validate({**profile.limits.model_dump(), **pairs})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        known = ", ".join(Limits.model_fields)
        raise typer.BadParameter(f"--budget {name}: {first['msg']}; budgets are {known}") from error


def _prompting(whose: Prompts, file: Path | None, tasks: Sequence[Task], source: Path | None) -> Prompt:
    """What stands before a task's run; None for what the profile says."""
    from coa.errors import StoreError
    from coa.trajectory import Message
    from coa.trajectory.profile import asking

    if whose is Prompts.ROW:
        if file is not None or source is None:
            raise typer.BadParameter("--prompt row takes the prompts of --tasks, without a --prompt-file")
        if without := [task.id for task in tasks if not task.prompt]:
            raise StoreError(
                f"{source}: {len(without)} of {len(tasks)} tasks bring no prompt, the first is {without[0]!r}",
                cure="use --prompt profile, or a --prompt-file",
            )
        return lambda task: task.prompt
    if file is None:
        return lambda task: None
    try:
        system = Message(role="system", content=file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise StoreError(f"cannot read the prompt {file}: {reason}", cure="check --prompt-file") from error
    return lambda task: [system, asking(task)]


def _file(out: Path) -> Path:
    from coa.trajectory.store import NAMES

    if out.suffix == ".parquet":
        raise typer.BadParameter("--out: runs are appended to .jsonl; coa export makes Parquet of it")
    return out if out.suffix == ".jsonl" else out / NAMES[0]
