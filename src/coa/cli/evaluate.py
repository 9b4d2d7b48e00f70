"""`coa eval`: run benchmarks or files of tasks, score them, and report success with intervals and what it took."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coa.cli import options
from coa.cli.configuring import accepting, misused
from coa.cli.output import echo, echo_json
from coa.errors import EvaluationError
from coa.report import plural

if TYPE_CHECKING:
    from coa.evaluate import BenchmarkReport, Evaluation

Command = accepting(
    {flag: f"run.{key}" for flag, key in options.RUN_FLAGS.items()}
    | {"--judge-name": "judge_name", "--judge-key-env": "judge_key_env"}
)


def evaluate(
    benchmarks: Annotated[
        list[str] | None,
        typer.Argument(
            help="Benchmarks by name, files of tasks, a .toml file with settings; or `list`, or `merge` and the "
            "folders of shards."
        ),
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
    samples: Annotated[
        int | None,
        typer.Option("-n", "--samples", min=1, help="Number of attempts at each task.",
                     rich_help_panel=options.ATTEMPTS),
    ] = None,
    best_of: Annotated[
        int | None,
        typer.Option(min=2, help="Number of attempts at each task from which one is selected and counted.",
                     rich_help_panel=options.ATTEMPTS),
    ] = None,
    select: options.Select = None,
    k: Annotated[
        list[int] | None,
        typer.Option("--k", min=1, help="Value of k for which to report pass@k as well. Repeatable.",
                     rich_help_panel=options.ATTEMPTS),
    ] = None,
    concurrency: options.Concurrency = None,
    limit: options.Limit = None,
    shard: options.Shard = None,
    ray: options.Ray = None,
    ray_actors: options.RayActors = None,
    retry_failed: options.RetryFailed = None,
    scorer: Annotated[
        str | None,
        typer.Option(help="Scorer instead of the benchmark's: exact, f1, math, judge, auto, module:function, ...",
                     rich_help_panel=options.SCORING),
    ] = None,
    judge: options.Judge = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with benchmark files; also $COA_DATA.", rich_help_panel=options.SETTINGS)
    ] = None,
    tests: Annotated[
        Path | None,
        typer.Option(help="LiveCodeBench's release file, or a folder of them, with the full tests of programs.",
                     rich_help_panel=options.SETTINGS),
    ] = None,
    settings: options.Set = None,
    show_settings: options.ShowSettings = False,
    dry_run: options.DryRunPlan = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Required: folder of the evaluation. Run again with it to go on.",
                     rich_help_panel=options.OUTPUT),
    ] = None,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Evaluate a model on benchmarks or files of tasks. Resumes from --out. `coa eval list` lists the benchmarks;
    `coa eval merge` joins the shards of an evaluation in one folder, and reports on it."""
    from coa.cli.configuring import resolve, run_flags
    from coa.cli.progress import terminal_progress
    from coa.cli.terminal import show_warnings
    from coa.evaluate import EvalConfig, plan, read_evaluation
    from coa.evaluate import evaluate as run_evaluation

    show_warnings()
    if benchmarks == ["list"]:
        _list(data, as_json=as_json)
        return
    if benchmarks and benchmarks[0] == "merge":
        _merge(benchmarks[1:], out, as_json=as_json)
        return
    named = benchmarks or []
    files = [name for name in named if name.endswith(".toml")]
    if len(files) > 1:
        raise misused(f"there are several files with settings: {', '.join(files)}")
    names = tuple(name for name in named if name not in files)
    given = {
        **run_flags("run.", model=model, model_name=model_name, profile=profile, world=world, tool=tool, mcp=mcp,
                    temperature=temperature, seed=seed, budget=budget, concurrency=concurrency),
        "benchmarks": names or None, "samples": samples, "best_of": best_of, "select": select,
        "pass_at": tuple(k) if k else None, "limit": limit, "shard": shard, "ray": ray, "ray_actors": ray_actors,
        "retry_failed": retry_failed,
        "scorer": scorer, "judge": judge, "data": data, "tests": tests,
    }  # fmt: skip
    path = Path(files[0]) if files else None
    config = resolve(
        EvalConfig, path, settings, given, show_settings=show_settings, dry_run=dry_run, plan=plan, as_json=as_json
    )
    if out is None:
        raise misused("an evaluation needs a folder: add --out runs/e1")
    interrupted = False
    try:
        found = run_evaluation(config, out, progress=terminal_progress())
    except KeyboardInterrupt:
        try:
            found, interrupted = read_evaluation(out), True
        except EvaluationError:  # it was interrupted before the first report
            raise KeyboardInterrupt from None
    _show_all(found, as_json=as_json)
    if interrupted:
        echo("interrupted; the same command goes on from there", err=True)
    elif found.failed:
        echo("the same command with --retry-failed tries the failed ones again", err=True)
    if interrupted or found.failed:
        raise typer.Exit(1)


def _merge(shards: list[str], out: Path | None, *, as_json: bool) -> None:
    from coa.evaluate import merge

    if out is None:
        raise misused("the joined evaluation needs a folder: add --out runs/e")
    found = merge(shards, out)
    _show_all(found, as_json=as_json)
    if not found.complete:
        raise typer.Exit(1)


def _show_all(found: Evaluation, *, as_json: bool) -> None:
    if as_json:
        import orjson

        reports = [report.data for report in found.reports]
        echo_json(orjson.dumps(reports[0] if len(reports) == 1 else reports))
    else:
        for report in found.reports:
            _show(report)


def _show(report: BenchmarkReport) -> None:
    from coa.evaluate.report import caveat, headline, lines

    for notice in report.data["notices"]:
        echo(f"note: {notice}", err=True)
    echo(headline(report.data))
    if said := caveat(report.data):
        echo(f"  {said}")
    for name, figure in lines(report.data):
        echo(f"  {name:<28} {figure}")
    published = report.data["benchmark"]["published_size"]
    if published and published != report.tasks and not _in_part(report.data["provenance"]):
        echo(f"  note: the published set has {plural(published, 'task')}, this one {report.tasks:,}", err=True)
    echo(f"  {report.page}; coa inspect {report.folder}")


def _in_part(provenance: Mapping[str, Any]) -> bool:
    """Whether fewer tasks than there are were asked for."""
    return bool(provenance["limit"] or provenance.get("shard"))


def _list(data: Path | None, *, as_json: bool) -> None:
    from coa.benchmarks.data import cache_folder, listing

    rows = listing(data)
    if as_json:
        import orjson

        echo_json(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
        return
    echo(f"{'here':<5} {'name':<18} {'tasks':>6}  {'metric':<7} {'scorer':<6} {'profile':<8} source")
    for row in rows:
        here, size = "yes" if row["here"] else "no", row["size"] or ""
        gated = " (gated)" if row["gated"] else ""
        echo(
            f"{here:<5} {row['name']:<18} {size:>6}  {row['metric']:<7} {row['scorer']:<6} {row['profile']:<8} "
            f"{row['source']}{gated}"
        )
    echo(err=True)
    echo(f"searched: --data, $COA_DATA, {cache_folder()} and the hub's cache; else fetched when run", err=True)
