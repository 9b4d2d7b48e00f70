"""The settings of `coa rl` as settings of verl. Nothing here imports verl, so a dry run works without it.

What verl has no setting for is refused by `checks.py`; docs/guides/rl-verl.md explains the differences that remain.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from coa.rl.config import RlConfig
from coa.rl.reward import COUNTED
from coa.runtime.on_ray import LOCAL, LOOPBACK_ONLY

LOOP: Final = "coa"
"""The name under which our agent loop is registered."""
CPU_ROLLOUT: Final = "coa"
"""The name of coa's own engine among verl's rollout engines."""
CPU_CHECKPOINT_ENGINE: Final = "coa_object_store"
PLUGIN: Final = "coa.rl.engines.verl.cpu.plugin"
"""The module that verl imports in each of its processes where there is no GPU."""
TOKENS_PER_PASS: Final = 8192
"""Tokens in one forward and backward pass on a GPU, where contexts are shorter than that."""
FOLDER: Final = "verl"
"""The folder in a run folder that holds what belongs to verl."""


class Files:
    """Where the files of verl are in a run folder."""

    def __init__(self, out: Path) -> None:
        self.folder = out.resolve() / FOLDER
        self.run = self.folder / "run.json"
        """What the child process and the agent loops need to know of the run."""
        self.train_tasks = self.folder / "train.parquet"
        self.held_out_tasks = self.folder / "held_out.parquet"
        self.loops = self.folder / "agent_loops.yaml"
        self.overrides = self.folder / "overrides.json"
        self.config = self.folder / "config.yaml"
        """The resolved configuration, as verl gets it."""
        self.checkpoints = self.folder / "checkpoints"
        self.metrics = self.folder / "metrics.jsonl"
        """Metrics under verl's own names."""
        self.log = self.folder / "log.txt"
        self.events = self.folder / "events.jsonl"
        """What the child process reports to `coa rl`."""
        self.stop = self.folder / "stop"
        """Asks the trainer to save and to end after its step."""

    def report(self, event: str, **more: Any) -> None:
        """Report something to `coa rl`, from any process of the run on this machine."""
        with self.events.open("ab") as file:
            file.write(orjson.dumps({"event": event, **more}) + b"\n")

    @property
    def latest(self) -> int:
        """The step of the newest complete checkpoint; 0 if there is none. verl names it after everything is saved."""
        try:
            return int((self.checkpoints / "latest_checkpointed_iteration.txt").read_text())
        except (OSError, ValueError):
            return 0

    @property
    def latest_checkpoint(self) -> Path:
        return self.checkpoints / f"global_step_{self.latest}"

    @property
    def guards(self) -> Path:
        """What the guards remember, in the newest checkpoint."""
        return self.latest_checkpoint / "guards.json"

    def prune(self, keep: int) -> None:
        """Remove all but the newest complete checkpoints, and what a killed run left of an incomplete one."""
        latest, steps = self.latest, dict[int, Path]()
        for path in self.checkpoints.glob("global_step_*"):
            number = path.name.removeprefix("global_step_")
            if number.isdecimal():
                steps[int(number)] = path
        complete = sorted(step for step in steps if step <= latest)
        for step, path in steps.items():
            if step not in complete[-keep:]:
                shutil.rmtree(path, ignore_errors=True)


def verl_settings(
    config: RlConfig, out: Path, *, model: str, context_tokens: int, prompt_tokens: int, held_out: bool
) -> dict[str, Any]:
    """Settings of verl by their dotted names, `config.verl.overrides` included.

    `model` is the folder of the model, `context_tokens` the longest context of all profiles in use, `prompt_tokens` the
    longest prompt of all tasks.
    """
    given = {
        **_data(config, out, context_tokens, prompt_tokens, held_out=held_out),
        **_actor(config, model, context_tokens),
        **_rollout(config, out, context_tokens),
        **_algorithm(config),
        **_trainer(config, out, held_out=held_out),
    }
    if config.verl.device == "cpu":
        given |= _cpu(config)
    return {**given, **config.verl.overrides}


def environment(config: RlConfig, out: Path) -> dict[str, str]:
    """Environment variables of all processes of the run."""
    found = {
        "VERL_FILE_LOGGER_PATH": str(Files(out).metrics),
        "VERL_LOGGING_LEVEL": "WARN",  # verl 0.9.1 cannot start separate_async at INFO: a call there has a bad argument
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TRANSFER_QUEUE_ENABLE": "1",
        "HYDRA_FULL_ERROR": "1",
    }
    if cluster_address(config) is None:
        found[LOOPBACK_ONLY] = "0"
    if config.verl.device == "cpu":
        found |= {
            "VERL_PLATFORM": "cpu",
            "VERL_USE_EXTERNAL_MODULES": PLUGIN,
            "COA_KV_CACHE_GB": str(config.kv_cache_gb),
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
        }
    return found


