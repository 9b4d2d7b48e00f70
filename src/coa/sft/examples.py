"""Training samples as tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coa.models.tokenizer import TextTokenizer
from coa.sft.config import SftConfig
from coa.sft.data import labelled, refuse_untrainable
from coa.training.packing import TokenSample
from coa.training.requirements import refuse_endless
from coa.trajectory import Trajectory
from coa.trajectory.sample import Tally


def to_examples(
    trajectories: Sequence[Trajectory], tokenizer: TextTokenizer, config: SftConfig, max_tokens: int, tally: Tally
) -> list[TokenSample]:
    """In the order of the trajectories. What is dropped is counted in `tally`."""
    return [
        TokenSample(
            torch.tensor(found.sample.ids, dtype=torch.int32),
            torch.tensor(found.weights, dtype=torch.float32),
            found.trajectory.task.id,
        )
        for found in labelled(trajectories, tokenizer, config, max_tokens, tally)
    ]


def refuse_unusable(tokenizer: TextTokenizer, examples: Sequence[TokenSample], tally: Tally, vocabulary: int) -> None:
    """Refuse data and tokenizers that cannot be trained on."""
    refuse_endless(tokenizer)
    highest = max((int(example.ids.max()) for example in examples), default=-1)
    refuse_untrainable(len(examples), highest, tally, vocabulary)
