"""Writes docs/reference/: every command with its options, every setting with its default. `--check` only compares.

Made from the command objects and the settings' fields, not from rendered help, so that neither the terminal nor the
version of a library shows in it.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import typer
from pydantic import BaseModel

from coa.cli import app
from coa.distill.config import DistillConfig
from coa.distill.gateway.config import RecordConfig
from coa.distill.teaching.stage import TeachConfig
from coa.evaluate.config import EvalConfig
from coa.rl.config import RlConfig
from coa.runtime.config import AskConfig, RunConfig
from coa.sampling.config import SampleConfig
from coa.scan.config import ScanConfig
from coa.serve.config import ServeConfig
from coa.sft.config import SftConfig
from coa.shard import Shard
from coa.trajectory.profile import Limits, Profile

FOLDER: Final = Path(__file__).parents[1] / "docs" / "reference"
COMMAND: Final = "make reference"
_MADE: Final = f"Made by `{COMMAND}`; a test fails when it is out of date."
_WORDS: Final = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path", Shard: "text"}
_BOUNDS: Final = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def pages() -> dict[str, str]:
    """The text of each page, by file name."""
    return {"cli.md": _cli(), "config.md": _config()}


def stale(folder: Path = FOLDER) -> list[str]:
    """What is wrong with the pages on disk; empty where nothing is."""
    found = [
        f"{folder / name} is out of date"
        for name, text in pages().items()
        if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text
    ]
    return [*found, f"run `{COMMAND}`"] if found else []


def write(folder: Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


# Commands


def _cli() -> str:
    root = typer.main.get_command(app)
    about = (
        "Results go to stdout (`--json` for machines), logs and progress to stderr. Exit codes: 0 done, 1 failed or "
        "stopped with something kept, 2 misused, 130 interrupted. Long commands resume from their `--out` folder. "
        "[Settings](config.md) of recipes are on a separate page."
    )
    parts = ["# Commands", _MADE, about, *_command("coa", root)]
    return "\n\n".join(parts) + "\n"


def _command(path: str, command: Any) -> Iterator[str]:
    subcommands = getattr(command, "commands", None)
    yield f"## {path}"
    yield inspect.cleandoc(command.help or "")
    hints = _hints(command)
    parameters = [each for each in command.params if not getattr(each, "hidden", False)]
    arguments = [each for each in parameters if not each.opts[0].startswith("-")]
    if not subcommands:
        yield f"```\n{' '.join([path, *map(_usage, arguments), '[OPTIONS]'])}\n```"
    rows = [_row(each, hints.get(each.name)) for each in parameters]
    if rows:
        yield _table(("", "takes", "default", ""), rows)
    for name, inner in (subcommands or {}).items():
        yield from _command(f"{path} {name}", inner)


def _hints(command: Any) -> Mapping[str, Any]:
    """The types as written in the function: how typer keeps them changes from version to version."""
    return typing.get_type_hints(inspect.unwrap(command.callback), include_extras=True) if command.callback else {}


def _usage(argument: Any) -> str:
    name = argument.name.upper() + ("..." if argument.nargs != 1 else "")
    return name if argument.required else f"[{name}]"


def _row(parameter: Any, hint: Any) -> tuple[str, ...]:
    is_argument = not parameter.opts[0].startswith("-")
    spelled = parameter.name.upper() if is_argument else ", ".join([*parameter.opts, *parameter.secondary_opts])
    takes = "" if getattr(parameter, "is_flag", False) else _option_type(hint)
    return f"`{spelled}`", takes, _option_default(parameter), _one_line(parameter.help)


def _option_type(hint: Any) -> str:
    bounds: dict[str, Any] = {}
    if typing.get_origin(hint) is typing.Annotated:
        hint, *notes = typing.get_args(hint)
        for note in notes:
            bounds |= {"ge": getattr(note, "min", None), "le": getattr(note, "max", None)}
    return _bounded(_type(hint), bounds)


def _option_default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    if default is None or default is False or default == () or default == [] or callable(default):
        return ""
    return f"`{default}`"


# Settings


class _Page(NamedTuple):
    title: str
    about: str
    kind: type[BaseModel]


_SETTINGS: Final = (
    _Page("coa run", "`coa run --config FILE.toml`; `--set key=value` changes one.", AskConfig),
    _Page("coa sft", "Recipes: `configs/sft/`. `--set key=value` changes one; unknown keys fail.", SftConfig),
    _Page("coa rl", "Recipes: `configs/rl/`. `--set key=value` changes one; unknown keys fail.", RlConfig),
    _Page(
        "coa distill",
        "`--config FILE.toml`; `--set key=value` changes one. Each filter has its own table.",
        DistillConfig,
    ),
    _Page(
        "coa eval",
        "Recipes: `configs/eval/`. `--set key=value` changes one, such as `--set run.temperature=0.6`.",
        EvalConfig,
    ),
    _Page("coa sample", "`--config FILE.toml`; `--set key=value` changes one.", SampleConfig),
    _Page("coa scan", "Fields of `coa.ScanConfig`; the command has options for them.", ScanConfig),
    _Page("coa record", "`--config FILE.toml`; `--set key=value` changes one.", RecordConfig),
    _Page("coa teach", "`--config FILE.toml`; `--set key=value` changes one.", TeachConfig),
    _Page(
        "coa serve",
        "`coa serve AGENTS.toml`; `--set key=value` changes one. `coa mcp` takes the same settings.",
        ServeConfig,
    ),
    _Page(
        "Limits",
        "What one run may spend: `[limits]` of a profile, or `--budget name=value` of a command.",
        Limits,
    ),
    _Page(
        "Profiles",
        "A TOML file for `--profile`; `coa profile show web --toml` prints one to start from. At its top, "
        '`extends = "web"` lays it over a shipped one ([more](../concepts/protocol.md#write-your-own)).',
        Profile,
    ),
)


def _config() -> str:
    about = "`none` stands for a key that is left out. Keys of tables are written with a dot, as `--set` takes them."
    parts = ["# Settings", _MADE, about]
    for page in _SETTINGS:
        parts += [f"## {page.title}", page.about, _table(("key", "takes", "default", ""), list(_keys(page.kind)))]
    return "\n\n".join(parts) + "\n"


def _keys(kind: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, ...]]:
    for name, field in kind.model_fields.items():
        bounds = {
            word: value
            for note in field.metadata
            for word in _BOUNDS
            if (value := getattr(note, word, None)) is not None
        }
        default = "required" if field.is_required() else _toml(field.get_default(call_default_factory=True))
        takes = _bounded(_type(field.annotation), bounds)
        tables = list(_tables(field.annotation))
        if not (tables and _is_table(field.annotation)):
            yield f"`{prefix}{name}`", takes, default, _one_line(field.description)
        for inner, suffix in tables:
            if inner is RunConfig:
                yield (
                    f"`{prefix}{name}{suffix}.*`",
                    "table",
                    "",
                    "How to run the agent: the keys of [coa run](#coa-run).",
                )
                continue
            yield from _keys(inner, f"{prefix}{name}{suffix}.")


def _is_table(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _tables(annotation: Any) -> Iterator[tuple[type[BaseModel], str]]:
    """Models inside a field, and how a key of theirs is reached."""
    if _is_table(annotation):
        yield annotation, ""
        return
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        yield from _tables(inner[0])
    elif origin is tuple:
        yield from ((model, f"[]{suffix}") for model, suffix in _tables(inner[0]))
    elif origin in (dict, Mapping):
        yield from ((model, f".NAME{suffix}") for model, suffix in _tables(inner[1]))
    elif origin in (typing.Union, types.UnionType):
        for part in inner:
            yield from _tables(part)


def _type(annotation: Any) -> str:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(inner[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type(part) for part in inner if part is not types.NoneType))
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (list, tuple):
        return f"list of {_type(inner[0])}"
    if origin in (dict, Mapping):
        return f"table of {_type(inner[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(f"`{member.value}`" for member in annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    return _WORDS.get(annotation, "any value")


def _toml(value: Any) -> str:
    if value is None:
        return "none"
    return f"`{_plain(value)}`"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return f'"{value.value}"'
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, BaseModel):
        return "{}"
    return str(value)


# Both


def _bounded(text: str, bounds: Mapping[str, Any]) -> str:
    told = [f"{_BOUNDS[word]} {value:g}" for word, value in bounds.items() if value is not None]
    return f"{text}, {' and '.join(told)}" if told else text


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def main() -> None:
    if "--check" in sys.argv[1:]:
        sys.exit("\n".join(stale()) or None)
    write()


if __name__ == "__main__":
    main()
