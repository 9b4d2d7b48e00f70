"""Soft overlong shaping, as in DAPO: the reward falls linearly over the last tokens before the limit.

Only tokens that the model wrote count. A long page that a tool returned is not the model's fault.
"""

from __future__ import annotations


def overlong_penalty(model_tokens: int, *, limit: int, buffer: float, most: float) -> float:
    """The number to add to the reward: 0 up to `limit - buffer * limit` tokens, then falling to `-most` at it."""
    stretch = buffer * limit
    if stretch <= 0:
        return 0.0
    over = model_tokens - (limit - stretch)
    return -most * min(max(over / stretch, 0.0), 1.0)
