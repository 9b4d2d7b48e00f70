"""Compare: evaluations, team traces and files of trajectories beside each other, on the same tasks.

comparison = coa.compare(["runs/a", "runs/b"])
print(comparison.runs[0].name, comparison.runs[0].pass_at_1, comparison.pairs[0].success)
"""

import sys

from coa.compare.stage import ComparedPair, Comparison, RunFigures, compare
from coa.stage import Stage

__all__ = ["ComparedPair", "Comparison", "RunFigures", "compare"]

sys.modules[__name__].__class__ = Stage
