"""Pieces of rows, and which numbers of processes can share one. That they train the same is tested with processes."""

from __future__ import annotations

import pytest
import torch

from coa.errors import TrainingError
from coa.training.packing import TokenSample, to_row
from coa.training.sequence_parallel import check_sizes, piece_of


def test_pieces_have_all_tokens_and_labels_once() -> None:
    examples = [
        TokenSample(torch.arange(5), torch.tensor([0.0, 1, 1, 0, 1])),
        TokenSample(torch.arange(4), torch.ones(4)),
    ]
    row = to_row(examples, total_weight=2.0)
    pieces = [piece_of(row, number, 4) for number in range(4)]
    assert [piece["input_ids"].tolist() for piece in pieces] == [[[0, 1, 2]], [[3, 4, 0]], [[1, 2, 3]], [[0, 0, 0]]]
    assert [piece["position_ids"].tolist() for piece in pieces] == [[[0, 1, 2]], [[3, 4, 0]], [[1, 2, 3]], [[0, 1, 2]]]
    assert {piece["segments"] for piece in pieces} == {(5, 4, 3)}  # what fills up is a sample of its own
    assert [piece["where"].tolist() for piece in pieces] == [[0, 1], [0, 2], [0, 1], []]
    assert torch.cat([piece["targets"] for piece in pieces]).equal(row["targets"])  # type: ignore[arg-type]
    assert torch.cat([piece["scales"] for piece in pieces]).equal(row["scales"])  # type: ignore[arg-type]


def test_heads_and_processes_decide_how_many_may_share_a_row() -> None:
    check_sizes(4, 8, 28, 4)  # Qwen 7B
    check_sizes(4, 4, 16, 2)  # 3B: two processes have a copy of each key head
    with pytest.raises(TrainingError, match="cannot be formed from 6") as refused:
        check_sizes(4, 6, 28, 4)
    assert refused.value.hint
    with pytest.raises(TrainingError, match="cannot be divided by 8") as refused:
        check_sizes(8, 8, 28, 4)
    assert refused.value.hint == "for this model it can be 1, 2, 4, 28"
