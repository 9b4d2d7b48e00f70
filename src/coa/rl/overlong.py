"""Soft overlong shaping: the reward falls in a line over the last stretch before the limit.

Only what the model wrote is counted. A long page that a tool returned is no fault of the model's.
"""

from __future__ import annotations


def overlong_penalty(model_tokens: int, *, limit: int, buffer: float, most: float) -> float:
    """What to add to the reward: 0 up to `limit - buffer * limit`, then down to `-most` at the limit and beyond."""
    stretch = buffer * limit
    if stretch <= 0:
        return 0.0
    over = model_tokens - (limit - stretch)
    return -most * min(max(over / stretch, 0.0), 1.0)
