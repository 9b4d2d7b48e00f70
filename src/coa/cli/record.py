"""`coa record`: a gateway that records the calls of any team that is pointed at it."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from coa.cli import options
from coa.cli.configuring import misused
from coa.cli.output import echo, echo_source
from coa.report import plural

if TYPE_CHECKING:
    from coa.distill.gateway.stage import Gateway

_kept = partial(typer.Option, rich_help_panel="What is recorded")
_SHOW_S = 0.5


def record(
    program: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- PROGRAM ARGUMENTS",
            help="Program to run behind the gateway, which ends with it. Without one the gateway runs until Ctrl-C.",
        ),
    ] = None,
    upstream: Annotated[
        str | None, typer.Option(help="Required: URL of the model server that calls are forwarded to.")
    ] = None,
    upstream_anthropic: Annotated[
        str | None, typer.Option(help="URL of another server for Anthropic Messages, for teams that use both.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Required: folder for the recorded calls.")] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port on 127.0.0.1. Default: 8790, or a free one for a program."),
    ] = None,
    tokens: Annotated[
        bool, _kept("--tokens", help="Ask vLLM, SGLang or llama.cpp for token ids and log probabilities.")
    ] = False,
    redact: Annotated[
        list[str] | None,
        _kept(metavar="PATTERN", help="Regular expression to replace in recorded content. Repeatable."),
    ] = None,
    config: options.Config = None,
    settings: options.Set = None,
    show_settings: options.ShowSettings = False,
    dry_run: options.DryRun = False,
) -> None:
    """Record every model call of a team, built with any framework, through a gateway to its model server."""
    from coa.cli.configuring import resolve
    from coa.cli.progress import terminal_progress
    from coa.cli.terminal import show_warnings
    from coa.distill.gateway.config import RecordConfig
    from coa.distill.gateway.stage import record as open_gateway

    show_warnings()
    given = {
        "upstream": upstream, "upstream_anthropic": upstream_anthropic, "port": port, "tokens": tokens or None,
        "redact": tuple(redact) if redact else None,
    }  # fmt: skip
    chosen = resolve(RecordConfig, config, settings, given, show_settings=show_settings, dry_run=dry_run)
    if out is None:
        raise misused("name a folder for the recorded calls with --out: coa record --upstream URL --out traces/")
    if program and chosen.port is None:
        chosen = chosen.model_copy(update={"port": 0})
    progress = terminal_progress()
    gateway = open_gateway(chosen, out, on_problem=lambda problem: progress.say(f"warning: {problem}"))
    code = 0
    with gateway:
        if program:
            code = gateway.run(program)
        else:
            with suppress(KeyboardInterrupt):
                _until_interrupted(gateway)
    _summary(gateway)
    raise typer.Exit(code)


def _show_addresses(gateway: Gateway) -> None:

    for name, value in gateway.variables().items():
        echo_source(f"export {name}={shlex.quote(value)}")
    sys.stdout.flush()
    echo(f"calls go to {gateway.upstream} and are recorded in {gateway.out}; Ctrl-C ends it", err=True)


def _until_interrupted(gateway: Gateway) -> None:
    from coa.cli.progress import terminal_progress
    from coa.progress import part

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    progress = terminal_progress()
    try:
        _show_addresses(gateway)
        with part(progress, "calls"):
            while True:
                progress.update(gateway.counts.calls, None, _note(gateway))
                time.sleep(_SHOW_S)
    finally:
        signal.signal(signal.SIGTERM, before)


def _note(gateway: Gateway) -> str:
    counts = gateway.counts
    parts = [f"{gateway.open_calls} open"] if gateway.open_calls else []
    parts += [f"{counts.failed} failed"] if counts.failed else []
    parts += [f"{counts.prompt_tokens + counts.completion_tokens:,} tokens"]
    return ", ".join(parts)


def _summary(gateway: Gateway) -> None:

    counts, files = gateway.counts, gateway.files
    if not counts.calls:
        echo(f"no call of a model was recorded; does the program use {gateway.base_url()}?", err=True)
        return
    failed = f" ({counts.failed} failed)" if counts.failed else ""
    tokens = f"{counts.prompt_tokens:,} tokens read and {counts.completion_tokens:,} written"
    if counts.unmetered:
        tokens += f", as far as the server counted them (not for {plural(counts.unmetered, 'call')})"
    place = str(files[0]) if len(files) == 1 else f"{plural(len(files), 'file')} in {gateway.out}"
    echo(f"recorded {plural(counts.calls, 'call')}{failed}, {tokens}, in {place}", err=True)
    if counts.lost:
        echo(f"warning: {plural(counts.lost, 'line')} could not be written", err=True)
    if counts.failed == counts.calls:
        echo(f"every call failed; is {gateway.upstream} the right --upstream?", err=True)
        return
    folder = shlex.quote(os.fspath(gateway.out))
    echo(f"next: coa profile from-traces {folder} > mine.toml", err=True)
