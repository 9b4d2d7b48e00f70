"""`coa setup`: install what parts of coa need. Commands that miss something offer the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from coa.choices import TorchBuild
from coa.cli.configuring import misused
from coa.cli.output import echo


def setup(
    what: Annotated[
        list[str], typer.Argument(help="nano, demo, weights, or an extra such as serve. Repeatable.", metavar="WHAT...")
    ],
    torch: Annotated[
        TorchBuild,
        typer.Option(
            envvar="COA_TORCH",
            help="Build of torch. auto: the CPU build on Linux without an NVIDIA driver; default: your index decides.",
        ),
    ] = TorchBuild.AUTO,
    plan: Annotated[bool, typer.Option("--plan", help="Print what would be installed and how, and stop.")] = False,
) -> None:
    """Install what a part of coa needs: packages into this environment, and the weights of the embedded model."""
    import shlex

    from coa.errors import CoaError, from_uvx, setup_command
    from coa.installing import commands, install, known, missing

    if unknown := [name for name in what if name not in known()]:
        raise misused(f"there is nothing to install by the name {unknown[0]!r}", hint=f"known: {', '.join(known())}")
    absent = missing(what)
    if not absent:
        echo(f"everything is here for {', '.join(what)}")
        return
    for line in absent.about(torch):
        echo(f"needed: {line}")
    if plan:
        for command in commands(absent, torch) if absent.packages else ():
            echo(f"$ {shlex.join(command)}")
        return
    if absent.packages and from_uvx():
        hint = f"run the command that needs them: {setup_command(*what)}"
        raise CoaError("uvx would not keep packages that are installed into its environment", hint=hint)
    install(absent, torch)
    echo(f"installed what {', '.join(what)} needs")


def offer(needs: Sequence[str]) -> None:
    """Ask whether to install what a command lacks, and if so install it and run the command again, in place of this
    process. Returns if nothing was installed: nobody is there to ask, or the answer was no."""
    from coa.errors import from_uvx
    from coa.installing import AGREED, TORCH, again_with, fetch_weights, install, missing

    absent = missing(needs)
    value = os.environ.get(TORCH, "")
    torch = TorchBuild(value) if value in set(TorchBuild) else TorchBuild.AUTO
    if not absent or not _agreed(list(absent.about(torch)), bool(os.environ.get(AGREED))):
        return
    command = [sys.executable, *sys.orig_argv[1:]]
    if absent.packages and from_uvx():
        command = again_with(absent, torch)
        if absent.weights:
            fetch_weights()
    else:
        install(absent, torch)
        if missing(needs):
            return
    sys.stdout.flush()
    os.execv(command[0], command)


def _agreed(parts: Sequence[str], beforehand: bool) -> bool:
    from coa.cli.terminal import SafeConsole

    if not beforehand and not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    echo("This needs what is not installed:", err=True)
    for part in parts:
        echo(f"  {part}", err=True)
    if beforehand:
        return True
    try:
        answer = SafeConsole(stderr=True).input("Install it now? [Y/n] ")
    except (EOFError, KeyboardInterrupt):
        echo(err=True)
        return False
    return answer.strip().lower() in ("", "y", "yes")
