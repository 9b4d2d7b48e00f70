"""What a fine-tuning run will do, before it does it: `coa.sft.plan(config)`. Neither torch nor weights are loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coa.choices import Device, Offload, Sharding
from coa.models.footprint import Memory, ModelShape
from coa.models.precision import computes_in_bf16, gpu_for_plans
from coa.models.tokenizer import load_tokenizer
from coa.report import plural
from coa.sft.checks import check
from coa.sft.config import SftConfig
from coa.sft.data import labelled, refuse_untrainable
from coa.sft.launch import Launch, refuse_impossible, shown
from coa.sft.schedule import schedule
from coa.training.footprint import millions, trained_parameters, training_memory
from coa.training.requirements import refuse_endless
from coa.training.settings import Lora
from coa.trajectory import Tally, Trajectory, profile_of
from coa.trajectory.types import Frozen


class PhasePlan(Frozen):
    """The samples of one phase; without `length_schedule` there is one phase."""

    max_length: int
    samples: int
    cut: int
    """Number of samples whose observations are shortened to fit."""
    dropped: Mapping[str, int]
    """Number of trajectories that cannot be trained on, by reason."""
    tokens: int
    trained_tokens: int
    """Tokens that are labels, once over the samples."""
    longest: int
    """Number of tokens of the longest sample."""
    updates: int


class SftPlan(Frozen):
    """What `coa sft` will do with these settings and data."""

    model: str
    parameters: int | None
    trained_parameters: int | None
    trajectories: int
    held_out: int
    """Number of trajectories that are not trained on."""
    left_out: int
    """Number of rows that cannot be read as a trajectory."""
    phases: tuple[PhasePlan, ...]
    updates: int
    samples_per_update: int
    rows_per_update: int
    longest_row: int
    """Number of tokens of the longest row, which is what goes through the model at a time."""
    tokens: int
    """Tokens that go through the model in all updates together."""
    trained_tokens: int
    """Labels in all updates together."""
    processes: int
    """Number of processes that train together."""
    memory: Memory | None
    """Estimated peak of one process; None where the model's files do not say how large it is."""
    gpu_memory_gb: float | None
    """Memory of a GPU that was asked about."""
    fits: bool | None
    """Whether the estimate leaves a tenth of the GPU's memory free."""
    advice: tuple[str, ...]
    """Changes with which it would fit, each on its own."""
    launch_command: str | None
    """What `--launch` would run."""
    first_prompt: str
    """The prompt of the first sample of the first update, as the model reads it."""
    first_prompt_tokens: int

    def lines(self) -> list[str]:
        """For people."""
        found = [
            f"data: {plural(self.trajectories, 'trajectory', 'trajectories')} to train on, {self.held_out:,} held out"
            + (f", {plural(self.left_out, 'row')} left out" if self.left_out else "")
        ]
        for phase in self.phases:
            dropped = ", ".join(f"{count} {reason}" for reason, count in phase.dropped.items()) or "none"
            found.append(
                f"up to {phase.max_length:,} tokens: {plural(phase.samples, 'sample')}, {phase.tokens:,} tokens, "
                f"{phase.trained_tokens:,} of them trained; longest {phase.longest:,}; cut {phase.cut:,}; "
                f"dropped: {dropped}"
            )
        found.append(
            f"training: {plural(self.updates, 'update')} of {plural(self.samples_per_update, 'sample')} in "
            f"{plural(self.rows_per_update, 'row')} of at most {self.longest_row:,} tokens; "
            f"{self.tokens:,} tokens in all, {self.trained_tokens:,} of them trained"
        )
        if self.parameters is not None and self.trained_parameters is not None:
            found.append(f"weights: {millions(self.trained_parameters)} of {millions(self.parameters)} trained")
        unknown = "unknown, because the model's files do not say how large it is"
        whose = "one process" if self.gpu_memory_gb is None else f"each of {plural(self.processes, 'GPU')}"
        found.append(f"memory of {whose}: {self.memory or unknown}")
        if self.fits:
            found.append(f"fits into {self.gpu_memory_gb:g} GB")
        elif self.fits is False:
            found.append(
                f"does not fit into {self.gpu_memory_gb:g} GB; hint: "
                + ("; or ".join(self.advice) or "none of the settings that save memory is enough by itself")
            )
        if self.launch_command is not None:
            found.append(f"command: {self.launch_command}")
        found.append(f"first prompt, {plural(self.first_prompt_tokens, 'token')}:\n{self.first_prompt}")
        return found


