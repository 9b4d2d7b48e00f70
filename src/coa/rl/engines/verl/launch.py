"""The child process of `coa rl --engine verl`: it starts or joins Ray, checks the nodes, and runs the trainer.

`python -m coa.rl.engines.verl.launch RUN_FOLDER PARENT` reads `verl/run.json` there. It reports by lines of JSON in
`verl/events.jsonl`; all output of verl and Ray goes to `verl/log.txt`. It ends with its parent, whose process id it is
given, and takes a Ray that it has started with it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from coa.errors import CoaError, TrainingError
from coa.report import plural
from coa.rl.config import RlConfig
from coa.rl.engines.verl import nodes, signatures
from coa.rl.engines.verl.cluster import join_ray, reason
from coa.rl.engines.verl.collector import start_collector
from coa.rl.engines.verl.settings import Files, as_overrides, cluster_address

POLL_S: Final = 0.5


def main() -> int:
    out, files = Path(sys.argv[1]), Files(Path(sys.argv[1]))
    _end_with(int(sys.argv[2]))
    try:
        problem = launch(out, files)
    except CoaError as error:
        problem = {"message": error.message, "hint": error.hint or ""}
    if problem is not None:
        files.report("failed", **problem)
        return 1
    return 0


def launch(out: Path, files: Files) -> dict[str, str] | None:
    run = orjson.loads(files.run.read_bytes())
    config = RlConfig.model_validate(run["config"])
    signatures.refuse_moved()
    files.report("say", line="reading verl's configuration")
    resolved = compose(orjson.loads(files.overrides.read_bytes()))
    files.config.write_text(_yaml(resolved))
    files.report("say", line="joining Ray" if cluster_address(config) else "starting Ray")
    join_ray(config, out)
    files.report("say", line=f"checking tools and packages on {plural(len(nodes.alive()), 'node')}")
    nodes.refuse_unfit(config, files, run["profiles"])
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    collector = start_collector(scheduling_strategy=here)
    from coa.rl.engines.verl.trainer import Runner  # needs the names of verl that have been checked by now

    runner = ray.remote(num_cpus=1)(Runner).options(scheduling_strategy=here).remote()
    running = runner.run.remote(resolved, str(files.run), str(out.resolve()))
    return _follow(running, collector, files)


def compose(overrides: Mapping[str, Any]) -> Any:
    """verl's configuration with our settings, checked by verl's own rules."""
    import verl
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    folder = Path(verl.__file__).parent / "trainer" / "config"
    try:
        with initialize_config_dir(str(folder), version_base=None):
            config = hydra_compose("ppo_trainer", overrides=as_overrides(overrides))
        validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
        OmegaConf.resolve(config)
    except (HydraException, OmegaConfBaseException, AssertionError, ValueError, TypeError) as error:
        raise TrainingError(
            f"verl refuses these settings: {' '.join(str(error).split())}"[:1000],
            hint="look at verl.overrides, which reach verl as they are",
        ) from error
    return config


def _end_with(parent: int) -> None:
    """End this process when `coa rl` has ended, in whatever way: nobody would take note of what follows, and the same
    command would start a second trainer. Ray ends what it has started for a process that is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_S)
        os._exit(1)

    threading.Thread(target=watch, name="coa-parent", daemon=True).start()


def _follow(running: Any, collector: Any, files: Files) -> dict[str, str] | None:
    before: dict[str, int] = {}
    while True:
        try:
            done, _ = ray.wait([running], timeout=POLL_S)
            counts = ray.get(collector.counts.remote())
            if counts != before:
                files.report("counts", **counts)
                before = counts
            if done:
                found: dict[str, str] | None = ray.get(running)
                return found
        except ray.exceptions.RayError as error:
            raise TrainingError(
                f"the trainer ended: {reason(error)}"[:500],
                hint=f"{files.log} has all of it; the same command goes on from step {files.latest}",
            ) from error


def _yaml(config: Any) -> str:
    from omegaconf import OmegaConf

    return str(OmegaConf.to_yaml(config))


if __name__ == "__main__":
    # Ray pickles classes of __main__ by value; from here they have their module's name.
    from coa.rl.engines.verl import launch as module

    sys.exit(module.main())
