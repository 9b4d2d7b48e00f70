"""The learning rate over a run."""

from __future__ import annotations

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def cosine(optimizer: Optimizer, *, steps: int, warmup: float) -> LambdaLR:
    """Rise linearly over the first share of the steps, then fall as a cosine to zero.

    The first update already has a rate above zero: in a run of ten updates none may be lost.
    """
    rising = math.ceil(steps * warmup)

    def factor(done: int) -> float:
        if done < rising:
            return (done + 1) / rising
        return 0.5 * (1 + math.cos(math.pi * (done - rising) / max(steps - rising, 1)))

    return LambdaLR(optimizer, factor)
