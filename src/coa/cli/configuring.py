"""From the options of a command to its config: shared by all commands that take settings."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import typer

from coa.addresses import without_passwords
from coa.cli.helping import Command
from coa.cli.output import echo, echo_json, echo_text, error_text, hanging, visible_json

if TYPE_CHECKING:
    from pydantic import BaseModel

Config = TypeVar("Config", bound="BaseModel")


class Plan(Protocol):
    """What a stage will do, as its function `plan` says."""

    def lines(self) -> list[str]: ...

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


def misused(message: str, hint: str | None = None) -> typer.Exit:
    """To be raised: says what is wrong with the command, and ends it with exit code 2."""
    echo_text(without_passwords(error_text(message, hint)), err=True)
    return typer.Exit(2)


def resolve(
    kind: type[Config],
    path: Path | None,
    settings: Sequence[str] | None,
    given: Mapping[str, Any],
    *,
    show_settings: bool = False,
    dry_run: bool = False,
    plan: Callable[[Config], Plan] | None = None,
    as_json: bool = False,
) -> Config:
    """The config of a command; with `--settings` or `--dry-run` it is printed instead, and the command ends.

    `plan` says what the stage will do; a dry run prints it behind the config.
    """
    from coa.config import describe_config, load_config
    from coa.errors import ConfigError

    if show_settings:
        echo_text(describe_config(kind))
        raise typer.Exit
    hint = "--settings lists every key with its meaning and default"
    try:
        config = load_config(kind, path, settings or (), hint=hint, given=given)
    except ConfigError as error:
        raise misused(error.message, error.hint) from error
    if dry_run:
        from coa.runtime import RunConfig

        shown = config.resolved() if isinstance(config, RunConfig) else config
        if plan is None:
            echo_json(without_passwords(shown.model_dump_json(indent=2)))
        elif as_json:
            import orjson

            found = {"config": shown.model_dump(mode="json"), "plan": plan(config).model_dump(mode="json")}
            echo_json(without_passwords(orjson.dumps(found).decode()))
        else:
            echo_text(visible_json(without_passwords(shown.model_dump_json(indent=2))))
            for line in plan(config).lines():
                echo_text(hanging(line))
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
            shown = without_passwords(setting)
            echo(f"warning: {flag} will go in the next release; write --set {shlex.quote(shown)}", err=True)
            found += ["--set", setting]
        return found


def accepting(former: Mapping[str, str]) -> type[SettingsCommand]:
    """The class of a command that still accepts these former flags; `KEY=true` stands for a flag without a value."""
    return type("SettingsCommand", (SettingsCommand,), {"former": former})
