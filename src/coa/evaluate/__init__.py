"""Evaluate: run benchmarks, score the answers, report success with intervals and what it cost.

report = coa.evaluate(coa.EvalConfig(benchmarks=["math500"], run=coa.RunConfig(model="nano")), out="runs/e1")
"""

import sys

from coa.evaluate.config import EvalConfig
from coa.evaluate.dry_run import EvalPlan, plan
from coa.evaluate.evaluation import evaluate, read_evaluation
from coa.evaluate.merge import merge
from coa.evaluate.report import BenchmarkReport, Evaluation
from coa.evaluate.rescore import ScoreSummary, score
from coa.stage import Stage

__all__ = [
    "BenchmarkReport", "EvalConfig", "EvalPlan", "Evaluation", "ScoreSummary", "evaluate", "merge", "plan",
    "read_evaluation", "score",
]  # fmt: skip

sys.modules[__name__].__class__ = Stage
