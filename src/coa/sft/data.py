"""From trajectories to training samples, through the ledger, with a count of what was dropped and repaired.

Nothing here needs torch, so data are read and refused before anything heavy is loaded; `examples.py` makes tensors.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from coa.errors import TrainingError
from coa.models.tokenizer import TextTokenizer
from coa.report import plural
from coa.sft.config import SftConfig
from coa.trajectory import Author, Kind, Profile, Sample, Task, Trajectory, load_profile, profile_of, with_profile
from coa.trajectory.formats.detect import by_kind, trajectories_of
from coa.trajectory.formats.tasks import question_in
from coa.trajectory.sample import Tally, to_samples
from coa.trajectory.shapes import Reading, read
from coa.trajectory.types import OBSERVATION


@dataclass(frozen=True)
class SftData:
    """Trajectories to train on, those held out, and what identifies the data."""

    train: list[Trajectory]
    held_out: list[Trajectory]
    fingerprint: str
    left_out: Counter[str]
    """Number of rows that could not be read as a trajectory, by what is wrong with them."""
    repaired: int
    """Number of trajectories whose format the parser repaired when they were read."""
    repairs: Counter[str]
    """Number of these trajectories by kind of repair."""

    @property
    def defects(self) -> str:
        """What was wrong with the data, for the first line of a run; empty if nothing was."""
        found = [f"{plural(self.left_out.total(), 'row')} left out: {by_kind(self.left_out)}"] if self.left_out else []
        found += [f"{self.repaired} repaired when read: {by_kind(self.repairs)}"] if self.repaired else []
        return "; ".join(found)


def load(config: SftConfig) -> SftData:
    left_out: Counter[str] = Counter()
    # Tagged text has to be read with some profile; if the settings name one, the text should follow that one.
    profile = load_profile(config.profile) if config.profile else None
    trajectories = [t for source in config.data for t in trajectories_of(source, profile, left_out)]
    if profile is not None:
        _refuse_other_profiles(trajectories, profile.name)
        trajectories = [with_profile(t, profile) for t in trajectories]
    _refuse_unknown_agents(trajectories, config)
    held = held_out_questions(
        trajectories, max(config.held_out, 0 if config.eval_tasks else config.num_eval_tasks), config.seed
    )
    digest = hashlib.sha256()
    for trajectory in trajectories:
        digest.update(trajectory.to_json().encode())
    return SftData(
        [t for t in trajectories if asked(t.task) not in held],
        [t for t in trajectories if asked(t.task) in held],
        digest.hexdigest()[:16],
        left_out,
        sum(bool(t.repairs) for t in trajectories),
        Counter(kind.replace("_", " ") for t in trajectories for kind in {repair.kind for repair in t.repairs}),
    )


def _refuse_other_profiles(trajectories: Iterable[Trajectory], wanted: str) -> None:
    others = Counter(t.profile for t in trajectories if t.profile != wanted)
    if others:
        name, count = others.most_common(1)[0]
        raise TrainingError(
            f"{plural(count, 'trajectory was', 'trajectories were')} made for the profile {name!r}, not for {wanted!r}",
            hint=f"--set profile={name}, or leave the profile out to train each as it was made",
        )


def _refuse_unknown_agents(trajectories: Iterable[Trajectory], config: SftConfig) -> None:
    """A misspelled tag would silently have no effect."""
    if not config.agent_weights:
        return
    known = {tag for t in trajectories for tag in profile_of(t).agents}
    unknown = sorted(set(config.agent_weights) - known)
    if known and unknown:
        raise TrainingError(
            f"agent_weights names {unknown[0]!r}, but the data's profile has no such agent",
            hint=f"its agents are {', '.join(sorted(known))}",
        )


def asked(task: Task) -> str:
    """What identifies a task. Ids do not: "1" is in every set, and one question has different ids in different sets.

    Some rows have the instructions and the question in one text; only the question counts.
    """
    return question_in(task.question)


def held_out_questions(trajectories: Sequence[Trajectory], count: int, seed: int) -> frozenset[str]:
    """The questions to hold out, so that no attempt at one of them is trained on, whatever its id."""
    questions = sorted({asked(t.task) for t in trajectories})
    if count and count >= len(questions):
        raise TrainingError(
            f"{count} tasks should be held out, but the data has only {len(questions)} different questions",
            hint="lower held_out or num_eval_tasks, or give other tasks with --set eval_tasks=FILE",
        )
    return frozenset(random.Random(f"held out {seed}").sample(questions, count))


class Labelled(NamedTuple):
    """A sample, and the weight of each of its tokens as a label."""

    trajectory: Trajectory
    sample: Sample
    weights: list[float]


def labelled(
    trajectories: Sequence[Trajectory], tokenizer: TextTokenizer, config: SftConfig, max_tokens: int, tally: Tally
) -> Iterator[Labelled]:
    """Samples in the order of the trajectories. What is dropped is counted in `tally`."""
    for _, group in groupby(trajectories, key=lambda t: (t.profile, t.profile_hash, repr(t.meta.get("tools")))):
        members = list(group)
        profile = profile_of(members[0])
        for trajectory, sample in to_samples(members, tokenizer, profile, max_tokens=max_tokens, tally=tally):
            weights = label_weights(trajectory, sample, profile, config)
            if any(weight > 0 for weight in weights):
                yield Labelled(trajectory, sample, weights)
            else:
                tally.take_back(sample)


def label_weights(trajectory: Trajectory, sample: Sample, profile: Profile, config: SftConfig) -> list[float]:
    """How much each token counts: 0 where the environment wrote, else its agent's weight."""
    by_step = [config.agent_weights.get(agent, 1.0) for agent in sample.agents]
    if config.mask_failed_calls:
        for step in failed_calls(trajectory, profile):
            by_step[step] = 0.0
    return [by_step[step] if trained else 0.0 for trained, step in zip(sample.mask, sample.steps, strict=True)]


def failed_calls(trajectory: Trajectory, profile: Profile) -> list[int]:
    """Tool calls that could not be read: the runtime said so in the observation, or reading them again shows it."""
    failed = []
    for number, step in enumerate(trajectory.steps):
        agent = profile.agents.get(step.agent)
        if agent is None or agent.kind is not Kind.TOOL or step.author is not Author.MODEL:
            continue
        after = trajectory.steps[number + 1] if number + 1 < len(trajectory.steps) else None
        reported = after is not None and after.agent == OBSERVATION and after.meta.get("error") == "format"
        if reported or not isinstance(read(profile.shape(step.agent), step.text), Reading):
            failed.append(number)
    return failed


def refuse_untrainable(samples: int, highest_id: int, tally: Tally, vocabulary: int | None) -> None:
    """Refuse data without a token to train on, and ids for which the model has no embedding."""
    if not samples:
        raise TrainingError(
            f"there is no token to train on: {tally}",
            hint="`coa inspect DATA --mask --tokenizer M` shows what would be trained; raise max_length if all is too "
            "long, or look at agent_weights if all weights are 0",
        )
    if vocabulary is not None and highest_id >= vocabulary:
        raise TrainingError(
            f"the tokenizer gives id {highest_id}, but the model has embeddings for {vocabulary} tokens only",
            hint="give the tokenizer that belongs to the model (tokenizer.json in its folder)",
        )
