"""What a fine-tuning run will do, before it does it: `coa.sft.plan(config)`. Neither torch nor weights are loaded."""

from __future__ import annotations

from collections.abc import Mapping

from coa.models.footprint import Memory
from coa.models.tokenizer import load_tokenizer
from coa.report import plural
from coa.sft.checks import check
from coa.sft.config import SftConfig
from coa.sft.data import labelled, refuse_untrainable
from coa.sft.schedule import schedule
from coa.training.footprint import trained_parameters, training_memory
from coa.training.requirements import refuse_endless
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
    memory: Memory | None
    """Estimated peak of one process; None where the model's files do not say how large it is."""
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
            found.append(f"weights: {self.trained_parameters / 1e6:.3g} M of {self.parameters / 1e6:.3g} M trained")
        unknown = "unknown, because the model's files do not say how large it is"
        found.append(f"memory of one process: {self.memory or unknown}")
        found.append(f"first prompt, {plural(self.first_prompt_tokens, 'token')}:\n{self.first_prompt}")
        return found


def plan(config: SftConfig) -> SftPlan:
    """Read the data and count what training would do with them; whatever would be refused is refused here too.

    Neither torch nor weights are loaded, and nothing is written.
    """
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
    planned = schedule(lengths, config)
    memory = None
    if shape is not None:
        memory = training_memory(
            shape, tokens=planned.longest_row, precision=config.precision, lora=config.lora,
            freeze_embeddings=config.freeze_embeddings, gradient_checkpointing=config.gradient_checkpointing,
        )  # fmt: skip
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
        memory=memory,
        first_prompt=prompt,
        first_prompt_tokens=len(ids),
    )
