"""The rows of a run as torch data sets: those of the updates, in their order, and those that are held out.

`schedule.py` decides which samples make which update; packing only divides an update's samples into rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset

from coa.sft.config import SftConfig
from coa.sft.schedule import Update, schedule
from coa.training.packing import TokenSample, to_row
from coa.training.rows import balanced, rows_needed
from coa.training.sequence_parallel import piece_of


class UpdatePlan(Dataset[dict[str, Any]]):
    """All rows of a run, in order. Every update has the same number of rows.

    With sequence parallelism the pieces of a row come one after another, so that the processes of a group, which have
    numbers one after another, get those of one row.
    """

    def __init__(self, pools: Sequence[Sequence[TokenSample]], config: SftConfig, *, processes: int = 1) -> None:
        self.pools, self._pieces = pools, config.sequence_parallel_size
        groups = processes // self._pieces
        found = schedule([[len(example) for example in pool] for pool in pools], config, processes=groups)
        self.updates, self.rows_per_update = found.updates, found.rows_per_update

    def end_after(self, updates: int) -> None:
        """Drop the updates after this number."""
        del self.updates[updates:]

    def examples(self, update: Update) -> list[TokenSample]:
        return [self.pools[update.phase][index] for index in update.samples]

    def __len__(self) -> int:
        return len(self.updates) * self.rows_per_update * self._pieces

    def __getitem__(self, index: int) -> dict[str, Any]:
        index, piece = divmod(index, self._pieces)
        number, row = divmod(index, self.rows_per_update)
        examples = self.examples(self.updates[number])
        rows = balanced([len(example) for example in examples], self.rows_per_update)
        total = sum(example.weight for example in examples)
        return _piece(to_row([examples[at] for at in rows[row]], total_weight=total), piece, self._pieces)


class HeldOut(Dataset[dict[str, Any]]):
    """Rows of held-out samples. The mean of their losses is the mean over all their labels."""

    def __init__(self, examples: Sequence[TokenSample], max_tokens: int, *, pieces: int = 1) -> None:
        self._pieces = pieces
        lengths = [len(example) for example in examples]
        parts = balanced(lengths, rows_needed(lengths, max_tokens)) if examples else []
        self._rows = [[examples[at] for at in part] for part in parts]
        self._total = sum(example.weight for example in examples)

    def __len__(self) -> int:
        return len(self._rows) * self._pieces

    def __getitem__(self, index: int) -> dict[str, Any]:
        row, piece = divmod(index, self._pieces)
        return _piece(to_row(self._rows[row], total_weight=self._total / len(self)), piece, self._pieces)


def _piece(row: dict[str, Any], number: int, pieces: int) -> dict[str, Any]:
    return row if pieces == 1 else piece_of(row, number, pieces)
