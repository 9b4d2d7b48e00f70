"""What the student can read: longer trajectories lose text from their observations, and go if that is not enough."""

from __future__ import annotations

from coa.distill.config import DistillConfig
from coa.distill.filters.base import Dropped, Reason
from coa.trajectory import Drop, Profile, Tokenizer, Trajectory, fit


def fitted(
    trajectory: Trajectory, profile: Profile, config: DistillConfig, tokenizer: Tokenizer
) -> Trajectory | Dropped:
    found = fit(trajectory, tokenizer, profile, max_tokens=config.length.max_tokens)
    if isinstance(found, Drop):
        limit = f"at most {config.length.max_tokens} tokens are allowed"
        return Dropped(Reason.TOO_LONG, f"{found}; {limit}")
    return found[0]
