"""What can be known to fail before Ray starts: settings that verl lacks, batches that do not divide, versions.

None of this imports verl or Ray, so that `coa rl --dry-run` refuses the same as a run does, on any machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import orjson

from coa.addresses import without_passwords
from coa.errors import ConfigError, TrainingError
from coa.models.tokenizer import result_folder
from coa.rl.config import RlConfig
from coa.tools import Tool
from coa.trajectory import Limits

PINNED: Final = {"verl": "0.9.1"}
"""Versions that must be met exactly: the engine relies on names that change between releases."""
NEEDED: Final = ("verl", "ray", "TransferQueue", "tensordict", "torch", "transformers")
TESTED: Final = {
    "ray": "2.60.0", "TransferQueue": "0.1.11", "tensordict": "0.10.0", "torch": "2.13.0", "transformers": "5.10.4"
}  # fmt: skip
"""Versions with which the engine is tested, as constraints-verl.txt has them; others may work."""
INSTALL: Final = "python3.12 -m venv .venv-verl, then .venv-verl/bin/pip install 'chain-of-agents[verl,train]'"


@dataclass(frozen=True)
class Unsupported:
    """A setting that the verl engine cannot carry out, with the value that it needs."""

    name: str
    allowed: tuple[Any, ...]
    why: str


_UNSUPPORTED: Final = (
    Unsupported("advantage_estimator", ("grpo",), "verl computes the advantages"),
    Unsupported("freeze_embeddings", (False,), "verl trains all weights"),
    Unsupported("freeze_layers", (0,), "verl trains all weights"),
    Unsupported("min_lr_ratio", (1.0,), "verl has no linear decay of the learning rate"),
    Unsupported("task_sampling", ("shuffle",), "verl draws the tasks"),
    Unsupported("one_step_off_policy", (False,), "verl.trainer_mode=colocate_async samples ahead there"),
    Unsupported("full_determinism", (False, None), "attempts in several processes end in any order"),
)
_UNUSED: Final = (
    Unsupported("min_groups", (None,), "verl draws tasks until it has train_batch_size groups"),
    Unsupported("precision", ("auto",), "verl trains in mixed precision; verl.overrides reach its fsdp_config"),
)
"""Settings that only decide how fast or with how much memory a run goes, so that a config runs on both engines."""


def unused(config: RlConfig) -> list[str]:
    """A sentence for each setting that was given and that verl has no use for."""
    return [
        f"{one.name}={_shown(getattr(config, one.name))} is not used: {one.why}"
        for one in _UNUSED
        if getattr(config, one.name) not in one.allowed
    ]


def refuse_unsupported(config: RlConfig, tools: Mapping[str, Tool] | None = None) -> None:
    """Refuse settings that verl would ignore or cannot divide."""
    found = [one for one in _UNSUPPORTED if getattr(config, one.name) not in one.allowed]
    if found:
        given = "; ".join(f"{one.name}={_shown(getattr(config, one.name))} ({one.why})" for one in found)
        sets = " ".join(f"--set {one.name}={_shown(one.allowed[0])}" for one in found)
        raise ConfigError(f"the verl engine cannot do {given}", hint=f"{sets}, or use --engine local")
    if config.clip_ratio_c == 0:
        raise ConfigError("the verl engine cannot turn the dual clip off", hint="--set clip_ratio_c=1000")
    if config.lora is not None:
        raise ConfigError(
            "the verl engine trains all weights, no adapters", hint="leave lora out, or use --engine local"
        )
    if tools:
        raise ConfigError(
            f"the tool {next(iter(tools))!r} is an object of this process, which verl's processes do not have",
            hint="name a factory that they can import: --tool NAME=module:factory",
        )
    if without_passwords(text := config.model_dump_json()) != text:
        raise ConfigError(
            "an address in the settings holds a password, and the verl engine would have to write it into a file",
            hint="put the key into an environment variable of each machine instead",
        )
    _refuse_indivisible(config)


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refuse_indivisible(config: RlConfig) -> None:
    """verl finds these out after it has made the first attempts, with an AssertionError."""
    verl, groups = config.verl, config.train_batch_size
    if groups % config.num_mini_batches:
        raise ConfigError(
            f"train_batch_size={groups} cannot be split into {config.num_mini_batches} equal mini-batches",
            hint="choose num_mini_batches so that it divides train_batch_size",
        )
    attempts = groups // config.num_mini_batches * config.num_generations
    replicas = verl.world_size // verl.sequence_parallel_size
    if attempts % replicas:
        raise ConfigError(
            f"a mini-batch of {groups // config.num_mini_batches} groups of {config.num_generations} attempts cannot "
            f"be divided among {replicas} training processes",
            hint=f"choose train_batch_size / num_mini_batches * num_generations as a multiple of {replicas}",
        )
    if verl.trainer_mode == "separate_async" and config.num_mini_batches > 1 and verl.device == "cpu":
        raise ConfigError(
            "separate_async on a CPU makes one update per step: verl 0.9.1 keeps no copy of earlier weights there",
            hint="--set num_mini_batches=1, or another --set verl.trainer_mode",
        )


def refuse_few_gpus(config: RlConfig, there: Sequence[int]) -> None:
    """`there` is the number of GPUs of each node. verl takes all GPUs of one of its nodes from one machine."""
    verl = config.verl
    wanted = [verl.processes_per_node] * verl.nnodes
    if verl.trainer_mode == "separate_async":
        wanted += [verl.rollout_processes_per_node] * verl.rollout_nnodes
    if sum(wanted) > sum(there):
        raise TrainingError(
            f"the run needs {sum(wanted)} GPUs, and the cluster has {sum(there)}",
            hint=f"--set verl.gpus_per_node={max(sum(there) // verl.nnodes, 1)}, or start Ray on more machines",
        )
    free = list(there)
    for count in sorted(wanted, reverse=True):
        fullest = max(range(len(free)), key=free.__getitem__)
        if free[fullest] < count:
            raise TrainingError(
                f"the run needs machines with {', '.join(map(str, wanted))} GPUs, and the cluster has machines with "
                f"{', '.join(map(str, there))}",
                hint=f"--set verl.gpus_per_node={min(there)}, with verl.nnodes to match",
            )
        free[fullest] -= count


def positions_of(model: str | Path) -> int | None:
    """Number of tokens that a model was made for; None if its files do not say, or are not here yet."""
    try:
        config = orjson.loads((Path(result_folder(model)) / "config.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    found, scaling = config.get("max_position_embeddings"), config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(found, int):
        return None
    if not isinstance(scaling, dict) or not isinstance(factor := scaling.get("factor"), int | float):
        return found
    original = scaling.get("original_max_position_embeddings")  # where it is given, `found` may be the scaled number
    return max(found, int((original or found) * factor))


def refuse_too_long(limits: Sequence[Limits], prompt_tokens: int, model_positions: int | None) -> int:
    """The longest context of the run. Refuses prompts that leave no room, and contexts that the model cannot hold."""
    context = max(one.context_tokens for one in limits)
    shortest = min(one.context_tokens for one in limits)
    if prompt_tokens >= shortest:
        raise TrainingError(
            f"the longest prompt has {prompt_tokens} tokens, the context only {shortest}",
            hint=f"--set max_model_len={2 * prompt_tokens}, or leave out tasks with long prompts",
        )
    if model_positions is not None and context > model_positions:
        raise TrainingError(
            f"max_model_len is {context}, but the model was made for {model_positions} tokens",
            hint=f"--set max_model_len={model_positions}",
        )
    return context


def installed() -> Iterator[tuple[str, str | None]]:
    """Packages that the engine needs, with their versions; None for one that is missing."""
    for name in NEEDED:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, None


def refuse_versions() -> None:
    """Refuse to start without verl, or with a version for which the engine was not written."""
    found = dict(installed())
    for name, there in found.items():
        if there is None:
            why = " (verl needs Python 3.12 or earlier)" if sys.version_info >= (3, 13) else ""
            raise TrainingError(f"the verl engine needs the package {name}{why}", hint=INSTALL)
    for name, wanted in PINNED.items():
        if found[name] != wanted:
            raise TrainingError(
                f"the verl engine is written for {name} {wanted}; {name} {found[name]} is installed",
                hint=f"{sys.executable} -m pip install {name}=={wanted}",
            )
