"""`coa sample`: keep the tasks that RL can learn from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coa.cli import options
from coa.report import plural

if TYPE_CHECKING:
    from coa.rl.sampling import Sampled
    from coa.runtime import Progress


def sample(
    tasks: Annotated[str, typer.Argument(help="Tasks: a file, a folder, or a hub id such as owner/name[:part].")],
    out: Annotated[Path, typer.Option(help="Kept tasks: .jsonl, .json or .parquet. Attempts are kept beside it.")],
    model: options.Model = "smollm2",
    model_name: options.ModelName = None,
    no_tools_model: Annotated[
        str | None, typer.Option(help="Who is asked without tools; else the model itself.")
    ] = None,
    no_tools_name: Annotated[str | None, typer.Option(help="Which model of that server.")] = None,
    no_tools_key_env: Annotated[str, typer.Option(help="Environment variable with its key.")] = "COA_API_KEY",
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="Attempts at each task with tools.")] = 8,
    no_tools_samples: Annotated[
        int | None, typer.Option(min=0, help="Attempts without tools; as many if not given, 0 does not ask.")
    ] = None,
    max_without_tools: Annotated[
        float, typer.Option(min=0, max=1, help="Drop what is solved without tools more often.")
    ] = 0.3,
    keep_unsolved: Annotated[bool, typer.Option("--keep-unsolved", help="Keep what is never solved.")] = False,
    solved_at: Annotated[float, typer.Option(help="The score from which on an attempt counts as solved.")] = 1.0,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Data of the fine-tuning, whose questions are dropped: file, folder or hub id. Repeatable."),
    ] = None,
    enough: Annotated[
        bool, typer.Option("--enough", help="One attempt after another, and none once a task's fate is certain.")
    ] = False,
    scorer: Annotated[
        str, typer.Option(help="Who scores: auto, exact, math, code, judge, module:function ...")
    ] = "auto",
    judge: Annotated[str | None, typer.Option(help="URL of a model that judges answers no rule can compare.")] = None,
    judge_name: options.JudgeName = None,
    judge_key_env: options.JudgeKeyEnv = "COA_API_KEY",
    profile: options.Profile = None,
    world: options.World = None,
    tool: options.Tool = None,
    mcp: options.Mcp = None,
    mode: options.Mode = "auto",
    tokenizer: options.Tokenizer = None,
    api_key_env: options.ApiKeyEnv = "COA_API_KEY",
    prompt: options.Prompt = "profile",
    prompt_file: options.PromptFile = None,
    # As RL samples, or the rates would be those of another policy.
    temperature: Annotated[float, typer.Option(min=0)] = 1.0,
    top_p: Annotated[float, typer.Option(min=0, max=1)] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="0: all of the vocabulary.")] = 0,
    seed: options.Seed = None,
    constrain: options.Constrained = "never",
    budget: options.Budget = None,
    price_in: options.PriceIn = None,
    price_cached: options.PriceCached = None,
    price_out: options.PriceOut = None,
    prices: options.Prices = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 64,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Make the attempts that broke again.")] = False,
    cache: options.Cache = "off",
    cache_file: options.CacheFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON, nothing else.")] = False,
) -> None:
    """Estimate how often each task is solved with and without tools, and keep those worth RL, with their rates."""
    from coa.cli.asking import came_to_its_end
    from coa.cli.display import spent
    from coa.cli.models import open_model
    from coa.cli.setting import Asked, limits_of, prompting
    from coa.cli.terminal import show_warnings
    from coa.cli.world import profile_of
    from coa.errors import CoaError, StoreError
    from coa.models.base import Sampling
    from coa.models.connect import Mode
    from coa.rl.attempts import Attempts
    from coa.rl.difficulty import Rules
    from coa.rl.exclusion import questions_in
    from coa.rl.sampling import acting, knowing
    from coa.rl.sampling import sample as sample_tasks
    from coa.rl.sampling_report import folder_beside, hold_settings, write_report, write_tasks
    from coa.runtime import Setting
    from coa.scoring import VerdictCache, scorer_for
    from coa.trajectory import Usage, load_profile
    from coa.trajectory.formats.sources import ENDINGS
    from coa.trajectory.formats.tasks import read_tasks

    show_warnings()
    if out.suffix not in ENDINGS:
        raise typer.BadParameter(f"--out ends with {', '.join(ENDINGS)}")
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
    chosen, folder = load_profile(profile_of(world, profile)), folder_beside(out)
    rules = Rules(
        samples=samples,
        no_tools_samples=samples if no_tools_samples is None else no_tools_samples,
        max_without_tools=max_without_tools,
        keep_unsolved=keep_unsolved,
        solved_at=solved_at,
    )
    given = list(islice(read_tasks(tasks), limit))
    if not given:
        raise StoreError(f"{tasks} holds no task")
    trained_on = [question for source in exclude or () for question in questions_in(source)]
    asked.check_files(given, named_by_hand=False)
    limits, told = limits_of(chosen, budget or []), prompting(prompt, prompt_file, given, tasks)
    sampling = Sampling(temperature, top_p, top_k, seed=seed)
    settings: dict[str, Any] = {
        "profile": chosen.name,
        "tool": sorted(tool or ()),
        "world": world,
        "prompt": prompt_file.read_text(encoding="utf-8") if prompt_file else prompt,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
        "budget": sorted(budget or ()),
        "constrain": constrain,
    }
    found: list[Sampled] = []

    async def go() -> tuple[bool, Usage]:
        async with AsyncExitStack() as stack:
            setting = await stack.enter_async_context(
                asked.opened(given, chosen, sampling=sampling, limits=limits, prompt=told, at_once=concurrency)
            )
            other: Setting | None = None
            if no_tools_model is not None:
                opened = await open_model(no_tools_model, no_tools_name, api_key_env=no_tools_key_env)
                stack.push_async_callback(opened.close)
                price = asked.price(opened.name)
                other = Setting(opened, {}, chosen, sampling, limits, price, told, asked.constrain)
            judging = None
            if judge is not None:
                judging = await open_model(judge, judge_name, mode=Mode.CHAT, api_key_env=judge_key_env)
                stack.push_async_callback(judging.close)
            settings["model"] = setting.model.name
            settings["no_tools_model"] = (other or setting).model.name
            settings["tools"] = sorted(setting.tools)
            hold_settings(folder, settings, rules)
            verdicts = stack.enter_context(closing(VerdictCache(folder / "verdicts.sqlite"))) if judging else None
            scoring = scorer_for(scorer, judge=judging, verdicts=verdicts)
            stack.push_async_callback(scoring.close)
            judged_by = f"{scorer}, {judging.name}" if judging else scorer
            settings["scorer"] = judged_by
            before, after = (
                Attempts(folder / name / "trajectories.jsonl", scoring, judged_by)
                for name in ("without-tools", "with-tools")
            )
            if retry_failed:
                before.retry_failed()
                after.retry_failed()

            async def work() -> None:
                found.extend(
                    await sample_tasks(
                        given,
                        rules,
                        (knowing(other or setting, concurrency), before),
                        (acting(setting, concurrency), after),
                        watch=_watched,
                        trained_on=trained_on,
                        enough=enough,
                    )
                )

            ended = await came_to_its_end(work())
            return ended, before.usage + after.usage

    ended, usage = asyncio.run(go())
    if not ended:
        typer.echo(f"interrupted; finished attempts are in {folder}, and the same command goes on from there", err=True)
        raise typer.Exit(1)
    kept = write_tasks(out, found, model=settings["model"], no_tools_model=settings["no_tools_model"])
    data = write_report(folder, found, rules, settings)
    if as_json:
        typer.echo((folder / "report.json").read_text(encoding="utf-8"), nl=False)
    else:
        _show(data, found)
        typer.echo(f"spent on all attempts: {spent(usage)}")
        where = f"{plural(kept, 'task')} in {out}; " if kept else ""
        typer.echo(f"{where}attempts, reasons and report: {folder / 'report.html'}")
    if not kept:
        raise CoaError("no task was kept", hint=_hint(data))


@asynccontextmanager
async def _watched(name: str, progress: Progress) -> AsyncIterator[None]:
    from coa.cli.progress import shown

    typer.echo(name, err=True)
    async with shown(progress):
        yield


def _show(data: Mapping[str, Any], found: Sequence[Sampled]) -> None:
    rules = data["rules"]
    for name, samples in (("without_tools", rules["no_tools_samples"]), ("with_tools", rules["samples"])):
        if samples:
            typer.echo(f"tasks by attempts solved {name.replace('_', ' ')}")
            _bars(data[f"solved_{name}"], samples)
    typer.echo(f"kept {data['kept']:,} of {plural(data['tasks'], 'task')}")
    for fate, count in data["dropped"].items():
        example = next(item for item in found if item.fate == fate)
        typer.echo(f"dropped {count:,} {fate}, such as {example.task.id}: {example.reason}")
    if data["unscored_attempts"]:
        typer.echo(
            f"{data['unscored_attempts']:,} of {plural(data['attempts'], 'attempt')} could not be scored; "
            "they count neither as solved nor as failed"
        )


def _bars(counts: Sequence[int], samples: int, width: int = 40) -> None:
    most = max(counts) or 1
    for solved, count in enumerate(counts):
        bar = "█" * max(round(width * count / most), int(count > 0))
        typer.echo(f"  {solved:>3} of {samples}  {bar:<{width}} {count:>6,}".rstrip())


def _hint(data: Mapping[str, Any]) -> str:
    hints = {
        "in_sft_data": "sample tasks that --exclude does not hold",
        "tools_not_needed": "raise --max-without-tools, or leave the question out with --no-tools-samples 0",
        "always_solved": "take harder tasks",
        "never_solved": "take easier tasks or a better model, or keep them with --keep-unsolved",
        "unscored": "give the tasks right answers, or add --judge URL; --retry-failed makes attempts that broke again",
    }
    worst = max(data["dropped"], key=data["dropped"].__getitem__)
    return hints[worst]
