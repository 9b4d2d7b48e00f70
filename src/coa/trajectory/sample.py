"""Trajectories -> samples of a bounded length, with a count of what was cut or dropped, and why.

Trajectories that are too long lose text from the middle of their longest observations first. A span of the model is
never cut: what still does not fit is dropped, with a reason. Sampled trajectories are not cut at all, because what the
model wrote depended on what it had read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Final

from coa.report import plural
from coa.trajectory.codec import neutralise
from coa.trajectory.ledger import Ledger, Sample, Tokenizer, ledger_of, ledgers_of
from coa.trajectory.profile import Profile
from coa.trajectory.shorten import omitted, shorten
from coa.trajectory.types import OBSERVATION, Author, FrozenDict, Step, Trajectory

KEPT_OF_AN_OBSERVATION: Final = 64
"""Number of tokens to which an observation may be cut: with fewer, it does not help the model."""
_TAGS: Final = 12
"""About the number of tokens that the tags around an observation take."""
_BATCH: Final = 64


class Drop(StrEnum):
    TOO_LONG = "too_long"
    """It exceeds the limit even with all observations cut."""
    SAMPLED_TOO_LONG = "sampled_too_long"
    """It exceeds the limit, and cutting would change what the model had read when it wrote."""
    NOTHING_TO_TRAIN = "nothing_to_train"


@dataclass
class Tally:
    """Counts what happened to the trajectories. It is printed before training starts."""

    samples: int = 0
    cut: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    dropped: Counter[Drop] = field(default_factory=Counter)

    def take_back(self, sample: Sample) -> None:
        """Uncount a sample in which the weights of a trainer leave nothing to train."""
        self.samples -= 1
        self.tokens -= len(sample)
        self.trained_tokens -= sample.trained
        self.dropped[Drop.NOTHING_TO_TRAIN] += 1

    def __str__(self) -> str:
        share = self.trained_tokens / self.tokens if self.tokens else 0.0
        drops = ", ".join(f"{count} {reason}" for reason, count in sorted(self.dropped.items())) or "none"
        return (
            f"{plural(self.samples, 'sample')}, {self.tokens} tokens, {share:.1%} trained; "
            f"observations cut in {self.cut}; dropped: {drops}"
        )


def to_sample(trajectory: Trajectory, tokenizer: Tokenizer, profile: Profile, *, ends: bool = False) -> Sample:
    """Make the ids and the mask of one trajectory, whatever its length.

    Args:
        trajectory: The trajectory. Sampled ids are kept if they belong to this tokenizer.
        tokenizer: The tokenizer of the model to be trained.
        profile: The profile of the trajectory (`profile_of`).
        ends: Train the tokens with which the model ended its turns as well. The caller then has to use `Sample.labels`.
    """
    return ledger_of(trajectory, tokenizer, profile).to_sample(_agents(trajectory), ends=ends)


def to_samples(
    trajectories: Iterable[Trajectory], tokenizer: Tokenizer, profile: Profile, *, max_tokens: int | None = None,
    tally: Tally | None = None,
) -> Iterator[tuple[Trajectory, Sample]]:  # fmt: skip
    """Make training samples of at most `max_tokens` each.

    Longer trajectories are shortened by cutting their longest observations. What still does not fit is dropped.

    Args:
        trajectories: The trajectories.
        tokenizer: The tokenizer of the model to be trained.
        profile: The profile of the trajectories.
        max_tokens: Length limit. None: no limit.
        tally: Counts samples, tokens, and cut and dropped trajectories with the reasons.

    Yields:
        Each trajectory (shortened if necessary) with its sample.
    """
    tally = Tally() if tally is None else tally
    source = iter(trajectories)
    while batch := list(islice(source, _BATCH)):
        for trajectory, ledger in zip(batch, ledgers_of(batch, tokenizer, profile), strict=True):
            fitted = fit(trajectory, tokenizer, profile, max_tokens=max_tokens, ledger=ledger)
            if isinstance(fitted, Drop):
                tally.dropped[fitted] += 1
                continue
            kept, sample = fitted
            tally.samples += 1
            tally.cut += kept is not trajectory
            tally.tokens += len(sample)
            tally.trained_tokens += sample.trained
            yield kept, sample


def fit(
    trajectory: Trajectory, tokenizer: Tokenizer, profile: Profile, *, max_tokens: int | None,
    ledger: Ledger | None = None,
) -> tuple[Trajectory, Sample] | Drop:  # fmt: skip
    """The trajectory and its sample, shortened if that makes it fit; otherwise the reason why it does not fit."""
    ledger = ledger or ledger_of(trajectory, tokenizer, profile)
    if not any(span.ids for span in ledger.spans if span.author is Author.MODEL):
        return Drop.NOTHING_TO_TRAIN
    if max_tokens is None or len(ledger) <= max_tokens:
        return trajectory, ledger.to_sample(_agents(trajectory))
    if trajectory.tokenizer == tokenizer.fingerprint and any(step.tokens for step in trajectory.steps):
        return Drop.SAMPLED_TOO_LONG
    sizes = _observation_sizes(ledger, trajectory)
    level = _level(list(sizes.values()), excess=len(ledger) - max_tokens)
    # The length of a shortened text is known only after it is tokenised again, so this takes a few rounds.
    while level is not None and level >= KEPT_OF_AN_OBSERVATION:
        tall = {step for step, size in sizes.items() if size > level}
        steps = [
            _cut_middle(step, tokenizer, profile, level) if index in tall else step
            for index, step in enumerate(trajectory.steps)
        ]
        shorter = trajectory.model_copy(update={"steps": tuple(steps)})
        fitted = ledger_of(shorter, tokenizer, profile)
        over = len(fitted) - max_tokens
        if over <= 0:
            return shorter, fitted.to_sample(_agents(shorter))
        level -= max(-(-over // len(tall)), 4)
    return Drop.TOO_LONG


def _agents(trajectory: Trajectory) -> list[str]:
    return [step.agent for step in trajectory.steps]


def _observation_sizes(ledger: Ledger, trajectory: Trajectory) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for span in ledger.spans:
        if span.step >= 0 and trajectory.steps[span.step].agent == OBSERVATION and span.author is Author.ENVIRONMENT:
            sizes[span.step] = sizes.get(span.step, 0) + len(span.ids)
    return sizes


def _level(sizes: Sequence[int], *, excess: int) -> int | None:
    """The length to which the longest must be cut to save `excess` tokens; None if that is below what must be kept."""
    tall = sorted(sizes, reverse=True)
    for count in range(1, len(tall) + 1):
        below = tall[count] if count < len(tall) else 0
        level = (sum(tall[:count]) - excess) // count
        if level >= below:
            return level if level >= KEPT_OF_AN_OBSERVATION else None
    return None


def _cut_middle(step: Step, tokenizer: Tokenizer, profile: Profile, keep: int) -> Step:
    """Tokens are counted in the text as it is written, neutralised; what is cut and kept is the readable text."""

    def count(text: str) -> int:
        return len(tokenizer.encode([neutralise(text, profile)])[0])

    text = shorten(step.text, keep - _TAGS, count=count)
    if text is step.text:
        return step
    meta = FrozenDict({**step.meta, "cut_characters": omitted(text)})
    return step.model_copy(update={"text": text, "surface": None, "meta": meta})
