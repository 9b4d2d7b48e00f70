"""The stage: settings and a run folder in, a model folder out. Called again, it continues where it stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import torch
from accelerate import PartialState
from transformers import PreTrainedModel

from coa.errors import TrainingError
from coa.folder import lock
from coa.models.local.model import uses_bf16
from coa.models.tokenizer import TextTokenizer
from coa.progress import Progress, Silent, part
from coa.report import plural
from coa.sft.callbacks import Checkpoints, EarlyStop, Metrics, StopWhenAsked, has_stopped
from coa.sft.checks import Checked, check
from coa.sft.config import SftConfig
from coa.sft.data import SftData
from coa.sft.evaluation import AgentEval, tasks_of
from coa.sft.examples import refuse_unusable, to_examples
from coa.sft.sharding import Sharding, refuse_lost_adapters, save_whole
from coa.sft.trainer import RowTrainer, arguments
from coa.sft.updates import HeldOut, UpdatePlan
from coa.tools import Tool
from coa.training import checkpoint, packed_model, weights
from coa.training.card import model_card
from coa.training.footprint import millions
from coa.training.packing import TokenSample
from coa.training.run_folder import METRICS, MODEL, TrainingResult, claim, figures
from coa.training.sequence_parallel import SequenceGroup
from coa.trajectory import Profile, Tally, profile_of
from coa.version import __version__

_FREE: Final = ("report_to", "save_steps", "save_total_limit")
"""Settings that may change between two starts of a run: they do not change what is trained."""


def train(
    config: SftConfig,
    out: Path,
    *,
    tools: Mapping[str, Tool] | None = None,
    command: str | None = None,
    progress: Progress | None = None,
    checked: Checked | None = None,
) -> TrainingResult:
    """Fine-tune as the settings say. `progress` gets the report of the data, and results as they come.

    `tools` are objects for `num_eval_tasks`, beside those that the settings name. `checked` is the result of `check`,
    where the caller has called it.
    """
    checked = checked or check(config)
    # On a machine without an accelerator several processes only find each other if accelerate knows that there is none.
    everyone = PartialState(cpu=not torch.accelerator.is_available())
    shown = progress if progress is not None and everyone.is_main_process else Silent()
    # One process holds the folder for all of them.
    with lock(out) if everyone.is_main_process else nullcontext():
        return _train(config, checked, out, tools or {}, command, shown, everyone)


def _train(
    config: SftConfig, checked: Checked, out: Path, tools: Mapping[str, Tool], command: str | None,
    progress: Progress, everyone: PartialState,
) -> TrainingResult:  # fmt: skip
    say, loaded = progress.say, checked.data
    with everyone.main_process_first():
        claim(out, "sft", config, loaded.fingerprint, free=_FREE, write=everyone.is_main_process)
        if everyone.is_main_process:
            checkpoint.clear_torn(out)
    if (out / MODEL).is_dir():
        say(f"finished already: {out / MODEL}")
        return TrainingResult(out / MODEL, 0, True, {}, everyone.is_main_process)
    refuse_lost_adapters(config.lora)
    bf16 = uses_bf16(config.precision)
    torch.manual_seed(config.seed)
    dtype = weights.frozen_dtype(bf16, config.lora)
    with part(progress, f"opening {config.model}"):
        trained, model, tokenizer = weights.open_trained(config.model, config.lora, dtype=dtype, device="cpu")
    with part(progress, "tokenizing the data"):
        tally, pools = _pools(config, loaded, tokenizer)
    for pool, counted in zip(pools, tally, strict=True):
        refuse_unusable(tokenizer, pool, counted, packed_model.vocabulary_of(model))
    say(_data_line(config, loaded, tally, pools))
    packed_model.take_rows(model)
    if everyone.is_main_process or not Sharding.found().loads_once:
        # Checked with our own attention: others, such as flash_attention_2, need the device that the model will be on.
        packed_model.check(model)
    packed_model.take_rows(
        model, attention=config.attn_implementation, sequence=_sequence_group(config, model, everyone)
    )
    if config.lora is None and config.freeze_embeddings:
        weights.freeze_embeddings(model)
    plan = UpdatePlan(pools, config, processes=everyone.num_processes)
    held_out = _held_out(config, loaded, tokenizer)
    agent_eval = _agent_eval(config, checked, tokenizer, tools, out, progress, everyone)
    if not len(held_out) and (config.held_out or config.early_stopping_patience):
        raise TrainingError(
            f"none of the {len(loaded.held_out)} held-out trajectories can be evaluated: they are too long, or nothing "
            "in them is trained",
            hint="raise max_length, or hold out more tasks with --set held_out=N",
        )
    looks = (config.eval_steps or max(len(plan.updates) // 10, 1)) if len(held_out) or agent_eval else 0
    last = checkpoint.latest(out)
    if last is not None and config.early_stopping_patience and has_stopped(last, config.early_stopping_patience):
        # It had stopped early, and was killed before its model was written.
        plan.end_after(checkpoint.step_of(last))
    interruption = checkpoint.Interruption(progress, "update")
    callbacks = [
        Metrics(out / METRICS, progress),
        Checkpoints(out, config.save_total_limit),
        *([EarlyStop(config.early_stopping_patience)] if config.early_stopping_patience else []),
        StopWhenAsked(interruption),
    ]
    args = arguments(
        config, out, plan, processes=everyone.num_processes, looks=looks, bf16=bf16, resumed=last is not None
    )
    trainer = RowTrainer(trained, args, plan, held_out, config, agent_eval=agent_eval, callbacks=callbacks)
    parameters = list(trained.parameters())
    count, of_all = sum(p.numel() for p in parameters if p.requires_grad), sum(p.numel() for p in parameters)
    say(
        f"{plural(len(plan.updates), 'update')} of {plural(len(plan.updates[0].samples), 'sample')} in "
        f"{plural(plan.rows_per_update, 'row')}, "
        f"{millions(count)} of {millions(of_all)} weights trained"
        + (f"; going on after update {checkpoint.step_of(last)}" if last else "")
    )
    try:
        with part(progress, "updates", len(plan.updates)):
            trainer.train(resume_from_checkpoint=str(last) if last else None)
    finally:
        interruption.restore()  # also after an error: the signals are the caller's again
    step = trainer.state.global_step
    if interruption.asked and step < len(plan.updates):
        say(f"stopped after update {step}; the same command goes on from there")
        return TrainingResult(out, step, False, {}, everyone.is_main_process)
    if looks and not any(
        row["step"] == step and {"eval_loss", "answered"} & set(row) for row in trainer.state.log_history
    ):
        trainer.evaluate()
    formats = {"loss": ".4f", "held_out_loss": ".4f", "success": ".1%"}
    measured = figures(out / METRICS, formats, at="after update", rate=("label_tokens_per_s", "trained tokens/s"))
    best = trainer.state.best_model_checkpoint if config.early_stopping_patience else None
    if best is not None:
        measured["taken"] = f"update {checkpoint.step_of(Path(best))}, held-out loss {trainer.state.best_metric:.4f}"
    profiles = ", ".join(sorted({t.profile for t in loaded.train}))
    sources = [word for source in config.data for word in ("--data", source)]
    card = model_card(
        config,
        out,
        stage="sft",
        about=f"fine-tuned on trajectories of a chain of agents (profile: {profiles}) with coa {__version__}. Loss on "
        "what the model wrote; none on prompts and observations.",
        recipe=("lr", "batch_size", "seed"),
        data=_data_lines(config, loaded, tally, pools),
        figures=measured,
        command=command or ["--model", config.model, *sources, "--out", str(out)],
    )
    with part(progress, "saving the model"), checkpoint.saving("the model", out):
        _save(trainer, config, out, tokenizer, card, bf16=bf16)
    say(f"wrote {out / MODEL}")
    return TrainingResult(out / MODEL, step, True, measured, everyone.is_main_process)


def _pools(config: SftConfig, loaded: SftData, tokenizer: TextTokenizer) -> tuple[list[Tally], list[list[TokenSample]]]:
    tallies = [Tally() for _ in config.phases]
    pools = [
        to_examples(loaded.train, tokenizer, config, phase.max_length, tally)
        for phase, tally in zip(config.phases, tallies, strict=True)
    ]
    return tallies, pools


def _held_out(config: SftConfig, loaded: SftData, tokenizer: TextTokenizer) -> HeldOut:
    longest = max(phase.max_length for phase in config.phases)
    found = to_examples(loaded.held_out, tokenizer, config, longest, Tally())
    return HeldOut(found, config.micro_batch_tokens or longest, pieces=config.sequence_parallel_size)


def _sequence_group(config: SftConfig, model: PreTrainedModel, everyone: PartialState) -> SequenceGroup | None:
    heads = model.config.get_text_config()
    return SequenceGroup.of(
        config.sequence_parallel_size, everyone.num_processes, heads.num_attention_heads, heads.num_key_value_heads
    )


def _agent_eval(
    config: SftConfig, checked: Checked, tokenizer: TextTokenizer, tools: Mapping[str, Tool], out: Path,
    progress: Progress, everyone: PartialState,
) -> AgentEval | None:  # fmt: skip
    if not config.num_eval_tasks:
        return None
    if everyone.num_processes > 1:
        raise TrainingError(
            "num_eval_tasks runs the agent in the training process, which only works with one process",
            hint="--set num_eval_tasks=0, and evaluate the checkpoints afterwards",
        )
    loaded = checked.data
    commonest = Counter((t.profile, t.profile_hash) for t in loaded.train).most_common(1)[0][0]
    profile = profile_of(next(t for t in loaded.train if (t.profile, t.profile_hash) == commonest))
    profiles: dict[str, Profile] = {}
    prompts: Any = {}
    if config.eval_tasks is not None:
        tasks = checked.eval_tasks
        if any(t.prompt for t in loaded.train):  # the rows' prompts were trained on, so they are shown
            prompts = {task.id: task.prompt for task in tasks if task.prompt}
    else:
        tasks, prompts, profiles = tasks_of(loaded.held_out, config.num_eval_tasks)
    return AgentEval(config, tasks, profile, profiles, prompts, tokenizer, tools, out / "agent", progress)


def _data_line(
    config: SftConfig, loaded: SftData, tally: Sequence[Tally], pools: Sequence[Sequence[TokenSample]]
) -> str:
    phases = _data_lines(config, loaded, tally, pools)[len(config.data) : len(config.data) + len(pools)]
    return "; ".join(filter(None, ["data: " + "; then ".join(phases), loaded.defects]))


def _data_lines(
    config: SftConfig, loaded: SftData, tally: Sequence[Tally], pools: Sequence[Sequence[TokenSample]]
) -> list[str]:
    held = f"; {len(loaded.held_out)} held out" if loaded.held_out else ""
    lines = [f"{source}" for source in config.data]
    for phase, counted, pool in zip(config.phases, tally, pools, strict=True):
        labels = sum(example.labels for example in pool)
        unweighted = f"; labels {labels}" if labels != counted.trained_tokens else ""
        lines.append(f"up to {phase.max_length} tokens: {counted}{unweighted}{held}")
    return [*lines, loaded.defects] if loaded.defects else lines


def _save(
    trainer: RowTrainer, config: SftConfig, out: Path, tokenizer: TextTokenizer, card: str, *, bf16: bool
) -> None:
    """Every process takes part in gathering the weights; one of them writes."""
    part, adapter = out / f".{MODEL}.part", out / ".adapter.part"
    merging = config.lora is not None and config.lora.merge
    packed_model.give_back(weights.base_of(trainer.accelerator.unwrap_model(trainer.model)))
    save_whole(trainer, adapter if merging else part)
    everyone = PartialState()
    everyone.wait_for_everyone()
    if everyone.is_main_process:
        dtype = torch.bfloat16 if bf16 else torch.float32
        if merging:
            weights.merge(config.model, adapter, part, dtype)
        elif bf16 and config.lora is None:
            weights.narrow(part, dtype)
        weights.publish(part, out / MODEL, tokenizer, card)
    everyone.wait_for_everyone()
