"""`coa eval`: run benchmarks or files of tasks, score them, and report success with intervals and what it took."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coa.cli import options
from coa.report import plural

if TYPE_CHECKING:
    from coa.evaluate.folder import Folder


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
    world: options.World = None,
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
    from coa.cli.evaluation import Wishes, evaluate_all, folders_for
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
        world=world,
        mcp=mcp,
        cache=cache,
        cache_file=cache_file,
        constrain=constrain,
        prices=(price_in, price_cached, price_out, prices),
    )
    # All are loaded before the first is run: what is not here is better known before anything is spent.
    loaded = [load(name, data, limit=limit) for name in benchmarks]
    wishes = Wishes(
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
    folders = folders_for(out, loaded)
    reports, ended = asyncio.run(evaluate_all(loaded, folders, asked, wishes, None if as_json else _show))
    if as_json:
        import orjson

        typer.echo(orjson.dumps(reports[0] if len(loaded) == 1 and reports else reports))
    if not ended or any(report["results"]["failed"] for report in reports):
        raise typer.Exit(1)


def _show(report: dict[str, Any], folder: Folder, ended: bool) -> None:
    from coa.evaluate.report import headline, lines

    typer.echo(headline(report))
    for name, figure in lines(report):
        typer.echo(f"  {name:<28} {figure}")
    published, tasks = report["benchmark"]["published_size"], report["benchmark"]["tasks"]
    if published and published != tasks and not report["provenance"]["limit"]:
        typer.echo(f"  note: the published set has {plural(published, 'task')}, this one {tasks:,}", err=True)
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
