"""`coa run`: ask one question and watch the agents at work, or run a file of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coa.cli import options

if TYPE_CHECKING:
    from coa.trajectory import Task, Trajectory


def run(
    question: Annotated[str | None, typer.Argument(help="What to find out; nano has questions of its own.")] = None,
    tasks: Annotated[
        Path | None, typer.Option(help="A file of tasks (.jsonl, .parquet) instead of a question.")
    ] = None,
    model: options.Model = "smollm2",
    model_name: options.ModelName = None,
    profile: options.Profile = None,
    world: options.World = None,
    tool: options.Tool = None,
    mcp: options.Mcp = None,
    file: Annotated[
        list[str] | None, typer.Option(help="A file that the question is about, in this folder. Repeatable.")
    ] = None,
    mode: options.Mode = "auto",
    tokenizer: options.Tokenizer = None,
    api_key_env: options.ApiKeyEnv = "COA_API_KEY",
    prompt: options.Prompt = "profile",
    prompt_file: options.PromptFile = None,
    temperature: Annotated[float, typer.Option(min=0)] = 1.0,
    top_p: Annotated[float, typer.Option(min=0, max=1)] = 0.9,
    top_k: Annotated[int, typer.Option(min=0, help="0: all of the vocabulary.")] = 20,
    seed: options.Seed = None,
    constrain: options.Constrained = "auto",
    budget: options.Budget = None,
    price_in: options.PriceIn = None,
    price_cached: options.PriceCached = None,
    price_out: options.PriceOut = None,
    prices: options.Prices = None,
    best_of: Annotated[int, typer.Option(min=1, help="Sample so many and pick one.")] = 1,
    select: Annotated[str, typer.Option(help="How to pick: majority, self-check, or judge.")] = "majority",
    judge: Annotated[
        str | None, typer.Option(help="For --select judge: URL of the judge; else the model itself.")
    ] = None,
    judge_name: options.JudgeName = None,
    judge_key_env: options.JudgeKeyEnv = "COA_API_KEY",
    samples: Annotated[int, typer.Option(min=1, help="With --tasks: attempts at each.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="With --tasks: runs at a time.")] = 64,
    limit: Annotated[int | None, typer.Option(min=1, help="With --tasks: only the first so many.")] = None,
    retry_failed: Annotated[bool, typer.Option(help="With --tasks: try the failed runs of --out again.")] = False,
    cache: options.Cache = "off",
    cache_file: options.CacheFile = None,
    out: Annotated[
        Path | None, typer.Option(help="Append the trajectories to this .jsonl file, or to the one in this folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print trajectories as JSON, nothing else.")] = False,
) -> None:
    """Ask one question and see the agents as they act; or run a file of tasks, going on from what --out holds."""
    from coa.cli.asking import best_of as pick_best
    from coa.cli.asking import watched
    from coa.cli.batch import Batch, run_batch, summary
    from coa.cli.display import close
    from coa.cli.models import open_model
    from coa.cli.setting import Asked, limits_of, prompting
    from coa.cli.terminal import show_warnings
    from coa.cli.world import HOME, profile_of, some_question
    from coa.folder import lock_file
    from coa.models.base import Sampling
    from coa.models.connect import Mode
    from coa.models.tokenizer import NANO
    from coa.runtime import Select
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
    how = options.one_of(Select, select, "--select")
    if model == NANO and not (world or profile or tool or mcp):
        world = HOME
        if question is None and tasks is None:
            question = some_question(HOME, seed)
            typer.echo(f"nano is asked: {question}", err=True)
    asked = Asked.of(
        model=model,
        model_name=model_name,
        mode=mode,
        tokenizer=tokenizer,
        api_key_env=api_key_env,
        tool=tool,
        world=world,
        mcp=mcp,
        cache=cache,
        cache_file=cache_file,
        constrain=constrain,
        prices=(price_in, price_cached, price_out, prices),
    )
    chosen = load_profile(profile_of(world, profile))
    limits, given = limits_of(chosen, budget or []), _tasks(question, tasks, limit, file or [])
    asked.check_files(given, named_by_hand=tasks is None)
    told = prompting(prompt, prompt_file, given, tasks)
    sampling = Sampling(temperature, top_p, top_k, seed=seed)
    kept = _file(out) if out is not None else None
    if kept is not None:
        # That it cannot be written, or that another process fills it, is better known before anything is spent.
        with lock_file(kept) if tasks is not None else nullcontext():
            JsonlWriter(kept).close()

    async def go() -> int:
        at_once = concurrency if tasks is not None else best_of
        async with AsyncExitStack() as stack:
            setting = await stack.enter_async_context(
                asked.opened(given, chosen, sampling=sampling, limits=limits, prompt=told, at_once=at_once)
            )
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


def _file(out: Path) -> Path:
    from coa.trajectory.store import NAMES

    if out.suffix == ".parquet":
        raise typer.BadParameter("--out: runs are appended to .jsonl; coa export makes Parquet of it")
    return out if out.suffix == ".jsonl" else out / NAMES[0]