def plan(
    config: SftConfig, *, launch: Launch | None = None, gpu_memory_gb: float = 80.0, program: Sequence[str] = ()
) -> SftPlan:
    """Read the data and count what training would do with them; whatever would be refused is refused here too.

    With `launch`, for the processes that it starts, each of which runs `program`: the memory of one GPU and whether it
    fits into `gpu_memory_gb`. Neither torch nor weights are loaded, and nothing is written.
    """
    if launch is not None:
        refuse_impossible(launch, config)
    checked = check(config)
    data, shape, tokenizer = checked.data, checked.shape, load_tokenizer(config.model)
    refuse_endless(tokenizer)
    lengths, labels, tallies, first = [], [], [], list[Trajectory]()
    for phase in config.phases:
        tally, sizes, marks, highest = Tally(), list[int](), list[int](), -1
        members = []
        for found in labelled(data.train, tokenizer, config, phase.max_length, tally):
            sizes.append(len(found.sample))
            marks.append(sum(weight > 0 for weight in found.weights))
            highest = max(highest, *found.sample.ids)
            if not first:
                members.append(found.trajectory)
        refuse_untrainable(len(sizes), highest, tally, shape.vocabulary if shape else None)
        lengths.append(sizes)
        labels.append(marks)
        tallies.append(tally)
        first = first or members
    processes = launch.processes if launch else 1
    planned = schedule(lengths, config, processes=max(processes // config.sequence_parallel_size, 1))
    memory, fits, advice = None, None, tuple[str, ...]()
    on_gpus = launch is not None and launch.device is Device.CUDA
    if shape is not None:
        memory = memory_of(shape, config, launch, planned.longest_row)
        if launch is not None and on_gpus:
            fits = _fits(memory, gpu_memory_gb)
            if not fits:
                advice = tuple(savings(shape, config, launch, planned.longest_row, gpu_memory_gb))
    trajectory = first[planned.updates[0].samples[0]]
    profile = profile_of(trajectory)
    prompt, ids = tokenizer.encode_prompt(trajectory.prompt or profile.messages(trajectory.task))
    return SftPlan(
        model=config.model,
        parameters=shape.parameters if shape else None,
        trained_parameters=trained_parameters(shape, config.lora, freeze_embeddings=config.freeze_embeddings)
        if shape
        else None,
        trajectories=len(data.train),
        held_out=len(data.held_out),
        left_out=data.left_out.total(),
        phases=tuple(
            PhasePlan(
                max_length=phase.max_length,
                samples=len(sizes),
                cut=tally.cut,
                dropped={reason.value: count for reason, count in sorted(tally.dropped.items())},
                tokens=sum(sizes),
                trained_tokens=sum(marks),
                longest=max(sizes),
                updates=sum(update.phase == number for update in planned.updates),
            )
            for number, (phase, sizes, marks, tally) in enumerate(
                zip(config.phases, lengths, labels, tallies, strict=True)
            )
        ),
        updates=len(planned.updates),
        samples_per_update=len(planned.updates[0].samples),
        rows_per_update=planned.rows_per_update,
        longest_row=planned.longest_row,
        tokens=sum(lengths[update.phase][index] for update in planned.updates for index in update.samples),
        trained_tokens=sum(labels[update.phase][index] for update in planned.updates for index in update.samples),
        processes=processes,
        memory=memory,
        gpu_memory_gb=gpu_memory_gb if on_gpus else None,
        fits=fits,
        advice=advice,
        launch_command=shown(launch, program) if launch is not None and program else None,
        first_prompt=prompt,
        first_prompt_tokens=len(ids),
    )


def memory_of(shape: ModelShape, config: SftConfig, launch: Launch | None, tokens: int) -> Memory:
    """The estimate for one process, with rows of at most this number of tokens. GPUs are taken to compute in bf16."""
    on_gpus = launch is not None and launch.device is Device.CUDA
    return training_memory(
        shape, tokens=tokens, bf16=computes_in_bf16(config.precision, gpu=True if on_gpus else gpu_for_plans()),
        lora=config.lora, freeze_embeddings=config.freeze_embeddings,
        gradient_checkpointing=config.gradient_checkpointing,
        division=launch.division(config) if launch is not None else None,
    )  # fmt: skip


def _fits(memory: Memory, gpu_memory_gb: float) -> bool:
    """A tenth is left for the allocator, which cannot fill a GPU without gaps."""
    return memory.total <= 0.9e9 * gpu_memory_gb


def savings(shape: ModelShape, config: SftConfig, launch: Launch, tokens: int, gpu_memory_gb: float) -> Iterator[str]:
    """What makes it fit, the cheapest first: time, then machines, then what is learnt. Each is enough by itself."""
    bases = {"": config}

    def tried(said: str, on: Launch = launch, **changed: Any) -> Iterator[str]:
        for also, base in bases.items():
            memory = memory_of(shape, base.model_copy(update=changed), on, changed.get("micro_batch_tokens", tokens))
            impossible = on.offload is Offload.ACTIVATIONS and not base.gradient_checkpointing
            if _fits(memory, gpu_memory_gb) and not impossible:
                yield f"{also}{said} ({memory.total / 1e9:.0f} GB)"
                return

    if not config.gradient_checkpointing:
        checkpointed = "--set gradient_checkpointing=true"
        yield from (found := list(tried(checkpointed, gradient_checkpointing=True)))
        if not found:  # then other changes may need it, too
            bases[f"{checkpointed} "] = config.model_copy(update={"gradient_checkpointing": True})
    longest = max(phase.max_length for phase in config.phases)
    if tokens > longest:
        yield from tried(f"--set micro_batch_tokens={longest}", micro_batch_tokens=longest)
    for size in (2, 4, 8):
        possible = size > config.sequence_parallel_size and launch.processes % size == 0
        if possible and (found := list(tried(f"--set sequence_parallel_size={size}", sequence_parallel_size=size))):
            yield from found
            break
    if launch.sharding is Sharding.FSDP2 and config.lora is None:
        yield from tried("--offload activations", launch.model_copy(update={"offload": Offload.ACTIVATIONS}))
    for option, key, most in (("--gpus-per-node", "gpus_per_node", 8), ("--nnodes", "nnodes", 16)):
        for count in (2, 4, 8, 16):
            more = launch.model_copy(update={key: count})
            if getattr(launch, key) < count <= most and (found := list(tried(f"{option} {count}", more))):
                yield from found
                break
    yield from tried("--offload optimizer", launch.model_copy(update={"offload": Offload.OPTIMIZER}))
    if config.lora is None:
        yield from tried("--set lora.rank=16", lora=Lora())
