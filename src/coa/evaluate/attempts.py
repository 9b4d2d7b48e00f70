"""What an evaluation remembers of a run once it is scored: enough for every table, without the text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from coa.errors import ProfileError
from coa.runtime.best_of import SELECTED, own_score
from coa.trajectory import CUT_SHORT, Author, Stop, Trajectory, Usage, profile_of

GROUPS: Final = (
    "level", "Level", "difficulty", "difficulty_level", "topic", "category", "family", "hops", "type", "subject",
    "platform", "data_source", "benchmark",
)  # fmt: skip
"""Keys of a task's meta by which results are broken down where a benchmark names none."""
SELECTED_AMONG: Final = "selected_among"
"""Key of a trajectory's meta, beside `SELECTED`: the number of answers among which it was chosen. A choice among fewer
answers than there are by now does not count."""


@dataclass(frozen=True, slots=True)
class Attempt:
    task: str
    sample: int = 0
    value: float | None = None
    """The value that the deciding scorer gave; None if the attempt failed or is unscored."""
    answer: str | None = None
    stop: Stop = Stop.ANSWERED
    usage: Usage = field(default_factory=Usage)
    written: Mapping[str, int] = field(default_factory=dict)
    """Tokens written by each agent."""
    shared_out: bool = False
    """Whether the server reported only the sum of `written`, which is then split in proportion to the texts' length."""
    repairs: int = 0
    own_score: int = 0
    """The score that the run's last double check gave its answer."""
    selected: str | None = None
    selected_among: int = 0
    """Number of answers among which it was chosen."""
    scores: Mapping[str, float | None] = field(default_factory=dict)
    """The values of all scorers."""
    meta: Mapping[str, str] = field(default_factory=dict)
    """The short values of the task's meta."""
    program: bool = False
    """Whether the answer is a program. No two are alike, so there is no majority among them."""
    sequence_tokens: int | None = None
    """Length of the whole trajectory, where a tokenizer counted it."""
    unmetered_calls: int = 0
    """Number of model calls whose tokens were not reported; if there are any, the token counts are lower bounds."""
    why_unscored: str = ""
    """Why the deciding scorer gave no value."""

    @property
    def key(self) -> tuple[str, int]:
        return self.task, self.sample

    @property
    def answered(self) -> bool:
        return bool(self.answer and self.answer.strip())

    @property
    def failed(self) -> bool:
        """Whether it failed, was interrupted or still waits for the client before there was an answer."""
        return self.answer is None and self.stop in CUT_SHORT

    @property
    def unscored(self) -> bool:
        """Whether it ended, but no scorer could judge it."""
        return self.value is None and not self.failed

    @property
    def counted(self) -> float:
        """The value for means over all attempts: an attempt that failed or has no verdict is not a success."""
        return self.value if self.value is not None else 0.0

    @property
    def right(self) -> bool:
        return self.value is not None and self.value >= 1


def attempt_of(trajectory: Trajectory, scorer: str | None) -> Attempt:
    """`scorer` names the entry of `scores` that decides; None takes the only entry."""
    values = {name: score.value for name, score in trajectory.scores.items()}
    if scorer is None and len(values) == 1:
        scorer = next(iter(values))
    written, shared_out = written_by(trajectory)
    return Attempt(
        task=trajectory.task.id,
        sample=trajectory.sample,
        value=values.get(scorer) if scorer is not None else None,
        answer=trajectory.answer,
        stop=trajectory.stop,
        usage=trajectory.usage,
        written=written,
        shared_out=shared_out,
        repairs=sum(len(step.repairs) for step in trajectory.steps),
        own_score=_own_score(trajectory),
        selected=str(chosen) if (chosen := trajectory.meta.get(SELECTED)) else None,
        selected_among=among if isinstance(among := trajectory.meta.get(SELECTED_AMONG), int) else 0,
        scores=values,
        why_unscored=found.reason if (found := trajectory.scores.get(scorer or "")) and found.value is None else "",
        meta=short_meta(trajectory.task.meta),
        program=trajectory.task.tests is not None,
        unmetered_calls=_unmetered(trajectory),
    )


def _unmetered(trajectory: Trajectory) -> int:
    """Number of stretches that a model wrote, if no tokens were reported, as in rows from other programs; else 0."""
    if trajectory.usage.total_tokens:
        return 0
    authors = [step.author for step in trajectory.steps]
    return sum(
        mine is Author.MODEL and before is not Author.MODEL
        for before, mine in zip([None, *authors], authors, strict=False)
    )


def _own_score(trajectory: Trajectory) -> int:
    try:
        return own_score(trajectory, profile_of(trajectory))
    except ProfileError:  # an old file whose profile is gone, or a run that broke because there is no such profile
        return 0


def written_by(trajectory: Trajectory) -> tuple[dict[str, int], bool]:
    """Tokens of each agent: as sampled, or the server's sum split by characters (the second value is then true)."""
    sampled: dict[str, int] = {}
    characters: dict[str, int] = {}
    exact = True
    for step in trajectory.steps:
        if step.author is Author.MODEL:
            agent = step.agent
            characters[agent] = characters.get(agent, 0) + len(step.surface or step.text) + 1
            if step.tokens is None:
                exact = False
            elif exact:
                sampled[agent] = sampled.get(agent, 0) + len(step.tokens.ids)
    return (sampled, False) if exact else (shared(trajectory.usage.completion_tokens, characters), True)


def shared(total: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """A whole number split in proportion to the sizes; what rounding leaves over goes to the largest remainders."""
    whole = sum(sizes.values())
    if not whole:
        return {}
    parts = {name: total * size // whole for name, size in sizes.items()}
    left = sorted(sizes, key=lambda name: (-(total * sizes[name] % whole), name))
    for name in left[: total - sum(parts.values())]:
        parts[name] += 1
    return parts


def short_meta(meta: Mapping[str, object]) -> dict[str, str]:
    """What results can be broken down by: short texts and numbers, also those one level below (`info`)."""
    found: dict[str, str] = {}
    for key, value in meta.items():
        if isinstance(value, Mapping):
            found |= {inner: str(part) for inner, part in value.items() if inner not in meta and _is_short(part)}
        elif _is_short(value):
            found[key] = str(value)
    return found


def _is_short(value: object) -> bool:
    return isinstance(value, int | float | str) and 0 < len(str(value)) <= 60


def by_task(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Attempts by task, sorted; of several attempts with the same key the first one counts."""
    found: dict[tuple[str, int], Attempt] = {}
    for attempt in attempts:
        found.setdefault(attempt.key, attempt)
    tasks: dict[str, list[Attempt]] = {}
    for key in sorted(found):
        tasks.setdefault(key[0], []).append(found[key])
    return tasks


def unscored_warning(tasks: Iterable[tuple[str, Sequence[Attempt]]], scorer: str) -> str:
    """Says at which tasks the scorer gave no verdict on any attempt, with one reason; empty if there are none."""
    ended = silent = 0
    first: Attempt | None = None
    for _, listed in tasks:
        kept = [attempt for attempt in listed if not attempt.failed]
        ended += bool(kept)
        if kept and all(attempt.unscored for attempt in kept):
            silent += 1
            first = first or kept[0]
    if first is None:
        return ""
    where = "any attempt" if silent == ended else f"any attempt at {silent:,} of {ended:,} tasks"
    return f"the scorer {scorer} gave no verdict on {where}; task {first.task}: {first.why_unscored or 'no reason'}"
