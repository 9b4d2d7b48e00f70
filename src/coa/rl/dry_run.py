"""What a run of RL will do, before it does it: `coa.rl.plan(config)`. Neither torch nor weights are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coa.models.footprint import Memory, ModelShape
from coa.models.precision import computes_in_bf16, gpu_for_plans
from coa.models.tokenizer import TextTokenizer, load_tokenizer
from coa.report import plural
from coa.rl.checks import Checked, check, profiles_of
from coa.rl.config import MICRO_BATCH_TOKENS, RlConfig
from coa.rl.engines.verl.checks import installed, positions_of, refuse_too_long, refuse_unsupported, unused
from coa.rl.engines.verl.dataset import longest_prompt
from coa.rl.engines.verl.settings import as_overrides, verl_settings
from coa.training.footprint import millions, trained_parameters, training_memory
from coa.training.requirements import refuse_endless
from coa.trajectory import load_profile
from coa.trajectory.types import Frozen


class RlPlan(Frozen):
    """What `coa rl` will do with these settings and tasks."""

    model: str
    parameters: int | None
    trained_parameters: int | None
    tasks: int
    held_out: int
    """Number of tasks on which success is reported; they are not learnt from."""
    steps: int
    groups_per_step: int
    """Number of groups that a step learns from at most."""
    attempts_per_group: int
    attempts_per_step: int
    """Attempts of a step whose first draw of tasks gives enough groups."""
    max_attempts_per_step: int
    """With all draws that dynamic sampling may make; surplus groups can also make sampling needless."""
    max_tokens_per_attempt: int
    """Tokens that the model may write in one attempt."""
    max_tokens_per_step: int
    """Tokens that the model may write in `max_attempts_per_step`."""
    updates: int
    """Number of optimiser updates in all steps."""
    evaluations: int
    """Number of times that the held-out tasks are attempted."""
    memory: Memory | None
    """Estimated peak; None where the model's files do not say how large it is, and for the verl engine."""
    first_prompt: str
    """The prompt of the first task in the file, as the model reads it."""
    first_prompt_tokens: int
    verl: dict[str, Any] | None = None
    """Settings of verl, by their dotted names; None for the local engine."""
    unused: tuple[str, ...] = ()
    """Notes on settings that the engine does not use."""

    def lines(self) -> list[str]:
        """For people."""
        found = [
            f"tasks: {self.tasks:,} to learn from, {self.held_out:,} held out",
            f"training: {plural(self.steps, 'step')} of up to {plural(self.groups_per_step, 'group')} of "
            f"{plural(self.attempts_per_group, 'attempt')}; {plural(self.updates, 'update')} in all",
            f"a step: {plural(self.attempts_per_step, 'attempt')}, at most {self.max_attempts_per_step:,}; "
            f"the model writes at most {self.max_tokens_per_attempt:,} tokens in an attempt, "
            f"{self.max_tokens_per_step:,} in a step",
        ]
        if self.held_out:
            attempts = self.evaluations * self.held_out
            found.append(f"evaluation: {plural(self.evaluations, 'time')}, {plural(attempts, 'attempt')} in all")
        if self.parameters is not None and self.trained_parameters is not None:
            found.append(f"weights: {millions(self.trained_parameters)} of {millions(self.parameters)} trained")
        if self.verl is None:
            unknown = "unknown, because the model's files do not say how large it is"
            found.append(f"memory: {self.memory or unknown}")
        if self.verl is not None:
            there = dict(installed())["verl"]
            shown = f"verl {there}" if there else "verl (not installed here)"
            found += self.unused
            found.append(f"settings of {shown}:\n" + "\n".join(as_overrides(self.verl)))
        found.append(f"first prompt, {plural(self.first_prompt_tokens, 'token')}:\n{self.first_prompt}")
        return found


