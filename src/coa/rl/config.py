"""What an RL run is: one model of settings, from TOML and `--set key=value`. Unknown keys fail.

Defaults are the paper's: DAPO, all of it (clip-higher with dual clip, token mean, dynamic sampling, soft overlong
shaping, no KL), groups of 8 at temperature 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from coa.errors import TrainingError
from coa.scoring.opening import JudgeConfig
from coa.training.settings import Lora, describe_settings, load_settings
from coa.trajectory import Limits, Profile
from coa.trajectory.types import Frozen


class Reward(JudgeConfig):
    """What an attempt is worth."""

    scorer: str = "auto"
    """Who judges the answer: exact, f1, numeric, math, choice, code, judge, auto, or module:function(task, answer)."""
    well_formed: bool = True
    """Nothing for a right answer in a run that breaks the profile's rules or had to be repaired."""
    format: float = 0.0
    """Added for a run that keeps the rules, whatever its answer."""
    tool_call: float = 0.0
    """Added for each tool call; below zero it teaches economy."""
    function: str | None = None
    """module:function(trajectory, score) -> number, or None to leave the attempt out; instead of all the above."""


class Guards(Frozen):
    """When to warn and when to stop."""

    logprob_gap: float = Field(0.05, ge=0)
    """Stop when sampled and recomputed logprobs differ by more than this on average; 0 never does."""
    entropy: float = Field(0.02, ge=0)
    """Warn when the mean of -logprob of sampled tokens falls below this. With `top_p` or `top_k` it is lower."""
    length: float = Field(0.25, ge=0)
    """Warn when attempts have less than this share of the tokens that the first ones had."""
    moved: float = Field(0.1, ge=0)
    """Warn when a step's updates move the policy further than this (KL, a token) from the one that sampled; seen from
    the second update of a step on. 0 never does."""
    idle_steps: int = Field(10, ge=1)
    """Stop after so many steps in a row from which nothing could be learnt."""
    bad_updates: int = Field(3, ge=1)
    """Stop after so many updates in a row whose gradient is not a number; each of them is left out."""


