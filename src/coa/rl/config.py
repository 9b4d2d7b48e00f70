"""The settings of `coa rl`: one frozen class, from TOML, `--set key=value` or Python. Unknown keys are refused.

The defaults are the paper's: the whole of DAPO (clip-higher with dual clip, mean over tokens, dynamic sampling, soft
overlong shaping, no KL), with groups of 8 attempts at temperature 1. Keys have the names that TRL or verl give them
where one of the two has such a key; docs/guides/rl.md has the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, ValidationError, model_validator

from coa.choices import Precision
from coa.errors import TrainingError
from coa.scoring.opening import JudgeConfig
from coa.training.settings import Lora
from coa.trajectory import Limits, Profile
from coa.trajectory.formats.otlp_endpoint import OtlpConfig
from coa.trajectory.types import Frozen
from coa.worlds.atlas.questions import PROFILE as WORLD_PROFILE

MICRO_BATCH_TOKENS: Final = 1024
"""Tokens that go through the model at a time, where the settings do not say."""


class Reward(JudgeConfig):
    """How much an attempt is worth."""

    RENAMED: ClassVar[dict[str, str]] = {
        "well_formed": "require_format", "format": "format_weight", "tool_call": "tool_call_weight",
    }  # fmt: skip

    scorer: str = "auto"
    """The scorer that judges answers: exact, f1, numeric, math, choice, code, judge, auto, or
    module:function(task, answer)."""
    require_format: bool = True
    """Give no reward for a correct answer if the run breaks the profile's rules or the parser had to repair it."""
    format_weight: float = 0.0
    """Reward added to every run that keeps the profile's rules, whatever its answer."""
    tool_call_weight: float = 0.0
    """Reward added for each tool call; a negative number teaches the model to call fewer tools."""
    function: str | None = None
    """A reward function of your own, module:function(trajectory, score), which returns a number, or None to leave the
    attempt out; it replaces all other terms of the reward."""


class Guards(Frozen):
    """When a run warns and when it stops."""

    RENAMED: ClassVar[dict[str, str]] = {
        "logprob_gap": "max_logprob_diff", "entropy": "min_entropy", "length": "min_length_ratio",
        "moved": "max_policy_kl", "idle_steps": "max_idle_steps", "bad_updates": "max_bad_updates",
    }  # fmt: skip

    max_logprob_diff: float = Field(0.05, ge=0)
    """Stop before an update if the log-probabilities from sampling and from training differ by more than this on
    average; 0 never stops."""
    min_entropy: float = Field(0.02, ge=0)
    """Warn if the mean of -logprob over sampled tokens falls below this; `top_p` and `top_k` lower it."""
    min_length_ratio: float = Field(0.25, ge=0)
    """Warn if attempts are shorter than this share of the length of the first ones."""
    max_policy_kl: float = Field(0.1, ge=0)
    """Warn if a step moves the policy further than this from the one that sampled (KL per token); it can be measured
    from the second update of a step on, and 0 never warns."""
    max_idle_steps: int = Field(10, ge=1)
    """Stop after this number of consecutive steps without a group to learn from."""
    max_bad_updates: int = Field(3, ge=1)
    """Stop after this number of consecutive updates whose gradient is not finite; each such update is skipped."""


