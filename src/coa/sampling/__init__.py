"""Query sampling: keep the tasks that RL can learn from: not too easy, not hopeless, not solved without tools."""

from coa.sampling.config import SampleConfig
from coa.sampling.outcomes import Sampled
from coa.sampling.stage import SampleReport, sample

__all__ = ["SampleConfig", "SampleReport", "Sampled", "sample"]