class RlConfig(Frozen):
    """Settings of `coa rl`."""

    model: str = "smollm2"
    """A model folder, a hub id, nano, or smollm2."""
    tasks: str | None = None
    """Tasks to learn from: a .jsonl, .json or .parquet file, a folder of them, or the hub's (owner/name)."""
    profile: str = "nano"
    """By name or .toml; a task's own comes first."""
    tools: tuple[str, ...] = ()
    """name=setting or name=module:factory; tools that the profile calls are found by themselves."""
    world: str | None = None
    """An offline world whose tools are used, by name (atlas) or folder."""
    own_prompts: bool = False
    """Show each task with the prompt that its row brings, where it brings one."""

    steps: int = Field(60, ge=1)
    prompts: int = Field(64, ge=1)
    """Groups to learn from in a step."""
    group: int = Field(8, ge=2)
    """Attempts at a task."""
    draw: int | None = Field(None, ge=1)
    """Tasks asked at a time; None stands for twice `prompts`, or as many where dynamic sampling is off."""
    rounds: int = Field(4, ge=1)
    """How often tasks are drawn in a step at most, until there are enough groups with a spread of rewards."""
    enough: int | None = Field(None, ge=1)
    """With so many groups no further tasks are drawn; None stands for `prompts`."""
    dynamic_sampling: bool = True
    """Leave out groups without a spread, and draw others. False learns from what is drawn first."""
    spread_of: Literal["score", "reward"] = "score"
    """What has to differ in a group. score: the scorer's number, which is nothing in a run that breaks the rules (or
    the number of `reward.function`); small terms and length alone do not make a group worth learning from."""
    max_age: int = Field(2, ge=0)
    """Groups found beyond need are used in one of the next so many steps, or dropped."""
    draw_by: Literal["shuffle", "family", "difficulty"] = "shuffle"
    """family: each family of tasks as often as the others. difficulty: in proportion to p(1-p) + 0.04, p being a
    family's success so far; with few tasks a step the model then learns the habits of a family at the others' cost."""
    family: str = "family"
    """Where a task's meta names its family."""
    families: tuple[str, ...] = ()
    """Learn from the tasks of these only; none stands for all."""
    retries: int = Field(1, ge=0)
    """How often an attempt that broke is made again, before it is left out."""

    temperature: float = Field(1.0, gt=0)
    """Of attempts, and of all probabilities that are compared. Below 1 a small model slips less often, so that what an
    attempt is worth says more about what it decided."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Attempts take only the likeliest tokens that make up this share; 1: all, as the gradient supposes. Below 1 rare
    slips are neither made nor unlearnt, so that attempts differ by what they decided."""
    top_k: int = Field(0, ge=0)
    """Attempts take only so many of the likeliest tokens; 0: all. With `top_p` it is much quicker than that alone."""
    turn_tokens: int = Field(4096, ge=1)
    """Of one call of the model."""
    model_tokens: int | None = Field(None, ge=1)
    """What the model may write in an attempt; None: the profile's."""
    context_tokens: int | None = Field(None, ge=1)
    tool_calls: int | None = Field(None, ge=0)
    seconds: float | None = Field(None, gt=0)
    """Deadline of an attempt."""
    max_rows: int = Field(48, ge=1)
    """Attempts that are computed at a time."""
    kv_gb: float = Field(2.0, gt=0)
    """Memory for their contexts."""
    exact: bool | None = None
    """The same run again to the last bit, on a CPU, if the tools answer the same. Slow tools then hold up all attempts.
    None: on a CPU yes, on a GPU or with `ahead` no."""
    ahead: Literal[0, 1] = 0
    """1: the next step's attempts are made while this step's are learnt from, by a copy of the trained weights as they
    were before it. Pays where tools or a GPU leave the processor idle."""

    reward: Reward = Reward()
    guards: Guards = Guards()
    overlong: float = Field(0.125, ge=0, lt=1)
    """The last share of `model_tokens`, over which the reward falls; 0: none."""
    overlong_penalty: float = Field(1.0, ge=0)
    """How much it has fallen at the end."""
    scale: Literal["group", "none"] = "group"
    """Divide advantages by the group's standard deviation, or do not."""
    baseline: Literal["attempt", "token"] = "attempt"
    """What a reward is compared with: the mean of the group's attempts, or of their tokens. token: where long attempts
    tend to be wrong, what right and wrong ones have in common is not unlearnt."""

    updates: int = Field(1, ge=1)
    """Into how many updates a step's groups are divided."""
    epochs: int = Field(1, ge=1)
    """How often each of them is gone through."""
    clip_low: float = Field(0.2, ge=0, lt=1)
    clip_high: float = Field(0.28, ge=0)
    dual_clip: float = Field(10.0, ge=0)
    """The ratio above which bad attempts count no more; 0 for no such limit."""
    importance_cap: float = Field(0.0, ge=0)
    """For attempts of earlier weights (`ahead`, surplus): clips count from the policy as it meets them, and each token
    is weighed by how much likelier it has become since it was sampled, at most this. 0: clips count from then."""
    mean: Literal["token", "sequence"] = "token"
    """Whether tokens or attempts weigh the same. sequence: GRPO."""
    ratio: Literal["token", "sequence"] = "token"
    """Whose probabilities are compared. sequence: GSPO."""
    kl: float = Field(0.0, ge=0)
    """Weight of the distance to the model at the start. With full training that is a second copy of it."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where it counts; PPO has it in the reward."""

    lr: float = Field(1e-6, gt=0)
    warmup_steps: int = Field(0, ge=0)
    """Updates over which the rate rises."""
    lr_end: float = Field(1.0, gt=0, le=1)
    """Share of the rate that is left in the last step; it falls evenly. Below 1 a short run settles what it has found
    rather than driving it on."""
    weight_decay: float = Field(0.01, ge=0)
    beta2: float = Field(0.999, gt=0, lt=1)
    max_grad_norm: float = Field(1.0, ge=0)
    """0 does not clip."""
    lora: Lora | None = None
    """None trains all weights."""
    freeze_embeddings: bool = False
    freeze_layers: int = Field(0, ge=0)
    """The lowest so many layers stay as they are: less time and memory on the way back."""
    row_tokens: int | None = Field(None, ge=16)
    """Tokens that go through the model at a time in an update, or those of the longest attempt; None: 1,024. More is
    faster on a CPU (2,048 tokens in rows of 256, 512, 1,024 and 2,048: 13, 11, 10.5 and 8 s) and takes more memory."""
    gradient_checkpointing: bool = False
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of weights that are not trained; trained ones are fp32. auto: bf16 where a GPU has it."""

    eval_tasks: str | None = None
    """Tasks that are not learnt from, tried greedily."""
    eval_count: int = Field(50, ge=1)
    eval_every: int = Field(10, ge=1)
    """Steps between two looks at them; there is one at the start and one at the end."""
    checkpoint_every: int = Field(5, ge=1)
    """Steps."""
    checkpoints_kept: int = Field(1, ge=1)
    report_to: tuple[str, ...] = ("tensorboard",)
    """Besides metrics.jsonl: tensorboard, wandb, swanlab, trackio."""
    seed: int = 0

    @property
    def drawn(self) -> int:
        # Without dynamic sampling nothing is left out, and all beyond `prompts` would be a step old when it is used.
        return self.draw or (2 if self.dynamic_sampling else 1) * self.prompts

    @property
    def spread(self) -> Literal["score", "reward"]:
        return self.spread_of if self.dynamic_sampling else "reward"  # all is learnt from that has an advantage

    def rate(self, step: int, update: int) -> float:
        """Of this update, counted from the beginning."""
        fallen = (1 - self.lr_end) * (step - 1) / max(self.steps - 1, 1)
        return self.lr * min(update / max(self.warmup_steps, 1), 1.0) * (1 - fallen)

    @property
    def wanted(self) -> int:
        return min(self.enough or self.prompts, self.prompts)

    def limits(self, profile: Profile) -> Limits:
        own = {
            name: value
            for name in ("model_tokens", "context_tokens", "tool_calls", "seconds")
            if (value := getattr(self, name)) is not None
        }
        try:
            return Limits.model_validate({**profile.limits.model_dump(), **own})
        except ValidationError as error:
            raise TrainingError(
                f"limits of the profile {profile.name!r} and these settings do not go together: "
                f"{error.errors()[0]['msg'].removeprefix('Value error, ')}",
                hint="--set model_tokens=N --set context_tokens=M, where M is the whole with prompt and observations",
            ) from error

    @model_validator(mode="after")
    def _consistent(self) -> RlConfig:
        if self.updates > self.prompts:
            raise ValueError("there cannot be more updates than prompts in a step")
        if self.dual_clip and self.dual_clip <= 1 + self.clip_high:
            raise ValueError("dual_clip must be above 1 + clip_high")
        if self.baseline == "token" and self.mean == "sequence":
            raise ValueError(
                "baseline=token is for mean=token: where attempts weigh the same, so they must in the baseline"
            )
        if self.ahead and self.exact:
            raise ValueError(
                "attempts made ahead differ after a restart: leave exact out or set it to false, or set ahead=0"
            )
        return self


def load_config(path: Path | None, settings: Sequence[str] = (), **given: Any) -> RlConfig:
    return load_settings(RlConfig, "rl", path, settings, given)


def describe() -> str:
    """Every key, its default and its meaning."""
    return describe_settings({"": RlConfig, "reward.": Reward, "guards.": Guards, "lora.": Lora})
