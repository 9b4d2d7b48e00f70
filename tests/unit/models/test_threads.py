"""Engines that share the cores keep to their share, whatever the rest of the process does."""

from __future__ import annotations

import threading
from pathlib import Path

import torch

from coa.models.local.engines import Engines
from coa.models.local.model import load_weights
from support.words import word_model


def test_an_engine_of_several_uses_its_share_and_the_process_all_cores(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    model, tokenizer = load_weights(str(word_model(tmp_path / "words")), dtype=torch.float32, device="cpu")
    engines = Engines(model, tokenizer, max_rows=32, kv_bytes=1 << 24)
    try:
        used, asked = list[int](), threading.Barrier(3)

        def look() -> None:
            torch.ones(100_000).add_(1)
            used.append(torch.get_num_threads())
            asked.wait(60)

        for engine in engines._all:
            engine._do(look)
        asked.wait(60)
        assert used == [1, 1]
        assert torch.get_num_threads() == 2
    finally:
        engines.close()
        torch.set_num_threads(before)