def cluster_address(config: RlConfig) -> str | None:
    """The Ray cluster to join; None to start Ray on this machine."""
    address = config.ray or os.environ.get("RAY_ADDRESS")
    return None if address in (None, "", LOCAL) else address


def as_overrides(settings: Mapping[str, Any]) -> list[str]:
    """As hydra takes them on a command line. `++` sets a key whether verl's own files name it or not."""
    return [f"++{name}={_literal(value)}" for name, value in settings.items()]


def _literal(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_literal, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_literal(one)}" for key, one in value.items()) + "}"
    return str(value)


def _data(config: RlConfig, out: Path, context_tokens: int, prompt_tokens: int, *, held_out: bool) -> dict[str, Any]:
    files = Files(out)
    return {
        "data.train_files": str(files.train_tasks),
        # verl insists on a file for validation, also where it is never read.
        "data.val_files": str(files.held_out_tasks if held_out else files.train_tasks),
        "data.train_batch_size": config.train_batch_size,
        "data.max_prompt_length": prompt_tokens,
        # The longest text of prompt and response together is `rollout.max_model_len`.
        "data.max_response_length": context_tokens,
        "data.return_raw_chat": True,
        "data.seed": config.seed,
        "data.shuffle": True,
        "data.dataloader_num_workers": 0,
    }


def _actor(config: RlConfig, model: str, context_tokens: int) -> dict[str, Any]:
    verl, actor = config.verl, "actor_rollout_ref.actor"
    longest = math.ceil(context_tokens / verl.sequence_parallel_size)
    per_pass = verl.max_tokens_per_gpu or max(longest, config.micro_batch_tokens or TOKENS_PER_PASS)
    return {
        "actor_rollout_ref.model.path": model,
        "actor_rollout_ref.model.enable_gradient_checkpointing": config.gradient_checkpointing,
        "actor_rollout_ref.model.use_remove_padding": True,
        f"{actor}.strategy": "fsdp2",
        f"{actor}.ppo_mini_batch_size": config.train_batch_size // config.num_mini_batches,
        f"{actor}.ppo_epochs": config.ppo_epochs,
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.ppo_max_token_len_per_gpu": per_pass,
        f"{actor}.clip_ratio_low": config.clip_ratio_low,
        f"{actor}.clip_ratio_high": config.clip_ratio_high,
        f"{actor}.clip_ratio_c": config.clip_ratio_c,
        f"{actor}.loss_agg_mode": config.loss_agg_mode,
        f"{actor}.policy_loss.loss_mode": {"ppo_clip": "vanilla", "gspo": "gspo"}[config.policy_loss],
        f"{actor}.use_kl_loss": bool(config.kl_coef) and not config.use_kl_in_reward,
        f"{actor}.kl_loss_coef": config.kl_coef,
        f"{actor}.kl_loss_type": "low_var_kl",
        f"{actor}.entropy_coeff": 0.0,
        f"{actor}.data_loader_seed": config.seed,
        f"{actor}.shuffle": False,
        f"{actor}.ulysses_sequence_parallel_size": verl.sequence_parallel_size,
        f"{actor}.optim.lr": config.lr,
        f"{actor}.optim.weight_decay": config.weight_decay,
        f"{actor}.optim.betas": [0.9, config.adam_beta2],
        f"{actor}.optim.clip_grad": config.max_grad_norm or math.inf,
        f"{actor}.optim.lr_warmup_steps": math.ceil(config.warmup_steps / updates_per_step(config)),
        f"{actor}.optim.lr_scheduler_type": "constant",
        f"{actor}.fsdp_config.param_offload": verl.offload,
        f"{actor}.fsdp_config.optimizer_offload": verl.offload,
        f"{actor}.fsdp_config.seed": config.seed,
        "actor_rollout_ref.ref.fsdp_config.param_offload": True,
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": True,
        "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": per_pass,
        "actor_rollout_ref.ref.strategy": "fsdp2",
        "critic.strategy": "fsdp2",
    }


def updates_per_step(config: RlConfig) -> int:
    return config.num_mini_batches * config.ppo_epochs


