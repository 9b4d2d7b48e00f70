"""Progressive filters, in the paper's order: complexity, quality, reflection, correction; then length and questions.

`FILTERS` is the registry: a trajectory passes through them in this order until one drops it. Those that read the score
of the answer come after the others because a judge costs money. Duplicates are found at the end, among all that is
left. `base.py` says how a filter is written.
"""

from __future__ import annotations

from typing import Final

from coa.distill.filters import quality
from coa.distill.filters.base import Filter, FilterStage
from coa.distill.filters.complexity import complexity
from coa.distill.filters.contamination import contamination
from coa.distill.filters.enrichment import correction, reflection
from coa.distill.filters.length import length
from coa.distill.filters.questions import DUPLICATES
from coa.distill.filters.rules import violations

FILTERS: Final[tuple[Filter, ...]] = (
    complexity,
    quality.answered, quality.forged_tags, violations, quality.redundancy, quality.tool_errors,
    quality.repetition, quality.leakage, quality.correctness,
    reflection, correction,
    length,
    contamination,
)  # fmt: skip
STAGES: Final[tuple[FilterStage, ...]] = (*dict.fromkeys(each.stage for each in FILTERS), DUPLICATES)
"""The rows of the funnel."""
