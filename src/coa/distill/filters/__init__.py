"""Progressive filters, in the paper's order: complexity, quality, reflection, correction; then length and questions.

`STAGES` are those that need nothing but the trajectory, its profile and the settings. The judged answer comes last in
quality because a judge costs money and the others do not. Length needs the student's tokenizer, contamination the
benchmarks, and duplicates all the other questions.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from coa.distill.filters.base import Call, Dropped, Filter, Reason, calls_of, digest, lot
from coa.distill.filters.complexity import complexity
from coa.distill.filters.contamination import Benchmarks, contamination
from coa.distill.filters.correctness import SCORE, correctness
from coa.distill.filters.enrichment import copies, corrected_itself, reflection
from coa.distill.filters.leakage import leakage
from coa.distill.filters.length import fitted
from coa.distill.filters.quality import answered, forged_tags, redundancy, repetition, tool_errors, violations


class Stage(StrEnum):
    COMPLEXITY = "complexity"
    QUALITY = "quality"
    REFLECTION = "reflection"
    CORRECTION = "correction"
    LENGTH = "length"
    CONTAMINATION = "contamination"
    DUPLICATES = "duplicates"


BEFORE_JUDGING: Final[tuple[tuple[Stage, Filter], ...]] = (
    (Stage.COMPLEXITY, complexity),
    (Stage.QUALITY, answered),
    (Stage.QUALITY, forged_tags),
    (Stage.QUALITY, violations),
    (Stage.QUALITY, redundancy),
    (Stage.QUALITY, tool_errors),
    (Stage.QUALITY, repetition),
    (Stage.QUALITY, leakage),
)
AFTER_JUDGING: Final[tuple[tuple[Stage, Filter], ...]] = (
    (Stage.QUALITY, correctness),
    (Stage.REFLECTION, reflection),
)

__all__ = [
    "AFTER_JUDGING",
    "BEFORE_JUDGING",
    "SCORE",
    "Benchmarks",
    "Call",
    "Dropped",
    "Filter",
    "Reason",
    "Stage",
    "answered",
    "calls_of",
    "complexity",
    "contamination",
    "copies",
    "corrected_itself",
    "correctness",
    "digest",
    "fitted",
    "forged_tags",
    "leakage",
    "lot",
    "redundancy",
    "reflection",
    "repetition",
    "tool_errors",
    "violations",
]
