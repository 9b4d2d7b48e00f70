"""`coa doctor`: what works on this machine, and the command that repairs what does not."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from coa.cli import options
from coa.cli.output import echo_json

if TYPE_CHECKING:
    from coa.doctor import Check


def doctor(as_json: options.Json = False) -> None:
    """Check what works on this machine, and name the command that fixes what does not."""
    from coa.doctor import examine

    checks = list(examine())
    if as_json:
        import orjson

        echo_json(orjson.dumps([asdict(check) for check in checks], option=orjson.OPT_INDENT_2))
    else:
        _print(checks)
    if any(check.needed and not check.works for check in checks):
        raise typer.Exit(1)


def _print(checks: list[Check]) -> None:
    from coa.cli.terminal import SafeConsole, SafeText

    console = SafeConsole()
    for check in checks:
        mark, style = ("ok", "green") if check.works else ("no", "red" if check.needed else "yellow")
        console.print(
            SafeText.assemble((f"{mark:>4}  ", style), (check.what, "bold"), f": {check.detail}"), soft_wrap=True
        )
        if check.hint and not check.works:
            console.print(SafeText(f"      hint: {check.hint}"), soft_wrap=True)
