"""How a stage gets its settings: a config class, filled from a TOML file, `--set key=value`, and named options.

    config = load_config(RlConfig, "configs/rl/nano.toml", ["lr=1e-5", "lora.rank=8"], given={"model": "runs/sft"})

Later sources win. A config class is a frozen pydantic model that forbids unknown keys; the string below each field is
its help text, in `coa ... --settings` and in the reference pages alike. A class may list keys that it used to have in
`RENAMED`: they are still accepted, with a warning that names the new key. `RENAMED_VALUES` says what an old key's
values are called today, where those have changed too.
"""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from coa.errors import ConfigError

log = logging.getLogger(__name__)
ELSEWHERE: Final[Mapping[str, tuple[str, ...]]] = {
    # transformers, TRL, peft
    "learning_rate": ("lr",), "num_train_epochs": ("epochs",), "num_epochs": ("epochs",),
    "per_device_train_batch_size": ("batch_size", "train_batch_size"),
    "gradient_accumulation_steps": ("batch_size", "train_batch_size"), "train_batch_size": ("batch_size",),
    "batch_size": ("train_batch_size",), "max_seq_length": ("max_length", "max_model_len"),
    "max_seq_len": ("max_length", "max_model_len"), "cutoff_len": ("max_length",),
    "num_return_sequences": ("num_generations",), "beta": ("kl_coef",), "epsilon": ("clip_ratio_low",),
    "epsilon_high": ("clip_ratio_high",), "delta": ("clip_ratio_c",), "num_iterations": ("ppo_epochs",),
    "loss_type": ("loss_agg_mode", "policy_loss"), "max_new_tokens": ("max_completion_length", "max_tokens"),
    "reward_funcs": ("reward.function",), "reward_fn": ("reward.function",), "bf16": ("precision",),
    "fp16": ("precision",), "torch_dtype": ("precision",), "dtype": ("precision",), "r": ("lora.rank",),
    "lora_r": ("lora.rank",), "lora_rank": ("lora.rank",), "lora_alpha": ("lora.alpha",),
    "lora_dropout": ("lora.dropout",), "warmup_ratio": ("warmup_steps",), "warmup_steps": ("warmup_ratio",),
    "logging_dir": ("report_to",), "random_seed": ("seed",), "model_name_or_path": ("model",),
    "dataset": ("data", "tasks"), "dataset_name": ("data", "tasks"), "train_data": ("data", "tasks"),
    # verl
    "n": ("num_generations", "samples"), "group_size": ("num_generations",), "kl_loss_coef": ("kl_coef",),
    "kl_ctrl": ("kl_coef",), "adv_estimator": ("advantage_estimator",),
    "clip_ratio": ("clip_ratio_low", "clip_ratio_high"),
    "max_response_length": ("max_completion_length",), "total_epochs": ("epochs", "max_steps"),
    "total_training_steps": ("max_steps",), "ppo_mini_batch_size": ("num_mini_batches",),
    "grad_clip": ("max_grad_norm",),
    "train_files": ("data", "tasks"), "val_files": ("eval_tasks",), "test_freq": ("eval_steps",),
    "save_freq": ("save_steps",),
    # servers and other agents
    "max_completion_tokens": ("max_tokens",), "base_url": ("model", "run.model"), "num_samples": ("samples",),
    "max_concurrency": ("concurrency", "jobs"), "num_workers": ("concurrency", "jobs"),
    "workers": ("concurrency", "jobs"),
    "timeout": ("timeout_s", "time_limit_s"), "max_turns": ("max_tool_calls",),
}  # fmt: skip
"""What other libraries call a setting, with our names for it. They are not accepted, only recognised."""
Config = TypeVar("Config", bound=BaseModel)


def load_config(
    kind: type[Config],
    path: str | Path | None = None,
    settings: Sequence[str] = (),
    *,
    hint: str | None = None,
    defaults: Mapping[str, Any] | None = None,
    given: Mapping[str, Any] | None = None,
) -> Config:
    """Build a config of a stage from a TOML file and from settings.

    Later sources override earlier ones: `defaults`, the file, `settings`, `given`.

    Args:
        kind: The config class, such as `SftConfig`.
        path: A TOML file.
        settings: Settings as `key=value`, as `--set` takes them.
        hint: Hint of the error if a setting is wrong.
        defaults: Values used where nothing else gives one.
        given: Values by their path, such as `{"run.model": "nano"}`. None means not given.

    Returns:
        The config.

    Raises:
        ConfigError: The file cannot be read, or a setting does not exist or has a wrong value.
    """
    data = _merged(dict(defaults or {}), _read_toml(Path(path)) if path is not None else {})
    for setting in settings:
        _apply(data, setting)
    for key, value in (given or {}).items():
        if value is not None:
            _put(data, key, value)
    try:
        return kind.model_validate(with_new_names(kind, data))
    except ValidationError as error:
        raise ConfigError(f"{path or 'settings'}: {first_problem(error, kind)}", hint=hint) from error


