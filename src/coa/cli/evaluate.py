"""`coa eval`: run benchmarks or files of tasks, score them, and report success with intervals and what it took."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coa.cli import options

if TYPE_CHECKING:
    from coa.cli.setting import Asked
    from coa.evaluate.data import Loaded
    from coa.evaluate.folder import Folder
    from coa.models.base import Model
    from coa.runtime import Select, Setting
    from coa.scoring import Scorer
    from coa.trajectory import Limits


def evaluate(
    benchmarks: Annotated[list[str], typer.Argument(help="Benchmarks by name, files of tasks, or `list`.")],
    out: Annotated[Path | None, typer.Option(help="The evaluation's folder. Run again with it to go on.")] = None,
    model: options.Model = "smollm2",
    model_name: options.ModelName = None,
    samples: Annotated[int | None, typer.Option("-n", "--samples", min=1, help="Attempts at each task.")] = None,
    best_of: Annotated[int | None, typer.Option(min=2, help="So many attempts, of which one is chosen.")] = None,
    select: Annotated[str, typer.Option(help="How it is chosen: majority, self-check, or judge.")] = "majority",
    k: Annotated[list[int] | None, typer.Option("--k", min=1, help="Further K for Pass@K. Repeatable.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks of each.")] = None,
    scorer: Annotated[
        str | None, typer.Option(help="Instead of the benchmark's: exact, f1, math, judge, auto, module:function, ...")
    ] = None,
    judge: Annotated[str | None, typer.Option(help="URL of the model that judges answers, or chooses.")] = None,
    judge_name: options.JudgeName = None,
    judge_key_env: options.JudgeKeyEnv = "COA_API_KEY",
    data: Annotated[Path | None, typer.Option(help="Folder with benchmark files; also $COA_DATA.")] = None,
    profile: Annotated[str | None, typer.Option(help="Instead of the benchmark's, by name or .toml.")] = None,
    tool: options.Tool = None,
    mcp: options.Mcp = None,
    mode: options.Mode = "auto",
    tokenizer: options.Tokenizer = None,
    api_key_env: options.ApiKeyEnv = "COA_API_KEY",
    prompt: options.Prompt = "profile",
    prompt_file: options.PromptFile = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="Instead of the protocol's (1.0).")] = None,
    top_p: Annotated[float | None, typer.Option(min=0, max=1, help="Instead of the protocol's (0.9).")] = None,
    top_k: Annotated[int | None, typer.Option(min=0, help="Instead of the protocol's (20). 0: all.")] = None,
    seed: Annotated[int, typer.Option(help="Of the first attempt at each task; the next ones count up.")] = 0,
    constrain: options.Constrained = "auto",
    budget: options.Budget = None,
    price_in: options.PriceIn = None,
    price_cached: options.PriceCached = None,
    price_out: options.PriceOut = None,
    prices: options.Prices = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 64,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try the failed runs of --out again.")] = False,
    cache: options.Cache = "off",
    cache_file: options.CacheFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON, nothing else.")] = False,
) -> None:
    """Evaluate a model on benchmarks. Goes on from what --out holds. `coa eval list` shows what there is."""
    from coa.cli.setting import Asked
    from coa.cli.terminal import show_warnings
    from coa.evaluate.data import load
    from coa.runtime import Select

    show_warnings()
    if benchmarks == ["list"]:
        _list(data, as_json=as_json)
        return
    if out is None:
        raise typer.BadParameter("an evaluation needs a folder: add --out runs/e1")
    if best_of is not None and samples not in (None, best_of):
        raise typer.BadParameter("--best-of N makes N attempts at each task; leave -n away")
    how = options.one_of(Select, select, "--select") if best_of is not None else None
    asked = Asked.of(
        model=model,
        model_name=model_name,
        mode=mode,
        tokenizer=tokenizer,
        api_key_env=api_key_env,
        tool=tool,
        mcp=mcp,
        cache=cache,
        cache_file=cache_file,
        constrain=constrain,
        prices=(price_in, price_cached, price_out, prices),
    )
    # All are loaded before the first is run: what is not here is better known before anything is spent.
    loaded = [load(name, data, limit=limit) for name in benchmarks]
    wishes = _Wishes(
        samples=best_of or samples,
        select=how,
        ks=tuple(k or ()),
        limit=limit,
        scorer=scorer,
        judge=(judge, judge_name, judge_key_env),
        profile=profile,
        sampling=(temperature, top_p, top_k, seed),
        budget=tuple(budget or ()),
        prompt=(prompt, prompt_file),
        concurrency=concurrency,
        retry_failed=retry_failed,
    )
    folders = _folders(out, loaded)
    reports, ended = asyncio.run(_evaluate_all(loaded, folders, asked, wishes, quiet=as_json))
    if as_json:
        import orjson

        typer.echo(orjson.dumps(reports[0] if len(loaded) == 1 and reports else reports))
    if not ended or any(report["results"]["failed"] for report in reports):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Wishes:
    """How to evaluate, where the command line says so; else the benchmark's protocol decides."""

    samples: int | None
    select: Select | None
    ks: tuple[int, ...]
    limit: int | None
    scorer: str | None
    judge: tuple[str | None, str | None, str]
    profile: str | None
    sampling: tuple[float | None, float | None, int | None, int]
    budget: tuple[str, ...]
    prompt: tuple[str, Path | None]
    concurrency: int
    retry_failed: bool


