"""`coa distill`: traces of any team in, training data and a funnel report out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from coa.report import plural

if TYPE_CHECKING:
    from coa.distill.config import DistillConfig
    from coa.distill.filters import Benchmarks
    from coa.distill.funnel import Funnel
    from coa.models.base import Model


def distill(
    traces: Annotated[list[Path], typer.Argument(help="Traces of any known format, files or folders.")],
    out: Annotated[Path, typer.Option(help="Folder for trajectories, dataset card and report.")],
    profile: Annotated[str, typer.Option(help="Profile by name or .toml.")] = "web",
    tasks: Annotated[
        Path | None, typer.Option(help="Task rows with the right answers, where traces have none.")
    ] = None,
    judge: Annotated[str | None, typer.Option(help="URL of a model that judges answers no rule can compare.")] = None,
    judge_name: Annotated[str | None, typer.Option(help="Which model of the judge's server.")] = None,
    roles: Annotated[
        Path | None, typer.Option(help="TOML: the team's agents and tools as agents of the profile.")
    ] = None,
    student: Annotated[
        str | None, typer.Option(help="Tokenizer that measures length: a folder, a hub id, smollm2.")
    ] = None,
    fill: Annotated[str | None, typer.Option(help="Model that writes role texts the traces lack.")] = None,
    fill_name: Annotated[str | None, typer.Option(help="Which model of that server.")] = None,
    decontaminate: Annotated[
        list[str] | None,
        typer.Option(help="Questions to keep out: a file of tasks, or a benchmark (coa eval list). Repeatable."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML with settings of the filters.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="table.key=value, such as reflection.kept_without=1. Repeatable.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="For what is kept by lot.")] = None,
    keep_unscored: Annotated[bool, typer.Option("--keep-unscored", help="Keep answers nobody could judge.")] = False,
    at_once: Annotated[int, typer.Option(min=1, help="Questions to judge and writer at the same time.")] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON, nothing else.")] = False,
) -> None:
    """Import, convert and filter; leaves trajectories, a dataset card and report.html in --out."""
    from coa.cli.terminal import show_warnings
    from coa.distill.config import load_config

    show_warnings()
    _refuse_place(out, traces)
    settings = load_config(config, setting or ())
    if seed is not None:
        settings = settings.model_copy(update={"seed": seed})
    if keep_unscored:
        quality = settings.quality.model_copy(update={"unscored": "keep"})
        settings = settings.model_copy(update={"quality": quality})
    asked = _Asked(
        traces,
        out,
        profile,
        tasks,
        (judge, judge_name),
        (fill, fill_name),
        roles,
        student,
        decontaminate or [],
        at_once,
    )
    found = asyncio.run(_distill(asked, settings))
    if as_json:
        typer.echo((out / "report.json").read_text(encoding="utf-8"), nl=False)
    else:
        _show(found, out)
    if not found.kept:
        from coa.errors import CoaError

        raise CoaError("nothing was kept", hint=_hint(found, out))


def _refuse_place(out: Path, traces: list[Path]) -> None:
    from coa.errors import StoreError

    if out.exists() and not out.is_dir():
        raise StoreError(f"{out} is a file", hint="name a folder with --out")
    for path in traces:
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            raise StoreError(
                f"{out} lies in {path}: the next run would read its own output as traces",
                hint="choose a folder outside the traces with --out",
            )


class _Asked(NamedTuple):
    """The command's arguments, once they are read."""

    traces: list[Path]
    out: Path
    profile: str
    tasks: Path | None
    judge: tuple[str | None, str | None]
    fill: tuple[str | None, str | None]
    roles: Path | None
    student: str | None
    decontaminate: list[str]
    at_once: int