def describe_config(kind: type[BaseModel], prefix: str = "") -> str:
    """Every key of a config with its default and its help text, one line each; tables by prefix."""
    lines, tables = [], []
    for name, field in kind.model_fields.items():
        default = "required" if field.is_required() else field.get_default(call_default_factory=True)
        about = " ".join((field.description or "").split())
        if values := _values_of(field.annotation):
            about = f"{about} One of {', '.join(values)}."
        table = _table_of(field.annotation)
        if table is not None:
            tables.append(describe_config(table, f"{prefix}{name}.{'NAME.' if _is_named(field.annotation) else ''}"))
        else:
            lines.append(f"{prefix + name:<26} {default!s:<16} {about}".rstrip())
    return "\n".join([*lines, *tables])


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint="recipes are in configs/") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` wins; tables are merged key by key."""
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(below.get(key), Mapping)
        below[key] = _merged(dict(below[key]), value) if both else value
    return below


def _apply(data: dict[str, Any], setting: str) -> None:
    """`lr=1e-5`, `lora.rank=8`, `data=["a", "b"]`: the value is TOML, or else plain text."""
    key, found, text = setting.partition("=")
    if not found:
        raise ConfigError(f"--set {setting!r} is not of the form key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    _put(data, key.strip(), value)


def _put(data: dict[str, Any], key: str, value: object) -> None:
    *tables, name = key.split(".")
    for table in tables:
        inner = data.setdefault(table, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{key}: {table} is not a table")
        data = inner
    data[name] = value


def with_new_names(
    kind: type[BaseModel], data: Mapping[str, Any], *, warn: bool = True, prefix: str = ""
) -> dict[str, Any]:
    """Settings under the names of today, in tables and lists of tables too. `warn` logs each old name."""
    names: Mapping[str, str] = getattr(kind, "RENAMED", {})
    values: Mapping[str, Mapping[Any, Any]] = getattr(kind, "RENAMED_VALUES", {})
    found = {}
    for key, value in data.items():
        new = names.get(key, key)
        if new != key and warn:
            log.warning("%s%s is now called %s; the old name will stop working in the next release", prefix, key, new)
        if key in values and isinstance(value, str | int):
            value = values[key].get(value, value)
        field = kind.model_fields.get(new)
        table = _table_of(field.annotation, lists=True) if field is not None else None
        inside = f"{prefix}{new}."
        if table is not None and isinstance(value, Mapping) and field is not None and _is_named(field.annotation):
            value = {
                own: with_new_names(table, v, warn=warn, prefix=f"{inside}{own}.") if isinstance(v, Mapping) else v
                for own, v in value.items()
            }
        elif table is not None and isinstance(value, Mapping):
            value = with_new_names(table, value, warn=warn, prefix=inside)
        elif table is not None and isinstance(value, list | tuple):
            value = [with_new_names(table, v, warn=warn, prefix=inside) if isinstance(v, Mapping) else v for v in value]
        found[new] = value
    return found


def _values_of(annotation: Any) -> list[str]:
    """The values of a field that has a fixed set of them, in an enum or a `Literal`."""
    found: list[str] = []
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, Enum):
            found += [str(member.value) for member in kind]
        elif get_origin(kind) is Literal:
            found += map(str, get_args(kind))
    return found


def _table_of(annotation: Any, *, lists: bool = False) -> type[BaseModel] | None:
    """The config class of a field that is a table, `Table` or `Table | None`; None for any other field.

    With `lists`, also that of a list of tables.
    """
    if get_origin(annotation) in (list, tuple) and not lists:
        return None
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _is_named(annotation: Any) -> bool:
    """Whether a field holds tables by names of the user's: `agents: dict[str, Table]`."""
    return get_origin(annotation) in (dict, Mapping)


def first_problem(error: ValidationError, kind: type[BaseModel] | None = None) -> str:
    """Where in a config the first mistake is, and what is wrong; for a wrong key, the keys that look like it."""
    # A misspelled key of a table can leave another one without a value; the misspelling is the cause.
    problems: Sequence[Mapping[str, Any]] = error.errors()
    problem = next((each for each in problems if each["type"] == "extra_forbidden"), problems[0])
    where, message = ".".join(map(str, problem["loc"])), str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        near = _near(where, list(_keys(kind))) if kind is not None else []
        message = "there is no such setting" + (f"; did you mean {' or '.join(near)}?" if near else "")
    return f"{where}: {message}" if where else message


def _keys(kind: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key of a config, those of tables and of lists of tables too."""
    for name, field in kind.model_fields.items():
        table = _table_of(field.annotation, lists=True)
        yield f"{prefix}{name}"
        if table is not None:
            yield from _keys(table, f"{prefix}{name}.{'NAME.' if _is_named(field.annotation) else ''}")


def _near(wrong: str, known: Sequence[str]) -> list[str]:
    """The keys that were probably meant: ours for another library's name, that of another table, the nearest ones."""
    wrong = ".".join(part for part in wrong.split(".") if not part.isdecimal())
    name = wrong.rpartition(".")[2]
    known = sorted(known, key=lambda key: key.partition(".")[0] != wrong.partition(".")[0])  # those of its table first
    ours = ELSEWHERE.get(name, ())
    if called := [key for key in known if key in ours or key.rpartition(".")[2] in ours]:
        return called[:2]
    if same := [key for key in known if key.rpartition(".")[2] == name]:
        return same[:2]
    if near := get_close_matches(wrong, known, n=2, cutoff=0.7):
        return near
    by_name = {key.rpartition(".")[2]: key for key in reversed(known)}
    return [by_name[match] for match in get_close_matches(name, by_name, n=2, cutoff=0.75)]
