"""The names of verl that the engine relies on. verl moves them between releases; this says which have moved.

`python -m coa.rl.engines.verl.signatures` prints the problems as JSON. It is run in a process of its own, because the
import of verl takes seconds and prints a lot.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from typing import Any, Final

from coa.errors import TrainingError

FUNCTIONS: Final = {
    "verl.experimental.agent_loop:AgentLoopBase.__init__": (
        "trainer_config", "server_manager", "tokenizer", "processor", "dataset_cls", "data_config", "hf_model_type",
    ),
    "verl.experimental.agent_loop:AgentLoopBase.run": ("sampling_params",),
    "verl.workers.rollout.llm_server:LLMServerClient.generate": ("request_id", "prompt_ids", "sampling_params"),
    "verl.trainer.ppo.v1:get_trainer_cls": ("name",),
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer.fit": ("agent_loop_manager",),
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer.step": ("metrics", "timing_raw"),
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_advantage": ("batch", "metrics"),
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._add_prompts_to_generate": ("num_prompts",),
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._validate": (),
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._save_checkpoint": (),
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer.on_step_end": (),
    "verl.trainer.ppo.v1:AgentLoopManagerTQ.create": (),
    "verl.utils.config:validate_config": ("config", "use_reference_policy", "use_critic"),
    "transfer_queue:kv_batch_get": ("keys", "partition_id", "select_fields"),
    "transfer_queue:kv_list": ("partition_id",),
}  # fmt: skip
"""Functions, with the parameters that we pass or are passed."""
MODELS: Final = {
    "verl.experimental.agent_loop:AgentLoopOutput": (
        "prompt_ids", "response_ids", "response_mask", "response_logprobs", "reward_score", "num_turns", "metrics",
        "extra_fields",
    ),
    "verl.workers.rollout.replica:TokenOutput": ("token_ids", "log_probs", "stop_reason", "extra_fields"),
}  # fmt: skip
"""Pydantic models, with their fields."""
CPU: Final = (
    "verl.plugin.platform:PlatformRegistry.register",
    "verl.plugin.platform:PlatformBase",
    "verl.utils.distributed:initialize_global_process_group_ray",
    "verl.workers.engine.base:EngineRegistry.register",
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead._build_fsdp_module",
    "verl.workers.engine.fsdp.transformer_impl:CPUOffloadPolicy",
    "verl.workers.rollout.base:BaseRollout",
    "verl.workers.rollout.base:_ROLLOUT_REGISTRY",
    "verl.workers.rollout.replica:RolloutReplica.launch_servers",
    "verl.workers.rollout.replica:RolloutReplicaRegistry.register",
    "verl.checkpoint_engine.base:CheckpointEngineRegistry.register",
)
"""Names that only `cpu/` uses."""


def moved() -> Iterator[str]:
    """What is not as the engine expects it, one sentence each."""
    for place, wanted in FUNCTIONS.items():
        found, problem = _find(place)
        if problem:
            yield problem
            continue
        parameters = inspect.signature(found).parameters
        anything = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
        yield from (f"{place} has no parameter {name}" for name in wanted if name not in parameters and not anything)
    for place, wanted in MODELS.items():
        found, problem = _find(place)
        if problem:
            yield problem
            continue
        yield from (f"{place} has no field {name}" for name in wanted if name not in found.model_fields)
    yield from (problem for place in CPU if (problem := _find(place)[1]))


def refuse_moved() -> None:
    if problems := list(moved()):
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise TrainingError(
            f"verl is not as the engine expects it: {problems[0]}{more}",
            hint=f"{sys.executable} -m pip install verl==0.9.1",
        )


def _find(place: str) -> tuple[Any, str]:
    """The object, and what is wrong if it is not there."""
    module, _, name = place.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        return None, f"{module} cannot be imported: {error}"
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        return None, f"{place} is gone"
    return found, ""


if __name__ == "__main__":
    import contextlib
    import io

    import orjson

    with contextlib.redirect_stdout(io.StringIO()):
        problems = list(moved())
    sys.stdout.write(orjson.dumps(problems).decode())