def _rollout(config: RlConfig, out: Path, context_tokens: int) -> dict[str, Any]:
    verl, rollout = config.verl, "actor_rollout_ref.rollout"
    found: dict[str, Any] = {
        f"{rollout}.name": verl.rollout,
        f"{rollout}.mode": "async",
        f"{rollout}.n": config.num_generations,
        f"{rollout}.temperature": config.temperature,
        f"{rollout}.top_p": config.top_p,
        f"{rollout}.top_k": config.top_k or -1,
        f"{rollout}.val_kwargs.temperature": 0,
        f"{rollout}.val_kwargs.n": 1,
        f"{rollout}.val_kwargs.do_sample": False,
        f"{rollout}.seed": config.seed,
        f"{rollout}.calculate_log_probs": True,
        f"{rollout}.log_prob_use_dynamic_bsz": True,
        f"{rollout}.tensor_model_parallel_size": verl.tensor_parallel_size,
        f"{rollout}.gpu_memory_utilization": verl.gpu_memory_utilization,
        f"{rollout}.max_model_len": context_tokens,
        f"{rollout}.max_num_batched_tokens": max(context_tokens, 8192),
        f"{rollout}.max_num_seqs": config.max_num_seqs,
        # Stop strings need the tokenizer inside the engine that samples.
        f"{rollout}.skip_tokenizer_init": False,
        f"{rollout}.agent.num_workers": verl.workers,
        f"{rollout}.agent.default_agent_loop": LOOP,
        f"{rollout}.agent.agent_loop_config_path": str(Files(out).loops),
        "reward.num_workers": 1,
    }
    if verl.trainer_mode == "separate_async":
        found |= {
            "actor_rollout_ref.hybrid_engine": False,
            f"{rollout}.nnodes": verl.rollout_nnodes,
            f"{rollout}.n_gpus_per_node": verl.rollout_processes_per_node,
            f"{rollout}.checkpoint_engine.backend": "nccl",
        }
    return found


def _algorithm(config: RlConfig) -> dict[str, Any]:
    correction = "algorithm.rollout_correction"
    return {
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": config.scale_rewards == "group",
        "algorithm.use_kl_in_reward": bool(config.kl_coef) and config.use_kl_in_reward,
        "algorithm.kl_ctrl.kl_coef": config.kl_coef,
        "algorithm.filter_groups.enable": config.dynamic_sampling,
        "algorithm.filter_groups.metric": "reward" if config.filter_groups_metric == "reward" else COUNTED,
        f"{correction}.rollout_is": "token" if config.importance_sampling_cap else None,
        f"{correction}.rollout_is_threshold": config.importance_sampling_cap or 2.0,
    }


def _trainer(config: RlConfig, out: Path, *, held_out: bool) -> dict[str, Any]:
    verl = config.verl
    return {
        "trainer.device": verl.device,
        "trainer.nnodes": verl.nnodes,
        "trainer.n_gpus_per_node": verl.processes_per_node,
        "trainer.use_v1": True,
        "trainer.v1.trainer_mode": verl.trainer_mode,
        "trainer.v1.separate_async.parameter_sync_step": config.num_mini_batches,
        "trainer.v1.sampler.max_off_policy_threshold": config.max_staleness + 1,
        "trainer.v1.sampler.sync_refill_failed_groups": True,
        "trainer.project_name": "coa",
        "trainer.experiment_name": out.resolve().name,
        "trainer.logger": ["console", "file"],
        "trainer.total_training_steps": config.max_steps,
        "trainer.total_epochs": 1_000_000,  # the number of steps ends the run
        "trainer.val_before_train": held_out and Files(out).latest == 0,  # a run that goes on has done it
        "trainer.test_freq": config.eval_steps if held_out else -1,
        "trainer.save_freq": config.save_steps,
        # verl would remove the previous checkpoint before the new one is complete; `trainer.py` removes it afterwards.
        "trainer.max_actor_ckpt_to_keep": None,
        "trainer.default_local_dir": str(Files(out).checkpoints),
        "trainer.resume_mode": "auto",
    }


def _cpu(config: RlConfig) -> dict[str, Any]:
    """No GPU: coa's own engine samples, in fp32 and without kernels that need one."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    exact = {name: "fp32" for name in ("param_dtype", "reduce_dtype", "buffer_dtype")}
    found: dict[str, Any] = {
        "actor_rollout_ref.model.use_remove_padding": False,
        "actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        f"{actor}.use_torch_compile": False,
        f"{actor}.fsdp_config.use_torch_compile": False,
        **{f"{actor}.fsdp_config.mixed_precision.{name}": value for name, value in exact.items()},
        **{f"actor_rollout_ref.ref.fsdp_config.mixed_precision.{name}": value for name, value in exact.items()},
        f"{rollout}.name": CPU_ROLLOUT,
        f"{rollout}.free_cache_engine": False,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    }
    if config.verl.trainer_mode == "separate_async":
        found |= {
            f"{rollout}.checkpoint_engine.backend": CPU_CHECKPOINT_ENGINE,
            f"{rollout}.checkpoint_engine.custom_backend_module": "coa.rl.engines.verl.cpu.weights",
        }
    return found
