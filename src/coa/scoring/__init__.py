"""How good an answer is: one signature for filter, reward and benchmark."""

from coa.scoring.agreement import Agreement, agreement, agreement_of, outcome
from coa.scoring.base import PureScorer, Scorer, Verdict, score_trajectory, verdict_of
from coa.scoring.exact import exact_match, normalise, token_f1
from coa.scoring.judge import PROMPT_HASH, JudgeScorer
from coa.scoring.math import MathScorer
from coa.scoring.registry import Means, check_scorer, register, scorer_for, scorer_names
from coa.scoring.verdicts import VerdictCache

__all__ = [
    "PROMPT_HASH", "Agreement", "JudgeScorer", "MathScorer", "Means", "PureScorer", "Scorer", "Verdict", "VerdictCache",
    "agreement", "agreement_of", "check_scorer", "exact_match", "normalise", "outcome", "register", "score_trajectory",
    "scorer_for", "scorer_names", "token_f1", "verdict_of",
]  # fmt: skip