def _folders(out: Path, loaded: Sequence[Loaded]) -> list[Folder]:
    """One benchmark is in the folder itself, several each in one of its own inside it."""
    from coa.evaluate.folder import Folder

    if len(loaded) == 1:
        return [Folder(out)]
    names = [item.benchmark.name for item in loaded]
    if len(set(names)) < len(names):
        raise typer.BadParameter("a benchmark is named twice; -n makes several attempts")
    return [Folder(out / name) for name in names]


async def _evaluate_all(
    loaded: Sequence[Loaded], folders: Sequence[Folder], asked: Asked, wishes: _Wishes, *, quiet: bool
) -> tuple[list[dict[str, Any]], bool]:
    reports: list[dict[str, Any]] = []
    for item, folder in zip(loaded, folders, strict=True):
        report, ended = await _evaluate(item, folder, asked, wishes)
        reports.append(report)
        if not quiet:
            _show(report, folder, ended=ended)
        if not ended:
            return reports, False
    return reports, True


async def _evaluate(loaded: Loaded, folder: Folder, asked: Asked, wishes: _Wishes) -> tuple[dict[str, Any], bool]:
    """The report, and whether it covers everything. Ctrl-C ends it; the same command goes on."""
    from coa.cli.asking import came_to_its_end
    from coa.cli.progress import shown
    from coa.cli.setting import limits_of, prompting
    from coa.evaluate.attempts import Attempt
    from coa.evaluate.report import make_report, write_report
    from coa.evaluate.run import Plan, Standing
    from coa.evaluate.run import evaluate as run_evaluation
    from coa.models.base import Sampling
    from coa.trajectory import load_profile

    protocol = loaded.benchmark.protocol
    temperature, top_p, top_k, seed = wishes.sampling
    sampling = Sampling(
        protocol.temperature if temperature is None else temperature,
        protocol.top_p if top_p is None else top_p,
        protocol.top_k if top_k is None else top_k,
        seed=seed,
    )
    samples = wishes.samples or protocol.samples
    profile = load_profile(wishes.profile or loaded.benchmark.profile)
    limits = limits_of(profile, wishes.budget)
    told = prompting(*wishes.prompt, loaded.tasks, loaded.benchmark.name)
    asked.check_files(loaded.tasks, named_by_hand=False)
    async with AsyncExitStack() as stack:
        setting = await stack.enter_async_context(
            asked.opened(
                loaded.tasks, profile, sampling=sampling, limits=limits, prompt=told, at_once=wishes.concurrency
            )
        )
        name = wishes.scorer or loaded.benchmark.scorer
        judging = await _judge(stack, wishes, name)
        scorers = await _scorers(stack, folder, loaded, name, judging)
        config = _config(loaded, setting, asked, wishes, samples, scorers, judging, limits or profile.limits)
        folder.claim(config)
        plan = Plan(
            loaded,
            samples,
            scorers,
            select=wishes.select,
            judge=judging or setting.model,
            concurrency=wishes.concurrency,
            retry_failed=wishes.retry_failed,
        )
        standing, attempts = Standing(), list[Attempt]()

        async def work() -> None:
            async with shown(standing):
                attempts.extend(await run_evaluation(plan, setting, folder, standing))

        ended = await came_to_its_end(work())
    if not ended:
        attempts = _so_far(folder, plan)
    report = make_report(attempts, config, retried=_aside(folder))
    write_report(folder, report)
    return report, ended


