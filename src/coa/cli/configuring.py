"""From the options of a command to its config: shared by all commands that take settings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import typer

from coa.cli.helping import Command

if TYPE_CHECKING:
    from pydantic import BaseModel

Config = TypeVar("Config", bound="BaseModel")


def misused(message: str) -> typer.Exit:
    """To be raised: says what is wrong with the command, and ends it with exit code 2."""
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(2)


def resolve(
    kind: type[Config],
    path: Path | None,
    settings: Sequence[str] | None,
    given: Mapping[str, Any],
    *,
    show_settings: bool = False,
    dry_run: bool = False,
) -> Config:
    """The config of a command; with `--settings` or `--dry-run` it is printed instead, and the command ends."""
    from coa.config import describe_config, load_config
    from coa.errors import ConfigError

    if show_settings:
        typer.echo(describe_config(kind))
        raise typer.Exit
    hint = "--settings lists every key with its meaning and default"
    try:
        config = load_config(kind, path, settings or (), hint=hint, given=given)
    except ConfigError as error:
        raise misused(str(error)) from error
    if dry_run:
        from coa.runtime import RunConfig

        shown = config.resolved() if isinstance(config, RunConfig) else config
        typer.echo(shown.model_dump_json(indent=2))
        raise typer.Exit
    return config


def run_flags(
    prefix: str = "",
    *,
    tool: Sequence[str] | None = None,
    mcp: Sequence[str] | None = None,
    budget: Sequence[str] | None = None,
    **flags: Any,
) -> dict[str, Any]:
    """Flags of a command as keys of a `RunConfig`, which stands under `prefix` in the command's config."""
    given = {**flags, "tools": tuple(tool) if tool else None, "mcp": tuple(mcp) if mcp else None}
    for item in budget or ():
        name, found, value = item.partition("=")
        if not found:
            raise misused(f"--budget {item!r} is not of the form name=value")
        given[f"limits.{name}"] = value
    return {f"{prefix}{key}": value for key, value in given.items()}


class SettingsCommand(Command):
    """A command some of whose former flags are settings now: they still work, with a warning."""

    former: ClassVar[Mapping[str, str]] = {}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(self._translated(args)))

    def _translated(self, args: list[str]) -> list[str]:
        found, rest = list[str](), iter(args)
        for word in rest:
            flag, joined, value = word.partition("=")
            if word == "--":
                return [*found, word, *rest]
            if flag not in self.former:
                found.append(word)
                continue
            key = self.former[flag]
            if not key.endswith("=true") and not joined:
                value = next(rest, "")
            setting = key if key.endswith("=true") else f"{key}={value}"
            typer.echo(f"warning: {flag} will go in the next release; write --set {shlex.quote(setting)}", err=True)
            found += ["--set", setting]
        return found


def accepting(former: Mapping[str, str]) -> type[SettingsCommand]:
    """The class of a command that still accepts these former flags; `KEY=true` stands for a flag without a value."""
    return type("SettingsCommand", (SettingsCommand,), {"former": former})
