"""`coa run`: ask one question and watch the agents at work, or run a file of tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coa.cli import options
from coa.cli.configuring import accepting, misused
from coa.cli.output import echo, echo_text

if TYPE_CHECKING:
    from coa.trajectory import Task

Command = accepting(
    options.RUN_FLAGS | {"--judge-name": "judge_name", "--judge-key-env": "judge_key_env"},
)
_BATCH = "A file of tasks"


def run(
    question: Annotated[
        str | None, typer.Argument(help="What to find out. Without one, nano is asked a question of its world.")
    ] = None,
    model: options.Model = None,
    model_name: options.ModelName = None,
    profile: options.Profile = None,
    world: options.World = None,
    tool: options.Tool = None,
    mcp: options.Mcp = None,
    temperature: options.Temperature = None,
    seed: options.Seed = None,
    budget: options.Budget = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Type one question after another, each with the conversation before it.")
    ] = False,
    file: Annotated[
        list[str] | None, typer.Option(help="File in this folder that the question is about. Repeatable.")
    ] = None,
    best_of: Annotated[
        int | None,
        typer.Option(min=1, help="Number of attempts from which one is selected.", rich_help_panel=options.ATTEMPTS),
    ] = None,
    select: options.Select = None,
    judge: options.Judge = None,
    tasks: Annotated[
        Path | None, typer.Option(help="File of tasks to run instead of one question.", rich_help_panel=_BATCH)
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Number of attempts at each task.", rich_help_panel=_BATCH)] = 1,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Number of runs at a time.", rich_help_panel=_BATCH)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Number of tasks to take from the beginning.", rich_help_panel=_BATCH)
    ] = None,
    shard: options.Shard = None,
    ray: options.Ray = None,
    ray_actors: options.RayActors = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run failed and interrupted attempts again.", rich_help_panel=_BATCH)
    ] = False,
    config: options.Config = None,
    settings: options.Set = None,
    show_settings: options.ShowSettings = False,
    dry_run: options.DryRun = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Append the trajectories to this .jsonl file, or to the one in this folder.",
                     rich_help_panel=options.OUTPUT),
    ] = None,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Ask one question and watch the agents work, chat, or run a file of tasks. Resumes from --out."""
    from coa.cli.asking import ask_one
    from coa.cli.batch import Batch, run_batch
    from coa.cli.chatting import chat as chat_about
    from coa.cli.configuring import resolve, run_flags
    from coa.cli.terminal import show_warnings
    from coa.models.places import refuse_incomplete
    from coa.models.tokenizer import BUILT_IN, NANO
    from coa.runtime import AskConfig
    from coa.runtime.nano import about_nano, outside_training
    from coa.trajectory.store import to_append
    from coa.worlds.folder import sample_task

    show_warnings()
    given = run_flags(
        model=model, model_name=model_name, profile=profile, world=world, tool=tool, mcp=mcp, temperature=temperature,
        seed=seed, budget=budget, best_of=best_of, select=select, judge=judge, concurrency=concurrency, shard=shard,
        ray=ray, ray_actors=ray_actors,
    )  # fmt: skip
    chosen = resolve(AskConfig, config, settings, given, show_settings=show_settings, dry_run=dry_run)
    if tasks is not None:
        if chosen.best_of > 1:
            raise misused("--best-of is for one question; with --tasks, --samples makes several attempts")
        if out is None and not as_json:
            raise misused("--tasks needs --out to keep the runs in, or --json to print them")
    elif chosen.shard is not None or chosen.ray is not None:
        raise misused("--shard and --ray are for a file of tasks; add --tasks FILE")
    elif samples > 1 or retry_failed:
        raise misused("--samples and --retry-failed are for --tasks; --best-of tries a question several times")
    if chat and (tasks is not None or chosen.best_of > 1):
        raise misused("--chat asks one question after another, without --tasks and --best-of")
    if chosen.model in BUILT_IN and chosen.ray is None:
        refuse_incomplete(chosen.model)  # before anything is printed or a world is made
    world_used = chosen.resolved().world
    if chat:
        if chosen.model == NANO and world_used:
            echo_text(about_nano(), err=True)
        kept = to_append(out) if out is not None else None
        code = chat_about(question, lambda text: _task(text, file or [], world_used), chosen, kept, as_json=as_json)
        raise typer.Exit(code)
    if tasks is None and chosen.model == NANO and world_used and (question is None or question.strip()):
        echo_text(about_nano(), err=True)
        if question is None:
            question = sample_task(world_used, chosen.seed).question
            echo(f"question: {question}", err=True)
        elif why := outside_training(question, world_used):
            echo(f"note: {why}", err=True)
    asked = _tasks(question, tasks, limit, file or [], world_used)
    kept = to_append(out) if out is not None else None
    if tasks is not None:
        code = run_batch(Batch(asked, samples, kept, retry_failed, as_json), chosen)
    else:
        code = ask_one(asked[0], chosen, kept, as_json=as_json)
    if code:
        raise typer.Exit(code)


def _tasks(
    question: str | None, file: Path | None, limit: int | None, attached: list[str], world: str | None
) -> list[Task]:
    from itertools import islice

    from coa.errors import StoreError
    from coa.trajectory.formats.tasks import read_tasks

    if (question is None) == (file is None):
        raise misused("give a question, or --tasks FILE")
    if question is not None:
        return [_task(question, attached, world)]
    if attached:
        raise misused("--file belongs to a question; the rows of --tasks name their own files")
    assert file is not None
    found = list(islice(read_tasks(file), limit))
    if not found:
        raise StoreError(f"{file} holds no task", hint="give a file with one JSON object per line, with a `question`")
    return found


def _task(question: str, attached: list[str], world: str | None) -> Task:
    from coa.runtime.opening import task_of
    from coa.worlds.folder import known_answer

    task = task_of(question, files=attached)
    return task.model_copy(update={"answer": known_answer(world, question)}) if world else task