async def _judge(stack: AsyncExitStack, wishes: _Wishes, scorer: str) -> Model | None:
    from coa.cli.models import open_model
    from coa.errors import ScoringError
    from coa.models.connect import Mode

    source, name, key_env = wishes.judge
    if source is None:
        if scorer == "judge":
            raise ScoringError(
                "this benchmark's answers are compared by a judge", cure="add --judge URL, or --scorer auto for rules"
            )
        return None
    judging = await open_model(source, name, mode=Mode.CHAT, api_key_env=key_env)
    stack.push_async_callback(judging.close)
    return judging


async def _scorers(
    stack: AsyncExitStack, folder: Folder, loaded: Loaded, name: str, judging: Model | None
) -> list[Scorer]:
    """The one that decides; beside a judge also exact match, which costs nothing and tells how far they agree."""
    from coa.scoring import VerdictCache, scorer_for

    judged = judging is not None and name in ("judge", "auto")
    verdicts = stack.enter_context(closing(VerdictCache(folder.path / "verdicts.sqlite"))) if judged else None
    scorers = [scorer_for(name, judge=judging, verdicts=verdicts)]
    if judged and any(task.answer for task in loaded.tasks):
        scorers.append(scorer_for("exact"))
    for scorer in scorers:
        stack.push_async_callback(scorer.close)
    return scorers


def _config(
    loaded: Loaded,
    setting: Setting,
    asked: Asked,
    wishes: _Wishes,
    samples: int,
    scorers: Sequence[Scorer],
    judging: Model | None,
    limits: Limits,
) -> dict[str, Any]:
    """What the numbers are about: kept in the folder, repeated in the report."""
    import hashlib

    from coa.evaluate.report import code_version
    from coa.scoring import PROMPT_HASH
    from coa.tools.base import veiled

    benchmark = loaded.benchmark
    whose, file = wishes.prompt
    return {
        "stage": "eval",
        "benchmark": {
            "name": benchmark.name,
            "about": benchmark.about,
            "note": benchmark.note,
            "metric": f"avg@{samples}" if benchmark.metric.startswith("avg") and samples > 1 else "pass@1",
            "tasks": len(loaded.tasks),
            "published_size": benchmark.size,
            "files": list(loaded.files),
            "sha256": loaded.sha256,
            "groups": list(benchmark.groups),
        },
        "limit": wishes.limit,
        "samples": samples,
        "ks": list(wishes.ks),
        "scorer": scorers[0].name,
        "scorers_beside": [scorer.name for scorer in scorers[1:]],
        "select": wishes.select,
        "judge": None if judging is None else {"model": judging.name, "prompt_hash": PROMPT_HASH},
        "model": setting.model.name,
        "tokenizer": setting.model.tokenizer.fingerprint if setting.model.tokenizer is not None else None,
        "profile": {
            "name": setting.profile.name,
            "hash": hashlib.sha256(setting.profile.model_dump_json().encode()).hexdigest()[:16],
        },
        "prompt": whose if file is None else hashlib.sha256(file.read_bytes()).hexdigest()[:16],
        "sampling": {**asdict(setting.sampling), "seed_of_a_sample": "seed + its number"},
        "limits": limits.model_dump(mode="json"),
        "constrain": setting.constrain,
        "tools": {
            "names": sorted(setting.tools),
            "given": [veiled(item) for item in asked.tools],
            "mcp": [veiled(item) for item in asked.mcp],
            "cache": asked.cache,
        },
        "price": None if setting.price is None else setting.price.model_dump(mode="json"),
        "versions": code_version(),
    }


