"""`coa scan`: findings over many runs, each with the run and the step."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coa.cli import options
from coa.cli.configuring import misused
from coa.cli.output import echo, echo_json
from coa.report import plural

if TYPE_CHECKING:
    from coa.scan import Finding, ScannerSummary, ScanReport

_WHAT = "What to look for"
_JUDGE = "Judge"
_KINDS = 4
"""Number of kinds that a row of the table names."""
_PROBLEMS = 5


class FailOn(StrEnum):
    """Values of --fail-on; importing the library's would make `coa --help` slow."""

    WARNING = "warning"
    ERROR = "error"


def scan(
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="Files and folders with runs: trajectories, evaluations, RL runs, recorded teams."),
    ] = None,
    scanner: Annotated[
        list[str] | None,
        typer.Option(
            help="Scanner to use, by name, or module:function for your own. Repeatable. Default: all.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List the scanners, and stop.", rich_help_panel=_WHAT)
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option(help="Profile (a name or a .toml) for runs that carry none.", rich_help_panel=_WHAT),
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="URL of a model to ask a question about each run.", rich_help_panel=_JUDGE)
    ] = None,
    judge_name: Annotated[
        str | None,
        typer.Option(help="Name of the judge on a server that serves several models.", rich_help_panel=_JUDGE),
    ] = None,
    judge_key_env: Annotated[
        str, typer.Option(help="Environment variable that holds the key of the judge's server.", rich_help_panel=_JUDGE)
    ] = "COA_API_KEY",
    question: Annotated[
        str | None,
        typer.Option(help="Question to the judge. Default: whether the agent cheated, refused or misread.",
                     rich_help_panel=_JUDGE),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Number of questions to the judge at a time.", rich_help_panel=_JUDGE)
    ] = 8,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for findings.jsonl, with all findings, and report.json.",
                     rich_help_panel=options.OUTPUT),
    ] = None,
    show: Annotated[
        int,
        typer.Option(min=0, help="Number of findings to print for each scanner.", rich_help_panel=options.OUTPUT),
    ] = 3,
    fail_on: Annotated[
        FailOn | None,
        typer.Option(help="Exit with code 1 if there is a finding of this severity or a higher one.",
                     rich_help_panel=options.OUTPUT),
    ] = None,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Scan runs for repeated calls, tool errors, unsupported answers, reward hacking, loops and more."""
    from coa.cli.progress import terminal_progress
    from coa.cli.terminal import show_warnings
    from coa.scan import ScanConfig
    from coa.scan import scan as scan_runs

    show_warnings()
    if list_:
        _list(as_json)
        return
    if not paths:
        raise misused("there is nothing to scan", hint="name files or folders with runs: coa scan runs/")
    config = ScanConfig(
        scanners=tuple(scanner or ()), profile=profile, judge=judge, judge_name=judge_name,
        judge_key_env=judge_key_env, concurrency=concurrency, examples=max(show, 100),
        **({} if question is None else {"question": question}),
    )  # fmt: skip
    report = scan_runs(paths, config, out=out, progress=terminal_progress())
    if as_json:
        import orjson

        echo_json(orjson.dumps(report.data, option=orjson.OPT_INDENT_2))
    else:
        _show(report, paths, show)
    if fail_on is not None and report.at_least(fail_on.value):
        raise typer.Exit(1)


def _list(as_json: bool) -> None:
    from coa.scan import open_scanners

    scanners = open_scanners()
    if as_json:
        import orjson

        echo_json(orjson.dumps([{"name": one.name, "about": one.about} for one in scanners]))
        return
    width = max(len(one.name) for one in scanners)
    for one in scanners:
        echo(f"{one.name:<{width}}  {one.about}")


def _show(report: ScanReport, paths: list[str], show: int) -> None:
    from coa.cli.terminal import SafeConsole, SafeTable

    table = SafeTable()
    for title, side in (("scanner", "left"), ("runs", "right"), ("share", "right"), ("findings", "right")):
        table.add_column(title, justify=side, no_wrap=True)
    table.add_column("of which", overflow="fold")
    for one in report.scanners.values():
        table.add_row(one.name, f"{one.runs:,}", f"{one.runs / report.runs:.1%}", f"{one.findings:,}", _kinds(one))
    SafeConsole().print(table)
    for one in report.scanners.values():
        if show and one.first:
            echo()
            echo(one.name)
            for found in one.first[:show]:
                _show_finding(found)
            if one.findings > show:
                echo(f"  ... and {one.findings - show:,} more")
    echo()
    echo(f"{plural(report.runs, 'run')} scanned, {plural(report.findings, 'finding')}")
    if report.findings:
        echo(f"look at them: {shlex.join(['coa', 'view', *paths])}")
    if report.out is not None:
        echo(str(report.out / "findings.jsonl"))
    _show_troubles(report)


def _kinds(one: ScannerSummary) -> str:
    named = [f"{kind} {count:,}" for kind, count in one.kinds.most_common(_KINDS)]
    return ", ".join([*named, "..."] if len(one.kinds) > _KINDS else named)


def _show_finding(found: Finding) -> None:
    step = "" if found.step is None else f", step {found.step}"
    echo(f"  {found.severity}: {found.message}")
    echo(f"    {found.file}, task {found.task}{step}, {found.address}")


def _show_troubles(report: ScanReport) -> None:
    for problem in report.problems[:_PROBLEMS]:
        echo(f"not read: {problem.file}: {problem.message}", err=True)
    if report.problem_count > _PROBLEMS:
        echo(f"not read: {report.problem_count - _PROBLEMS:,} more records or files; --json names the first", err=True)
    for one in report.scanners.values():
        if one.failed:
            echo(f"the scanner {one.name} failed on {plural(one.failed, 'run')}: {one.failure}", err=True)
    if report.judge is not None:
        judge = report.judge
        spent = f"{judge.prompt_tokens + judge.completion_tokens:,} tokens"
        echo(f"judge {judge.model}: {plural(judge.asked, 'call')}, {judge.cached:,} from cache, {spent}", err=True)
