"""Settings of distillation. The defaults are those of docs/guides/distill.md; a TOML file may change any of them.

Each filter reads its own table and nothing else, so that the funnel shows which setting dropped how many runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from coa.scoring.opening import JudgeConfig
from coa.shard import Shard
from coa.trajectory.profile import Profile
from coa.trajectory.protocol import Rule
from coa.trajectory.types import Frozen


class Complexity(Frozen):
    """Runs that are too easy teach no cooperation, and runs that go astray teach to go astray."""

    fewest_calls: int | None = Field(None, ge=0)
    """Smallest number of tool calls. None: the number in the profile (`[distill] min_tool_calls`, by default 2)."""
    most_calls: int = Field(40, ge=1)
    """Largest number of tool calls."""

    def least(self, profile: Profile) -> int:
        return profile.distill.min_tool_calls if self.fewest_calls is None else self.fewest_calls


class Quality(Frozen):
    tolerated: tuple[Rule, ...] = ()
    """Rules of the profile's protocol that a kept trajectory may break, e.g. `missing_thought`."""
    duplicate_share: float = Field(0.2, ge=0, le=1)
    """Largest share of tool calls that may repeat an earlier one."""
    same_in_a_row: int = Field(3, ge=2)
    """Number of equal calls in a row at which a run is dropped."""
    error_share: float = Field(0.3, ge=0, le=1)
    """Largest share of tool calls that may fail."""
    repeat_words: int = Field(20, ge=2)
    """Length of the word n-grams in which repetition is looked for."""
    repeat_share: float = Field(0.2, ge=0, le=1)
    """Largest share of the n-grams in the model's reasoning that may have occurred before."""
    correct_from: float = Field(1.0, gt=0)
    """Lowest score with which an answer counts as right."""
    unscored: Literal["drop", "keep"] = "drop"
    """What to do with answers that nobody could judge."""


class Reflection(Frozen):
    kept_without: float | None = Field(None, ge=0, le=1)
    """Share of the trajectories without reflection that is kept. None: the share in the profile
    (`[distill] keep_without_reflection`, by default 0.3)."""

    def share(self, profile: Profile) -> float:
        return profile.distill.keep_without_reflection if self.kept_without is None else self.kept_without


class Correction(Frozen):
    copies: int = Field(2, ge=1)
    """Number of times that a trajectory which corrected itself is written."""


class Length(Frozen):
    max_tokens: int = Field(32_768, ge=1)
    """Length limit in tokens of the student's tokenizer, prompt included. Observations are shortened first."""


class Duplicates(Frozen):
    similarity: float = Field(0.8, gt=0, le=1)
    """Jaccard similarity of the character 5-grams of two questions at which they count as near-duplicates."""
    per_question: int = Field(1, ge=1)
    """Maximum number of trajectories for one question."""


class Contamination(Frozen):
    words: int = Field(8, ge=1)
    """Length of the word n-grams that are compared with benchmark questions."""
    share: float = Field(0.5, gt=0, le=1)
    """Share of a question's n-grams that occur in benchmark questions at which the question is dropped."""


class DistillConfig(JudgeConfig):
    """Settings of `coa distill`: how to read the traces, and one table of settings for each filter."""

    profile: str = "web"
    """Profile of the trajectories, by name or .toml file."""
    tasks: Path | None = None
    """File of tasks with the right answers, for traces that have none."""
    fill: str | None = None
    """Model that writes the texts which the profile asks for and the traces lack: URL, folder or hub id."""
    fill_name: str | None = None
    """Name of that model, where its server has several."""
    roles: Path | None = None
    """TOML file that maps agents and tools of the team to those of the profile."""
    student: str | None = None
    """Tokenizer that measures the length of trajectories: a folder, a hub id or smollm2. None: it is not measured."""
    decontaminate: tuple[str, ...] = ()
    """Files of tasks and names of benchmarks whose questions are kept out of the data."""
    concurrency: int = Field(32, ge=1)
    """Number of trajectories that wait for the judge or the writing model at the same time."""
    seed: int = 0
    """Decides which trajectories are kept where a filter keeps only a share."""
    shard: Shard | None = None
    """Part of the tasks whose runs to distil, as i/n: n machines read the same traces and do 1/n to n/n. Duplicates are
    looked for within a shard."""
    complexity: Complexity = Complexity()
    quality: Quality = Quality()
    reflection: Reflection = Reflection()
    correction: Correction = Correction()
    length: Length = Length()
    duplicates: Duplicates = Duplicates()
    contamination: Contamination = Contamination()

    def filter_settings(self) -> dict[str, Any]:
        """What goes into report and card: seed, shard and tables. Shared data must not name paths of this machine."""
        tables = {name for name, field in type(self).model_fields.items() if isinstance(field.default, Frozen)}
        return self.model_dump(mode="json", include={"seed", "shard", *tables})