def _so_far(folder: Folder, plan: Any) -> list[Any]:
    """After Ctrl-C: what is finished and scored."""
    from coa.evaluate.attempts import attempt_of
    from coa.evaluate.folder import settle
    from coa.trajectory import read

    settle(folder)
    wanted = {task.id for task in plan.loaded.tasks}
    runs = read(folder.trajectories) if folder.trajectories.is_file() else ()
    return [
        attempt_of(run, plan.scorer)
        for run in runs
        if run.task.id in wanted and run.sample < plan.samples and plan.scorer in run.scores
    ]


def _aside(folder: Folder) -> int:
    aside = folder.trajectories.with_name(folder.trajectories.name + ".aside")
    return sum(1 for line in aside.open("rb") if line.strip()) if aside.is_file() else 0


def _show(report: dict[str, Any], folder: Folder, *, ended: bool) -> None:
    from coa.evaluate.report import headline, lines

    typer.echo(headline(report))
    for name, figure in lines(report):
        typer.echo(f"  {name:<28} {figure}")
    published, tasks = report["benchmark"]["published_size"], report["benchmark"]["tasks"]
    if published and published != tasks and not report["provenance"]["limit"]:
        typer.echo(f"  note: the published set has {published:,} tasks, this one {tasks:,}", err=True)
    typer.echo(f"  {folder.page}; coa inspect {folder.path}")
    if not ended:
        typer.echo("interrupted; the same command goes on from there", err=True)
    elif report["results"]["failed"]:
        typer.echo("the same command with --retry-failed tries the failed ones again", err=True)


def _list(data: Path | None, *, as_json: bool) -> None:
    from coa.evaluate.benchmarks import benchmarks
    from coa.evaluate.data import cache_folder, found

    rows = []
    for benchmark in benchmarks():
        files = [] if benchmark.tasks is not None else found(benchmark, data)
        source = benchmark.hub.id if benchmark.hub else benchmark.url or "made by a program"
        rows.append(
            {
                "name": benchmark.name,
                "about": benchmark.about,
                "size": benchmark.size,
                "metric": benchmark.metric,
                "scorer": benchmark.scorer,
                "profile": benchmark.profile,
                "source": source,
                "gated": benchmark.hub.gated if benchmark.hub else False,
                "samples": benchmark.protocol.samples,
                "here": benchmark.tasks is not None or bool(files),
                "files": [str(file) for file in files],
                "note": benchmark.note,
            }
        )
    if as_json:
        import orjson

        typer.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
        return
    typer.echo(f"{'here':<5} {'name':<18} {'tasks':>6}  {'metric':<7} {'scorer':<6} {'profile':<8} source")
    for row in rows:
        here, size = "yes" if row["here"] else "no", row["size"] or ""
        gated = " (gated)" if row["gated"] else ""
        typer.echo(
            f"{here:<5} {row['name']:<18} {size:>6}  {row['metric']:<7} {row['scorer']:<6} {row['profile']:<8} "
            f"{row['source']}{gated}"
        )
    typer.echo(
        f"\nlooked for in --data, $COA_DATA, {cache_folder()} and the hub's cache; else fetched when run", err=True
    )
