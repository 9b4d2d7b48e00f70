"""`coa doctor`: what works on this machine, and the command that repairs what does not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coa.choices import RlEngine
from coa.cli import options
from coa.cli.output import echo_json

if TYPE_CHECKING:
    from coa.doctor import Check


def doctor(
    config: Annotated[
        Path | None, typer.Argument(help="Settings of `coa rl` to check with --engine verl, as a TOML file.")
    ] = None,
    engine: Annotated[
        RlEngine, typer.Option(help="With verl: check what `coa rl --engine verl` needs, instead of this machine.")
    ] = RlEngine.LOCAL,
    ray: Annotated[
        str | None, typer.Option(help="Address of the Ray cluster whose nodes to check. Default: RAY_ADDRESS.")
    ] = None,
    settings: options.Set = None,
    as_json: options.Json = False,
) -> None:
    """Check what works on this machine, and name the command that fixes what does not."""
    from coa.cli.configuring import misused, resolve
    from coa.doctor import examine, examine_verl

    if engine is RlEngine.VERL:
        from coa.rl.config import RlConfig

        checks = list(examine_verl(resolve(RlConfig, config, settings, {"engine": "verl", "ray": ray})))
    elif config is not None or ray is not None or settings:
        raise misused("a config, --ray and --set are for the verl engine", hint="add --engine verl")
    else:
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
