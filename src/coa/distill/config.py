"""Settings of distillation. The defaults are those of docs/distill.md; a TOML file may change any of them.

Each filter reads its own table and nothing else, so that a funnel says which setting cost what.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from coa.errors import CoaError
from coa.training.settings import apply_setting
from coa.trajectory.profile import Profile
from coa.trajectory.protocol import Rule
from coa.trajectory.types import Frozen


class Complexity(Frozen):
    """Runs that are too easy teach no cooperation; runs that wander teach wandering."""

    fewest_calls: int | None = Field(None, ge=0)
    """None: what the profile says (`[distill] min_tool_calls`; 2 where it says nothing)."""
    most_calls: int = Field(40, ge=1)

    def least(self, profile: Profile) -> int:
        return profile.distill.min_tool_calls if self.fewest_calls is None else self.fewest_calls


class Quality(Frozen):
    tolerated: tuple[Rule, ...] = ()
    """Rules of the profile's protocol that a kept trajectory may break, e.g. `missing_thought`."""
    duplicate_share: float = Field(0.2, ge=0, le=1)
    """Of the tool calls, how many may repeat an earlier one."""
    same_in_a_row: int = Field(3, ge=2)
    """So many equal calls one after another are too many."""
    error_share: float = Field(0.3, ge=0, le=1)
    repeat_words: int = Field(20, ge=2)
    repeat_share: float = Field(0.2, ge=0, le=1)
    """Of the runs of `repeat_words` words in what the model reasons, how many may have been there before."""
    correct_from: float = Field(1.0, gt=0)
    unscored: Literal["drop", "keep"] = "drop"
    """What to do with answers that nobody could judge."""


class Reflection(Frozen):
    kept_without: float | None = Field(None, ge=0, le=1)
    """Share of the trajectories without reflection that stays. None: what the profile says
    (`[distill] keep_without_reflection`; 0.3 where it says nothing)."""

    def share(self, profile: Profile) -> float:
        return profile.distill.keep_without_reflection if self.kept_without is None else self.kept_without


class Correction(Frozen):
    copies: int = Field(2, ge=1)
    """How often a trajectory that corrected itself is written."""


class Length(Frozen):
    max_tokens: int = Field(32_768, ge=1)
    """Of the student's tokenizer, prompt included. Observations are cut first."""


class Duplicates(Frozen):
    similarity: float = Field(0.8, gt=0, le=1)
    """Jaccard similarity of the questions' five-character pieces from which on they count as one."""
    per_question: int = Field(1, ge=1)
    """How many trajectories one question may bring."""


class Contamination(Frozen):
    words: int = Field(8, ge=1)
    share: float = Field(0.5, gt=0, le=1)
    """Of a question's runs of `words` words, how many must be in benchmark questions to call it one of them."""


class DistillConfig(Frozen):
    seed: int = 0
    complexity: Complexity = Complexity()
    quality: Quality = Quality()
    reflection: Reflection = Reflection()
    correction: Correction = Correction()
    length: Length = Length()
    duplicates: Duplicates = Duplicates()
    contamination: Contamination = Contamination()


class ConfigError(CoaError):
    """A configuration file that cannot be read or obeyed."""


def load_config(path: str | Path | None, settings: Sequence[str] = ()) -> DistillConfig:
    """From a TOML file, then what `--set table.key=value` says."""
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8")) if path is not None else {}
        for setting in settings:
            apply_setting(data, setting)
        return DistillConfig.model_validate(data)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"{path or 'the settings'}: {where}: {first['msg']}",
            hint=f"the tables are {', '.join(DistillConfig.model_fields)}",
        ) from error
