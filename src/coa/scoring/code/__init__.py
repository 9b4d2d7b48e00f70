"""Programs judged by their tests, in a sandbox: problems of the common shapes, comparison, verdicts."""

from coa.scoring.code.compare import Comparison, same_output, same_value
from coa.scoring.code.judge import Judgement, TestResult, judge
from coa.scoring.code.problem import Case, Problem, problem_of, read_problem

__all__ = [
    "Case",
    "Comparison",
    "Judgement",
    "Problem",
    "TestResult",
    "judge",
    "problem_of",
    "read_problem",
    "same_output",
    "same_value",
]