class VerlConfig(Frozen):
    """How the verl engine uses the machines. The local engine ignores all of it."""

    device: Literal["cuda", "cpu"] = "cuda"
    """Where to train: on GPUs, or on this machine's CPU with a tiny model, to try out the distributed path."""
    nnodes: int = Field(1, ge=1)
    """Number of machines that train."""
    gpus_per_node: int | None = Field(None, ge=1)
    """Number of GPUs on each machine, and so of training processes; none takes 8, or 1 on a CPU."""
    trainer_mode: Literal["sync", "colocate_async", "separate_async"] = "sync"
    """When attempts are sampled: between updates with the current weights (`sync`), ahead of them on the same GPUs
    (`colocate_async`), or ahead of them on other GPUs (`separate_async`)."""
    rollout: Literal["vllm", "sglang"] = "vllm"
    """Engine that samples on GPUs; on a CPU it is always coa's own."""
    rollout_nnodes: int = Field(1, ge=1)
    """Number of machines that sample, besides those that train; only for `separate_async`."""
    rollout_gpus_per_node: int | None = Field(None, ge=1)
    """Number of GPUs on each machine that samples; none takes `gpus_per_node`. Only for `separate_async`."""
    tensor_parallel_size: int = Field(1, ge=1)
    """Number of GPUs that one copy of the model is spread over while it samples."""
    sequence_parallel_size: int = Field(1, ge=1)
    """Number of GPUs that one attempt is spread over while it is trained (Ulysses)."""
    max_tokens_per_gpu: int | None = Field(None, ge=1)
    """Maximum number of tokens in one forward and backward pass on a GPU; none takes the longest context divided by
    `sequence_parallel_size`, but at least 8,192."""
    gpu_memory_utilization: float = Field(0.6, gt=0, lt=1)
    """Share of a GPU's memory that the engine that samples may use."""
    offload: bool = False
    """Keep weights and optimiser state in the machine's memory while they are not used. Slower, with far less GPU
    memory."""
    agent_workers: int | None = Field(None, ge=1)
    """Number of processes in which the agents and their tools run; none takes 8 for each machine, or 2 on a CPU."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """More settings of verl under verl's own names, such as `"actor_rollout_ref.rollout.enforce_eager" = true`; they
    take precedence over what coa sets."""

    @property
    def processes_per_node(self) -> int:
        return self.gpus_per_node or (1 if self.device == "cpu" else 8)

    @property
    def world_size(self) -> int:
        """Number of training processes."""
        return self.nnodes * self.processes_per_node

    @property
    def rollout_processes_per_node(self) -> int:
        return self.rollout_gpus_per_node or self.processes_per_node

    @property
    def workers(self) -> int:
        return self.agent_workers or (2 if self.device == "cpu" else 8 * self.nnodes)

    @model_validator(mode="after")
    def _consistent(self) -> VerlConfig:
        sampling = self.world_size
        if self.trainer_mode == "separate_async":
            sampling = self.rollout_nnodes * self.rollout_processes_per_node
        if self.world_size % self.sequence_parallel_size:
            raise ValueError(
                f"sequence_parallel_size must divide the number of training processes, which is {self.world_size}"
            )
        if sampling % self.tensor_parallel_size:
            raise ValueError(f"tensor_parallel_size must divide the number of GPUs that sample, which is {sampling}")
        if self.device == "cpu" and (self.tensor_parallel_size > 1 or self.sequence_parallel_size > 1):
            raise ValueError("tensor_parallel_size and sequence_parallel_size need GPUs: leave them at 1 on a CPU")
        return self


class RlConfig(Frozen):
    """Settings of `coa rl`. They have the names of TRL and verl where these have the same setting."""

    RENAMED: ClassVar[dict[str, str]] = {
        "own_prompts": "use_task_prompts", "steps": "max_steps", "prompts": "train_batch_size",
        "group": "num_generations", "draw": "gen_batch_size", "rounds": "max_num_gen_batches", "enough": "min_groups",
        "spread_of": "filter_groups_metric", "max_age": "max_staleness", "draw_by": "task_sampling",
        "family": "family_key", "retries": "max_retries", "turn_tokens": "max_turn_tokens",
        "model_tokens": "max_completion_length", "context_tokens": "max_model_len", "tool_calls": "max_tool_calls",
        "seconds": "timeout_s", "max_rows": "max_num_seqs", "kv_gb": "kv_cache_gb", "exact": "full_determinism",
        "ahead": "one_step_off_policy", "overlong": "overlong_buffer_ratio",
        "overlong_penalty": "overlong_penalty_factor", "scale": "scale_rewards", "baseline": "advantage_estimator",
        "updates": "num_mini_batches", "epochs": "ppo_epochs", "clip_low": "clip_ratio_low",
        "clip_high": "clip_ratio_high", "dual_clip": "clip_ratio_c", "importance_cap": "importance_sampling_cap",
        "mean": "loss_agg_mode", "ratio": "policy_loss", "kl": "kl_coef", "kl_in": "use_kl_in_reward",
        "lr_end": "min_lr_ratio", "beta2": "adam_beta2", "row_tokens": "micro_batch_tokens",
        "eval_count": "num_eval_tasks", "eval_every": "eval_steps", "checkpoint_every": "save_steps",
        "checkpoints_kept": "save_total_limit",
    }  # fmt: skip
    RENAMED_VALUES: ClassVar[dict[str, dict[Any, Any]]] = {
        "baseline": {"attempt": "grpo", "token": "token_baseline"},
        "mean": {"token": "token-mean", "sequence": "seq-mean-token-mean"},
        "ratio": {"token": "ppo_clip", "sequence": "gspo"},
        "kl_in": {"loss": False, "reward": True},
    }

    engine: Literal["local", "verl"] = "local"
    """What carries out the run: coa itself in this process, on one CPU or GPU (`local`), or verl on a Ray cluster, on
    any number of GPUs (`verl`)."""
    verl: VerlConfig = VerlConfig()
    ray: str | None = None
    """Address of the Ray cluster to use (`auto`, HOST:PORT, or ray://HOST:PORT), for the verl engine; none takes the
    environment variable RAY_ADDRESS, or starts Ray on this machine."""
    model: str = "smollm2"
    """Model to train: a folder, a hub id, nano, or smollm2."""
    tasks: str | None = None
    """Tasks to learn from: a .jsonl, .json or .parquet file, a folder of them, or a data set on the hub
    (owner/name)."""
    profile: str = "nano"
    """Profile of the agents, by name or as a .toml file; a task that names a profile is run with that one."""
    tools: tuple[str, ...] = ()
    """Tools as name=setting or name=module:factory; tools that the profile calls are found without it."""
    world: str | None = None
    """Offline world whose tools are used, by name (atlas) or folder."""
    use_task_prompts: bool = False
    """Show each task with the prompt in its own row, where it has one, instead of the profile's prompt."""

    max_steps: int = Field(60, ge=1)
    """Number of training steps; a step samples attempts and learns from them."""
    train_batch_size: int = Field(64, ge=1)
    """Number of groups to learn from in a step; a group is all attempts at one task."""
    num_generations: int = Field(8, ge=2)
    """Number of attempts at each task, which form its group."""
    gen_batch_size: int | None = Field(None, ge=1)
    """Number of tasks sampled at a time; none takes twice `train_batch_size`, or exactly that without dynamic
    sampling."""
    max_num_gen_batches: int = Field(4, ge=1)
    """Maximum number of times tasks are sampled in a step while too few groups have different scores."""
    min_groups: int | None = Field(None, ge=1)
    """Number of groups with different scores at which sampling stops; none takes `train_batch_size`."""
    dynamic_sampling: bool = True
    """Skip groups whose attempts all score the same and sample other tasks instead; if false, learn from the first
    tasks sampled."""
    filter_groups_metric: Literal["score", "reward"] = "score"
    """What must differ within a group for dynamic sampling to keep it: the scorer's number (`score`, which is 0 in a
    run that breaks the rules), or the whole reward with its small terms and the length penalty (`reward`)."""
    max_staleness: int = Field(2, ge=0)
    """Number of steps after which a surplus group that has not been used is dropped."""
    task_sampling: Literal["shuffle", "family", "difficulty"] = "shuffle"
    """Order of the tasks: at random, each family of tasks equally often (`family`), or families in proportion to
    p(1-p) + 0.04 where p is the family's success so far (`difficulty`). With few tasks per step `difficulty` lets the
    model pick up one family's habits at the expense of the others."""
    family_key: str = "family"
    """Key in a task's `meta` that names its family."""
    families: tuple[str, ...] = ()
    """Families of tasks to learn from; none learns from all."""
    max_retries: int = Field(1, ge=0)
    """Number of times an attempt that failed is repeated before it is left out."""

    temperature: float = Field(1.0, gt=0)
    """Sampling temperature of attempts, also used for every probability in the loss; below 1 a small model makes fewer
    slips, so that rewards depend more on its decisions."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling: attempts use only the most likely tokens that make up this share. 1 uses all tokens, which is
    what the gradient assumes; below 1 rare slips are neither made nor unlearnt."""
    top_k: int = Field(0, ge=0)
    """Attempts use only this number of the most likely tokens; 0 uses all. Together with `top_p` it is much faster than
    `top_p` alone."""
    max_turn_tokens: int = Field(4096, ge=1)
    """Maximum number of tokens in one call of the model."""
    max_completion_length: int | None = Field(None, ge=1)
    """Maximum number of tokens that the model writes in one attempt, without tool output; none takes the profile's
    `model_tokens`."""
    max_model_len: int | None = Field(None, ge=1)
    """Maximum number of tokens in the context of an attempt, with prompt and tool output; none takes the profile's
    `context_tokens`."""
    max_tool_calls: int | None = Field(None, ge=0)
    """Maximum number of tool calls in an attempt; none takes the profile's `tool_calls`."""
    timeout_s: float | None = Field(None, gt=0)
    """Seconds after which an attempt is ended; none takes the profile's `seconds`."""
    max_num_seqs: int = Field(48, ge=1)
    """Maximum number of attempts that the engine computes at a time."""
    kv_cache_gb: float = Field(2.0, gt=0)
    """Memory for the attempts' keys and values, in GB."""
    full_determinism: bool | None = None
    """Make a repeated run on a CPU identical to the last bit, provided the tools give the same answers; slow tools then
    hold up all attempts. None means true on a CPU, false on a GPU or with `one_step_off_policy`."""
    one_step_off_policy: bool = False
    """Sample the next step's attempts while this step's updates run, with a copy of the trained weights from before
    these updates. It pays off where tools or a GPU leave the processor idle."""

    reward: Reward = Reward()
    guards: Guards = Guards()
    overlong_buffer_ratio: float = Field(0.125, ge=0, lt=1)
    """Share of `max_completion_length` at its end over which the reward falls linearly (soft overlong shaping); 0 turns
    it off."""
    overlong_penalty_factor: float = Field(1.0, ge=0)
    """Reward that an attempt has lost at `max_completion_length`."""
    scale_rewards: Literal["group", "none"] = "group"
    """Divide advantages by the standard deviation of the group's rewards (`group`), or do not (`none`, as Dr. GRPO)."""
    advantage_estimator: Literal["grpo", "token_baseline"] = "grpo"
    """How rewards become advantages: reward minus the mean over the group's attempts (`grpo`), or minus the mean over
    their tokens (`token_baseline`), which does not unlearn what correct and wrong attempts share where wrong ones are
    longer."""

    num_mini_batches: int = Field(1, ge=1)
    """Number of optimiser updates into which a step's groups are split."""
    ppo_epochs: int = Field(1, ge=1)
    """Number of passes over a step's groups."""
    clip_ratio_low: float = Field(0.2, ge=0, lt=1)
    """Lower clip range: the probability ratio is clipped at 1 minus this."""
    clip_ratio_high: float = Field(0.28, ge=0)
    """Upper clip range: the probability ratio is clipped at 1 plus this."""
    clip_ratio_c: float = Field(10.0, ge=0)
    """Dual clip: the ratio above which attempts with a negative advantage have no further effect; 0 turns it off."""
    importance_sampling_cap: float = Field(0.0, ge=0)
    """Truncated importance sampling for attempts sampled with earlier weights (`one_step_off_policy`, surplus groups):
    tokens are weighted by how much more likely they have become, at most by this, and clipping counts from the current
    policy. 0 turns it off, and clipping counts from the policy that sampled."""
    loss_agg_mode: Literal["token-mean", "seq-mean-token-mean"] = "token-mean"
    """How token losses are averaged: over all tokens of an update (DAPO), or within each attempt first (GRPO)."""
    policy_loss: Literal["ppo_clip", "gspo"] = "ppo_clip"
    """The policy loss: clipped probability ratios of tokens (`ppo_clip`) or of whole attempts (`gspo`)."""
    kl_coef: float = Field(0.0, ge=0)
    """Weight of the KL divergence to the initial model; without an adapter this needs a second copy of the model."""
    use_kl_in_reward: bool = False
    """Subtract the KL term from the reward, as PPO does, instead of adding it to the loss."""

    lr: float = Field(1e-6, gt=0)
    """Learning rate of AdamW."""
    warmup_steps: int = Field(0, ge=0)
    """Number of updates over which the learning rate rises linearly."""
    min_lr_ratio: float = Field(1.0, gt=0, le=1)
    """Share of the learning rate that is left in the last step; it falls linearly. Below 1 a short run settles instead
    of driving on what it found."""
    weight_decay: float = Field(0.01, ge=0)
    """Weight decay of AdamW."""
    adam_beta2: float = Field(0.999, gt=0, lt=1)
    """Decay rate of AdamW's second moment."""
    max_grad_norm: float = Field(1.0, ge=0)
    """Norm to which gradients are clipped; 0 does not clip."""
    lora: Lora | None = None
    """Train an adapter instead of all weights; none trains all weights."""
    freeze_embeddings: bool = False
    """Do not train the input and output embeddings."""
    freeze_layers: int = Field(0, ge=0)
    """Number of transformer layers to freeze, counted from the bottom. Saves time and memory in the backward pass."""
    micro_batch_tokens: int | None = Field(None, ge=16)
    """Maximum number of tokens in one forward and backward pass of an update, or the longest attempt's if that is more;
    none takes 1,024. More is faster on a CPU (2,048 tokens in passes of 256, 512, 1,024 and 2,048: 13, 11, 10.5
    and 8 s) and needs more memory."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: slower, with far less memory."""
    precision: Precision = Precision.AUTO
    """Type of the weights that are not trained, and on a CPU of the products while attempts are sampled; trained
    weights are fp32, and so is their update. `auto` is bf16 on a GPU that supports it, and fp32 on a CPU, so that
    sampled and recomputed log-probabilities agree."""

    eval_tasks: str | None = None
    """Held-out tasks on which the model is evaluated greedily; a task to learn from must not be among them."""
    num_eval_tasks: int = Field(50, ge=1)
    """Maximum number of `eval_tasks` that are used, from the top of the file."""
    eval_steps: int = Field(10, ge=1)
    """Number of steps between two evaluations; one more is made at the start and one at the end."""
    save_steps: int = Field(5, ge=1)
    """Number of steps between two checkpoints."""
    save_total_limit: int = Field(1, ge=1)
    """Number of checkpoints to keep."""
    report_to: tuple[str, ...] = ("tensorboard",)
    """Trackers that get the metrics besides metrics.jsonl: tensorboard, wandb, swanlab, trackio."""
    otlp: OtlpConfig = OtlpConfig()
    """Where to send the spans of attempts."""
    seed: int = 0
    """Seed of the order of tasks, of sampling and of a new adapter."""

    @property
    def tasks_per_draw(self) -> int:
        # Without dynamic sampling no group is skipped, so all beyond `train_batch_size` would be a step old when used.
        return self.gen_batch_size or (2 if self.dynamic_sampling else 1) * self.train_batch_size

    def precision_on(self, *, gpu: bool) -> Precision:
        """What `auto` means: fp32 on every CPU."""
        return Precision.FP32 if self.precision is Precision.AUTO and not gpu else self.precision

    @property
    def contrast_in(self) -> Literal["score", "reward"]:
        """What has to differ in a group; without dynamic sampling every group with an advantage is learnt from."""
        return self.filter_groups_metric if self.dynamic_sampling else "reward"

    @property
    def groups_needed(self) -> int:
        return min(self.min_groups or self.train_batch_size, self.train_batch_size)

    def lr_at(self, step: int, update: int) -> float:
        """The learning rate of an update; `update` counts from the beginning of the run."""
        fallen = (1 - self.min_lr_ratio) * (step - 1) / max(self.max_steps - 1, 1)
        return self.lr * min(update / max(self.warmup_steps, 1), 1.0) * (1 - fallen)

    def limits(self, profile: Profile) -> Limits:
        """The profile's limits with what these settings say instead."""
        own = {
            "model_tokens": self.max_completion_length,
            "context_tokens": self.max_model_len,
            "tool_calls": self.max_tool_calls,
            "seconds": self.timeout_s,
        }
        given = {name: value for name, value in own.items() if value is not None}
        try:
            return Limits.model_validate({**profile.limits.model_dump(), **given})
        except ValidationError as error:
            raise TrainingError(
                f"the limits of the profile {profile.name!r} and these settings contradict each other: "
                f"{error.errors()[0]['msg'].removeprefix('Value error, ')}",
                hint="--set max_completion_length=N --set max_model_len=M, where M includes prompt and tool output",
            ) from error

    @model_validator(mode="before")
    @classmethod
    def _profile_of_the_world(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("world") and not data.get("profile"):
            return {**data, "profile": WORLD_PROFILE}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> RlConfig:
        if self.num_mini_batches > self.train_batch_size:
            raise ValueError("num_mini_batches cannot be larger than train_batch_size")
        if self.clip_ratio_c and self.clip_ratio_c <= 1 + self.clip_ratio_high:
            raise ValueError("clip_ratio_c must be above 1 + clip_ratio_high")
        if self.advantage_estimator == "token_baseline" and self.loss_agg_mode == "seq-mean-token-mean":
            raise ValueError(
                "advantage_estimator=token_baseline needs loss_agg_mode=token-mean: where every attempt counts the "
                "same in the loss, it must count the same in the baseline"
            )
        if self.one_step_off_policy and self.full_determinism:
            raise ValueError(
                "attempts sampled during the previous step differ after a restart: leave full_determinism out, or set "
                "one_step_off_policy=false"
            )
        return self
