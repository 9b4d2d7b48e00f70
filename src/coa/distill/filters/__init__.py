"""Progressive filters, in the paper's order: complexity, quality, reflection, correction; then length and questions.

`FILTERS` is the registry: a trajectory passes through them in this order until one drops it. Those that read the score
of the answer come after the others because a judge costs money. Duplicates are found at the end, among all that is
left. `base.py` says how a filter is written.
"""

from __future__ import annotations

from typing import Final

from coa.distill.filters.base import Dropped, Filter, FilterInput, FilterStage, Reason, calls_of, digest, lot
from coa.distill.filters.complexity import complexity
from coa.distill.filters.contamination import BenchmarkQuestions, contamination
from coa.distill.filters.correctness import SCORE, correctness
from coa.distill.filters.enrichment import copies, corrected_itself, correction, reflection
from coa.distill.filters.leakage import leakage
from coa.distill.filters.length import SHORTENED, length
from coa.distill.filters.quality import answered, forged_tags, redundancy, repetition, tool_errors, violations
from coa.distill.filters.questions import DUPLICATES

FILTERS: Final[tuple[Filter, ...]] = (
    complexity,
    answered,
    forged_tags,
    violations,
    redundancy,
    tool_errors,
    repetition,
    leakage,
    correctness,
    reflection,
    correction,
    length,
    contamination,
)
STAGES: Final[tuple[FilterStage, ...]] = (*dict.fromkeys(each.stage for each in FILTERS), DUPLICATES)
"""The rows of the funnel."""

__all__ = [
    "DUPLICATES",
    "FILTERS",
    "SCORE",
    "SHORTENED",
    "STAGES",
    "BenchmarkQuestions",
    "Dropped",
    "Filter",
    "FilterInput",
    "FilterStage",
    "Reason",
    "calls_of",
    "copies",
    "corrected_itself",
    "digest",
    "lot",
]
