"""Several engines over one set of weights, each with its share of the cores and of the rows.

On a CPU a forward pass over a few dozen rows leaves half of two cores idle, because most of its products are too small
to be split. Two passes side by side use both (measured on 2 cores, tokens/s with one engine and with two: 135 and 153
at 32 rows in total, 174 and 240 at 64). A run stays with the engine that has its KV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from transformers import PreTrainedModel

from coa.models.local.engine import Engine
from coa.models.local.layout import FEW_ROWS, lay_out_for_few_rows
from coa.models.local.lean import lean
from coa.models.local.lockstep import Lockstep
from coa.models.local.request import Request
from coa.trajectory import Tokenizer

WORTHWHILE: Final = 8
"""Rows per engine below which another engine does not pay: each pass of an engine reads all weights."""


class Engines:
    """Has the interface of one engine; `submit` may be called from any thread."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Tokenizer,
        *,
        max_rows: int,
        kv_bytes: int,
        temperature: float = 1.0,
        bf16: bool = False,
    ) -> None:
        self._lean = lean(model, bf16=bf16)
        on_cpu = next(model.parameters()).device.type == "cpu"
        if self._lean is None and on_cpu and max_rows >= FEW_ROWS:
            lay_out_for_few_rows(model)
        cores = torch.get_num_threads()
        count = max(min(cores, max_rows // WORTHWHILE), 1) if on_cpu else 1
        self._all = [
            Engine(
                model, tokenizer, max_rows=-(-max_rows // count), kv_bytes=kv_bytes // count, longest_bytes=kv_bytes,
                threads=max(cores // count, 1) if count > 1 else None, lean=self._lean, temperature=temperature,
                kv_dtype=torch.float32 if bf16 and on_cpu else None,
            )
            for _ in range(count)
        ]  # fmt: skip
        self._homes: dict[int, Engine] = {}
        """Engines of the runs in lockstep, by the seeds of the runs."""

    @property
    def spellings(self) -> Sequence[bytes | None] | None:
        return self._all[0].spellings

    @property
    def longest(self) -> int:
        """Largest number of tokens of one row."""
        return self._all[0].longest

    @property
    def tokens_written(self) -> int:
        return sum(engine.tokens_written for engine in self._all)

    def submit(self, request: Request) -> None:
        self._home(request).submit(request)

    def forget(self) -> None:
        """Call this when the weights have changed or are about to, and only between requests: frees packed weights and
        KV."""
        if self._lean is not None:
            self._lean.forget()
        for engine in self._all:
            engine.forget()

    @contextmanager
    def in_step(self, runs: Iterable[int]) -> Iterator[Callable[[int], None]]:
        """The place of a run among the runs alone decides which engine it goes to."""
        named = list(runs)
        self._homes = {run: self._all[at % len(self._all)] for at, run in enumerate(named)}
        for at, engine in enumerate(self._all):
            engine.keep_step(Lockstep(named[at :: len(self._all)]))
        try:
            yield lambda run: self._homes[run].leave(run)
        finally:
            for engine in self._all:
                engine.keep_step(None)
            self._homes = {}

    def close(self) -> None:
        for engine in self._all:
            engine.close()

    def _home(self, request: Request) -> Engine:
        if len(self._all) == 1:
            return self._all[0]
        if request.sampling.seed in self._homes:
            return self._homes[request.sampling.seed]
        known = next((engine for engine in self._all if engine.remembers(request.ids)), None)
        return known or self._with_room()

    def _with_room(self) -> Engine:
        """One engine gets requests until it has as many as are worth a pass, and then the next one does: each pass of
        an engine reads all weights, so the same few rows in two engines cost almost twice."""
        loads = [engine.load for engine in self._all]
        filling = [load for load in loads if load < WORTHWHILE]
        return self._all[loads.index(max(filling) if filling else min(loads))]
