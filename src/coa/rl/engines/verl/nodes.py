"""Every node of the cluster is tried before a GPU is taken: packages, tools, sandboxes, search, and the run folder."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from coa.errors import CoaError, TrainingError
from coa.report import plural
from coa.rl.config import RlConfig
from coa.rl.engines.verl.checks import refuse_few_gpus
from coa.rl.engines.verl.needs import try_tools
from coa.rl.engines.verl.settings import Files
from coa.runtime.on_ray import TOOL_VARIABLES

ALIKE: Final = ("chain-of-agents", "verl", "ray", "torch", "transformers", "TransferQueue", "tensordict")
"""Packages that must have the same version on all nodes."""
WAIT_S: Final = 300.0
_DRIVERS_OWN: Final = {"COA_DEBUG", "COA_CACHE", "COA_DATA", "COA_SERVE_KEY", "COA_SERVE_KEYS", "COA_LAUNCHED"}
"""Variables that no attempt needs: how errors are shown, where files are kept, keys for clients of `coa serve`."""


def alive() -> list[Mapping[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def refuse_unfit(config: RlConfig, files: Files | None = None, profiles: Sequence[str] = ()) -> list[str]:
    """One line about each node. Raises for the first node on which the run would fail.

    With `files` it is also checked that each node sees the run folder.
    """
    text, run_file = config.model_dump_json(), str(files.run) if files is not None else None
    here, lines, nodes = _versions(), list[str](), alive()
    references = [
        ray.remote(num_cpus=0)(_try_here)
        .options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
        .remote(text, run_file, list(profiles))
        for node in nodes
    ]
    for node, reference in zip(nodes, references, strict=True):
        address = node["NodeManagerAddress"]
        try:
            found = ray.get(reference, timeout=WAIT_S)
        except ray.exceptions.GetTimeoutError as error:
            raise TrainingError(f"the node {address} did not answer within {WAIT_S:g} s", hint="ray status") from error
        except ray.exceptions.RayTaskError as error:
            reason = str(error.cause or error).strip().splitlines()[-1]
            hint = "install the same packages on every machine: chain-of-agents[verl,train]"
            raise TrainingError(f"coa cannot be used on the node {address}: {reason}", hint=hint) from error
        for name, there in found["versions"].items():
            if there != here[name]:
                raise TrainingError(
                    f"the node {address} has {name} {there}, this machine {here[name]}",
                    hint=f"install {name}=={here[name]} there",
                )
        if found["problem"] is not None:
            raise TrainingError(f"the node {address}: {found['problem']}", hint=found["hint"])
        if absent := sorted(_variables() - found["variables"]):
            raise TrainingError(
                f"the node {address} lacks the environment variable {absent[0]}, which this machine has",
                hint="set it there before `ray start`, because agents and tools read it there, or unset it here",
            )
        gpus = int(node["Resources"].get("GPU", 0))
        lines.append(
            f"{address}: {found['host']}, {plural(gpus, 'GPU', 'GPUs')}, tools {', '.join(found['tools']) or 'none'}"
        )
    refuse_few_gpus(config, [int(node["Resources"].get("GPU", 0)) for node in nodes])
    return lines


def _variables() -> set[str]:
    """Names of the environment variables here that agents and tools may need: addresses, keys, settings of tools."""
    return {name for name in os.environ if name.startswith(TOOL_VARIABLES)} - _DRIVERS_OWN


def _versions() -> dict[str, str]:
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in ALIKE:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _try_here(text: str, run_file: str | None, profiles: list[str]) -> dict[str, Any]:
    """Opens the tools as an attempt would, and asks each sandbox server whether it is there."""
    found: dict[str, Any] = {
        "host": platform.node(), "versions": _versions(), "variables": _variables(), "problem": None, "hint": None,
    }  # fmt: skip
    config = RlConfig.model_validate_json(text)
    try:
        if run_file is not None and not Path(run_file).is_file():
            raise TrainingError(
                f"{run_file} cannot be seen there", hint="use an --out folder on storage that all machines share"
            )
        found["tools"] = asyncio.run(try_tools(config, profiles))
    except CoaError as error:
        found |= {"problem": error.message, "hint": error.hint}
    return found


def _main() -> None:
    """For `coa doctor`: settings as JSON on stdin, one line of JSON on stdout."""
    import sys

    import orjson

    from coa.rl.checks import check, profiles_of
    from coa.rl.engines.verl.cluster import join_ray

    config = RlConfig.model_validate_json(sys.stdin.buffer.read())
    found: dict[str, Any]
    try:
        join_ray(config, Path("coa-doctor"))
        profiles = profiles_of(config, check(config).tasks) if config.tasks else ()
        found = {"nodes": refuse_unfit(config, profiles=profiles)}
    except CoaError as error:
        found = {"problem": error.message, "hint": error.hint}
    sys.stdout.write("\n" + orjson.dumps(found).decode() + "\n")


if __name__ == "__main__":
    from coa.rl.engines.verl import nodes  # so that Ray finds its functions by the module's name

    nodes._main()