def plan(config: RlConfig) -> RlPlan:
    """Read the tasks and count what training would do with them; whatever would be refused is refused here too.

    Neither torch nor weights are loaded, and nothing is written.
    """
    if config.engine == "verl":
        refuse_unsupported(config)
    checked = check(config)
    tasks, shape, tokenizer = checked.tasks, checked.shape, load_tokenizer(config.model)
    refuse_endless(tokenizer)
    limits = [config.limits(load_profile(name)) for name in profiles_of(config, tasks)]
    written, context = max(one.model_tokens for one in limits), max(one.context_tokens for one in limits)
    drawn = min(config.tasks_per_draw, len(tasks)) * config.num_generations
    draws = config.max_num_gen_batches if config.dynamic_sampling else 1
    if config.engine == "verl":  # which repeats tasks to fill a batch, and draws on until the guards end the run
        drawn = config.train_batch_size * config.num_generations
        draws = max(config.guards.max_idle_steps * draws * config.tasks_per_draw // config.train_batch_size, 1)
    first = tasks[0]
    profile = load_profile(first.profile or config.profile)
    own = first.prompt if config.use_task_prompts else None
    prompt, ids = tokenizer.encode_prompt(own or profile.messages(first))
    looks = {0, config.max_steps, *range(config.eval_steps, config.max_steps, config.eval_steps)}
    return RlPlan(
        model=config.model,
        parameters=shape.parameters if shape else None,
        trained_parameters=_trained(config, shape) if shape else None,
        tasks=len(tasks),
        held_out=len(checked.held_out),
        steps=config.max_steps,
        groups_per_step=config.train_batch_size,
        attempts_per_group=config.num_generations,
        attempts_per_step=drawn,
        max_attempts_per_step=drawn * draws,
        max_tokens_per_attempt=written,
        max_tokens_per_step=drawn * draws * written,
        updates=config.max_steps * config.num_mini_batches * config.ppo_epochs,
        evaluations=len(looks) if checked.held_out else 0,
        memory=_memory(config, shape, context, drawn) if shape and config.engine == "local" else None,
        first_prompt=prompt,
        first_prompt_tokens=len(ids),
        verl=_verl(config, checked, tokenizer) if config.engine == "verl" else None,
        unused=tuple(unused(config)) if config.engine == "verl" else (),
    )


def _verl(config: RlConfig, checked: Checked, tokenizer: TextTokenizer) -> dict[str, Any]:
    tasks = [*checked.tasks, *checked.held_out]
    limits = [config.limits(load_profile(name)) for name in profiles_of(config, tasks)]
    prompt = longest_prompt(tasks, config, tokenizer)
    context = refuse_too_long(limits, prompt, positions_of(config.model))
    return verl_settings(
        config, Path("OUT"), model=config.model, context_tokens=context, prompt_tokens=prompt,
        held_out=bool(checked.held_out),
    )  # fmt: skip


def _trained(config: RlConfig, shape: ModelShape) -> int:
    return trained_parameters(
        shape, config.lora, freeze_embeddings=config.freeze_embeddings, freeze_layers=config.freeze_layers
    )


def _memory(config: RlConfig, shape: ModelShape, context: int, attempts: int) -> Memory:
    """What training takes, and the engine that samples: contexts, and a copy of the weights that is packed for speed.

    The longest attempt goes through the model in one pass. How long it will be is not known; contexts are reckoned as
    if attempts used all of theirs.
    """
    tokens = min(max(config.micro_batch_tokens or MICRO_BATCH_TOKENS, 1), context * attempts)
    gpu = gpu_for_plans()
    bf16 = computes_in_bf16(config.precision_on(gpu=gpu is not None), gpu=gpu)
    frozen_bf16 = config.lora is not None and bf16
    training = training_memory(
        shape, tokens=tokens, bf16=frozen_bf16, lora=config.lora,
        freeze_embeddings=config.freeze_embeddings, freeze_layers=config.freeze_layers,
        gradient_checkpointing=config.gradient_checkpointing,
    )  # fmt: skip
    number = 2 if frozen_bf16 else 4
    rows = min(config.max_num_seqs, attempts)
    more = {
        "contexts": min(int(config.kv_cache_gb * (1 << 30)), (number if gpu else 4) * shape.cached * context * rows),
        "packed copy of the weights": (2 if bf16 else 4) * (shape.parameters - shape.embeddings),
    }
    if config.kl_coef and config.lora is None:
        more["reference model"] = number * shape.parameters
    if config.one_step_off_policy:
        more["copy that samples"] = number * _trained(config, shape)
    return Memory(parts={**training.parts, **more})
