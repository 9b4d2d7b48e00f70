"""What a filter is: a function that says why a trajectory is dropped, with its stage and its reasons.

    TOO_RUDE = Reason("too_rude", "These runs use rude words.", settings=("quality.rude_words=[]",))

    @filter_of(QUALITY, TOO_RUDE)
    def politeness(trajectory: Trajectory, given: FilterInput) -> Dropped | None:
        ...

A new filter is one file like that and one line in `FILTERS` in `filters/__init__.py`, which also sets their order.
Settings that it needs are a table in `distill/config.py`. The funnel, the report and the hints pick it up.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from coa.distill.config import DistillConfig
from coa.trajectory import OBSERVATION, Author, Kind, Profile, Step, Tokenizer, Trajectory
from coa.trajectory.shapes import Reading, read


@dataclass(frozen=True, slots=True)
class FilterStage:
    """A row of the funnel; several filters may share one."""

    name: str
    meaning: str
    """What a trajectory must have to pass, in a few words."""


QUALITY: Final = FilterStage("quality", "sound steps, few errors, no repetition, no leak, a right answer")


@dataclass(frozen=True, slots=True, order=True)
class Reason:
    """Why a trajectory was dropped."""

    name: str
    """The key in the report."""
    hint: str = field(compare=False)
    """What is wrong and what a user can do about it. `{traces}` stands for the paths of the traces."""
    settings: tuple[str, ...] = field(default=(), compare=False)
    """What keeps such runs, as `--set` takes it; empty where no setting should."""

    def advice(self, traces: str = "traces/") -> str:
        keep = f" To keep them: {' '.join(f'--set {shlex.quote(setting)}' for setting in self.settings)}."
        return self.hint.replace("{traces}", traces) + (keep if self.settings else "")


@dataclass(frozen=True, slots=True)
class Dropped:
    reason: Reason
    detail: str
    """What was found and where, for people."""


class QuestionOverlap(Protocol):
    """Questions to keep out of the data."""

    def share(self, question: str) -> float:
        """Which share of a question is among them."""


@dataclass(frozen=True, slots=True)
class FilterInput:
    """What filters may look at besides the trajectory."""

    profile: Profile
    config: DistillConfig
    tokenizer: Tokenizer | None = None
    """The student's; None: lengths are not measured."""
    benchmarks: QuestionOverlap | None = None
    """Questions to keep out of the data; None: nothing is compared."""


Check = Callable[[Trajectory, FilterInput], Dropped | Trajectory | None]
"""None keeps the trajectory as it is; a trajectory takes its place."""


@dataclass(frozen=True, slots=True)
class Filter:
    name: str
    stage: FilterStage
    reasons: tuple[Reason, ...]
    check: Check
    needs_score: bool = False
    """It reads the score of the answer, which is judged when the first such filter has its turn and not before."""

    def __call__(self, trajectory: Trajectory, given: FilterInput) -> Dropped | Trajectory | None:
        return self.check(trajectory, given)


def filter_of(stage: FilterStage, *reasons: Reason, needs_score: bool = False) -> Callable[[Check], Filter]:
    """Makes a filter of a function, under the function's name."""
    return lambda check: Filter(getattr(check, "__name__", "filter"), stage, reasons, check, needs_score)


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call with its answer."""

    agent: str
    arguments: str
    """Normalised, for comparison."""
    ok: bool
    step: int


def calls_of(trajectory: Trajectory, profile: Profile) -> list[Call]:
    """Tool calls in order. A call without an answer counts as failed; what was answered is a call of any name."""
    calls: list[Call] = []
    for index, step in enumerate(trajectory.steps):
        agent = profile.agents.get(step.agent)
        after = trajectory.steps[index + 1] if index + 1 < len(trajectory.steps) else None
        answered = after is not None and after.agent == OBSERVATION and after.author is Author.ENVIRONMENT
        unknown = agent is None and answered and step.agent != OBSERVATION
        if not unknown and (agent is None or agent.kind is not Kind.TOOL):
            continue
        ok = answered and after is not None and succeeded(after)
        reading = read(profile.shape(step.agent), step.text)
        values = reading.arguments.values() if isinstance(reading, Reading) else [step.text]
        normalised = " ".join(" ".join(map(str, values)).casefold().split())
        calls.append(Call(step.agent, normalised, ok, index))
    return calls


def succeeded(step: Step) -> bool:
    """What the record says; text without a record (foreign rows) is an error when it begins like one."""
    recorded = step.meta.get("ok")
    if isinstance(recorded, bool):
        return recorded
    return not step.text.lstrip().casefold().startswith(_ERRORS)


_ERRORS = ("error:", "error executing", "traceback (most recent call last)", "[error", "exception:")


def digest(trajectory: Trajectory) -> str:
    """Names a trajectory by what it says: the same wherever and in whatever order it was read."""
    state = hashlib.sha256()
    for part in (trajectory.task.id, trajectory.task.question_in_context, trajectory.profile):
        state.update(part.encode() + b"\0")
    for step in trajectory.steps:
        state.update(f"{step.agent}\0{step.author}\0".encode() + step.text.encode() + b"\0")
    return state.hexdigest()[:32]


def draw(trajectory: Trajectory, seed: int) -> float:
    """A number in [0, 1) drawn for this trajectory, whatever else is in the set."""
    drawn = hashlib.sha256(f"{seed}\0{digest(trajectory)}".encode()).digest()
    return int.from_bytes(drawn[:7], "big") / (1 << 56)
