"""Programs judged by their tests, in a sandbox: problems of the common shapes, comparison, verdicts."""

from coa.scoring.code.judge import Judgement, judge
from coa.scoring.code.problem import Case, Problem, problem_of, read_problem

__all__ = ["Case", "Judgement", "Problem", "judge", "problem_of", "read_problem"]
