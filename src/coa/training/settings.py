"""Settings of a training run from a TOML file, `--set key=value` and options, and the list of what can be set."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from coa.errors import TrainingError
from coa.trajectory.types import Frozen

Settings = TypeVar("Settings", bound=Frozen)


class Lora(Frozen):
    """An adapter instead of all weights. Where the model is an adapter already, that one is trained further."""

    rank: int = Field(16, ge=1)
    alpha: int = Field(32, ge=1)
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: str = "all-linear"
    """Which layers: `all-linear`, or a regular expression for their names."""
    dora: bool = False
    """Weight-decomposed LoRA."""
    merge: bool = True
    """Write the result as a whole model; otherwise as an adapter that names its base."""


def load_settings(
    kind: type[Settings],
    command: str,
    path: Path | None,
    settings: Sequence[str],
    given: Mapping[str, Any],
    otherwise: Mapping[str, Any] | None = None,
) -> Settings:
    """From a TOML file, then what `--set key=value` says, then options of the command; None is not given.

    `otherwise` comes before all of them.
    """
    data = dict(otherwise or {}) | (_read_toml(path, command) if path is not None else {})
    for setting in settings:
        apply_setting(data, setting)
    data |= {name: value for name, value in given.items() if value is not None}
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise TrainingError(
            f"{path or 'the settings'}: {_first_problem(error)}",
            hint=f"`coa {command} --settings` lists every key with its meaning and default",
        ) from error


def describe_settings(tables: Mapping[str, type[Frozen]]) -> str:
    """Every key, its default and its meaning; tables by prefix, "" for the top."""
    lines = []
    for prefix, kind in tables.items():
        for name, field in kind.model_fields.items():
            default = field.get_default(call_default_factory=True)
            shown = "" if isinstance(default, Frozen) else default
            about = " ".join((field.description or "").split())
            lines.append(f"{prefix + name:<22} {shown!s:<16} {about}".rstrip())
    return "\n".join(lines)


def _read_toml(path: Path, command: str) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise TrainingError(
            f"cannot read {path}: {error.strerror}", hint=f"recipes are in configs/{command}/"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise TrainingError(f"{path} is not valid TOML: {error}") from error


def apply_setting(data: dict[str, Any], setting: str) -> None:
    """`lr=1e-5`, `lora.rank=8`, `data=["a", "b"]`: the value is TOML, or else plain text."""
    key, found, text = setting.partition("=")
    if not found:
        raise TrainingError(f"--set {setting!r} is not of the form key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    if isinstance(value, int) and key.strip().endswith("lr"):
        value = float(value)
    *tables, name = key.strip().split(".")
    for table in tables:
        inner = data.setdefault(table, {})
        if not isinstance(inner, dict):
            raise TrainingError(f"--set {setting!r}: {table} is not a table")
        data = inner
    data[name] = value


def _first_problem(error: ValidationError) -> str:
    problem: Mapping[str, Any] = error.errors()[0]
    where = ".".join(map(str, problem["loc"]))
    return f"{where}: {problem['msg']}" if where else str(problem["msg"])