async def _distill(asked: _Asked, config: DistillConfig) -> Funnel:
    from coa.cli.models import open_model
    from coa.cli.traces import read_anything
    from coa.distill.cache import TextCache
    from coa.distill.fill import ModelWriter
    from coa.distill.known_tasks import KnownTasks
    from coa.distill.pipeline import Distillery
    from coa.distill.report import write_report
    from coa.distill.roles import load_roles
    from coa.models.tokenizer import load_tokenizer
    from coa.scoring import VerdictCache, scorer_for
    from coa.trajectory import load_profile
    from coa.trajectory.formats.tasks import read_tasks

    out = asked.out
    grammar = load_profile(asked.profile)
    given = load_roles(asked.roles, grammar)
    tokenizer = load_tokenizer(asked.student) if asked.student else None
    known = KnownTasks(read_tasks(asked.tasks) if asked.tasks else ())
    benchmarks = _benchmarks(asked.decontaminate, config)
    out.mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:

        async def opened(source: str | None, name: str | None) -> Model | None:
            if source is None:
                return None
            model = await open_model(source, name)
            stack.push_async_callback(model.close)
            return model

        judging, writing = await opened(*asked.judge), await opened(*asked.fill)
        verdicts = stack.enter_context(closing(VerdictCache(out / "verdicts.sqlite"))) if judging else None
        texts = stack.enter_context(closing(TextCache(out / "filled.sqlite"))) if writing else None
        scorer = scorer_for("auto", judge=judging, verdicts=verdicts)
        stack.push_async_callback(scorer.close)
        distillery = Distillery(
            grammar,
            config,
            scorer,
            roles=given,
            tasks=known,
            writer=ModelWriter(writing, texts) if writing and texts else None,
            tokenizer=tokenizer,
            benchmarks=benchmarks,
            at_once=asked.at_once,
            on_progress=_progress(),
        )
        found = await distillery.run(read_anything(asked.traces), out)
    settings: dict[str, Any] = {
        "profile": grammar.name,
        "scorer": f"rules, then {judging.name}" if judging else "rules",
        "fill": writing.name if writing else None,
        "student": asked.student,
        "benchmarks": sorted(Path(name).name for name in asked.decontaminate),
        "benchmark_questions": benchmarks.questions if benchmarks else 0,
        "config": config.model_dump(mode="json"),
    }
    _save_config(out, settings)
    write_report(out, found, settings, _notes(asked.student, asked.decontaminate))
    return found


def _benchmarks(names: list[str], config: DistillConfig) -> Benchmarks | None:
    from coa.distill.filters import Benchmarks
    from coa.evaluate.data import load

    if not names:
        return None
    found = Benchmarks(config.contamination.words)
    for name in names:
        found.add(task.question for task in load(name).tasks)
    return found


def _notes(student: str | None, decontaminate: list[str]) -> list[str]:
    """What was not asked, so that nobody takes it for granted."""
    notes = []
    if student is None:
        notes.append("Length was not measured: no --student tokenizer was given.")
    if not decontaminate:
        notes.append("Overlap with benchmarks was not checked: no --decontaminate file was given.")
    return notes


def _save_config(out: Path, settings: dict[str, Any]) -> None:
    import json

    from coa import __version__

    saved = json.dumps({"coa": __version__, **settings}, indent=2, ensure_ascii=False)
    (out / "config.json").write_text(f"{saved}\n", encoding="utf-8")


def _progress() -> Callable[[Funnel], None]:
    """A line on stderr: redrawn for a person, now and then for a log."""
    import sys

    person, last = sys.stderr.isatty(), time.monotonic()

    def show(found: Funnel) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < (0.5 if person else 30):
            return
        last = now
        dropped = sum(counter.total() for counter in found.dropped.values())
        line = (
            f"{plural(found.entered, 'run')} read, {dropped:,} dropped, {plural(found.unreadable, 'place')} unreadable"
        )
        typer.echo(f"\r{line}\x1b[K" if person else line, nl=not person, err=True)

    return show


def _show(found: Funnel, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from coa.cli.terminal import printable

    table = Table(box=None, pad_edge=False)
    table.add_column("stage")
    for column in ("in", "kept", "dropped"):
        table.add_column(column, justify="right")
    table.add_column("why", overflow="fold")
    for stage, there, kept in found.stages():
        reasons = sorted(found.dropped[stage].items(), key=lambda item: (-item[1], item[0]))
        why = ", ".join(f"{count:,} {reason}" for reason, count in reasons)
        table.add_row(stage.value, f"{there:,}", f"{kept:,}", f"{there - kept:,}", why)
    Console(highlight=False).print(table)
    for file, place, reason in found.named()[:5]:
        typer.echo(printable(f"unreadable: {file} {place}: {reason}"), err=True)
    if found.unreadable > 5:
        typer.echo(f"... {found.unreadable:,} unreadable places in all; report.json names them", err=True)
    copies = f" in {plural(found.rows, 'row')}" if found.rows != found.kept else ""
    result = plural(found.kept, "trajectory", "trajectories")
    typer.echo(f"{result}{copies} in {out}; the funnel with examples: {out / 'report.html'}")


def _hint(found: Funnel, out: Path) -> str:
    from coa.distill.report import hints

    if not found.entered:
        return "give files of a known format: ATIF, OTLP-JSON spans, chat JSONL, OAgents JSONL, AFM rows, trajectories"
    return " ".join([*hints(found)[:1], f"{out / 'report.html'} shows what was dropped and why."])
