"""Every command block of README and quickstart is run, as a reader would, in a folder of its own with a tiny model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from coa.models.tokenizer import load_tokenizer
from support.documents import ROOT, Block, blocks

BROUGHT = ("configs", "examples")
"""What the commands find in a clone."""


@pytest.mark.parametrize("name", ["docs/quickstart.md", "README.md"])
def test_commands_do_what_the_page_says(name: str, tmp_path: Path) -> None:
    run = [block for block in blocks(ROOT / name) if block.is_run]
    if not run:
        pytest.skip(f"{name} has no block to run")
    for folder in BROUGHT:
        shutil.copytree(ROOT / folder, tmp_path / folder)
    done = _shell(run, tmp_path)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]


def test_the_quickstart_leaves_what_it_talks_of() -> None:
    told = "\n".join(block.text for block in blocks(ROOT / "docs" / "quickstart.md") if block.is_run)
    for command in ("run", "teach", "distill", "sft", "eval", "compare"):
        assert f"coa {command} " in told, f"{command} is no longer run"


def _shell(run: list[Block], folder: Path) -> subprocess.CompletedProcess[str]:
    """One shell for a page, since a block builds on the ones before it. The block that fails is named."""
    named = (f"trap 'echo failed in {block.place} >&2' ERR\n{block.text}" for block in run)
    script = "set -Eeuo pipefail\n" + "\n".join(named)
    environment = {**os.environ, "MODEL": str(_model(folder / "model")), "COLUMNS": "120", "NO_COLOR": "1"}
    environment["PATH"] = f"{_programs(folder / 'bin')}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def _programs(folder: Path) -> Path:
    """`coa` of the source under test, whatever else is installed."""
    folder.mkdir()
    program = folder / "coa"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m coa.cli "$@"\n')
    program.chmod(0o755)
    return folder


def _model(folder: Path) -> Path:
    """Stands in for SmolLM2: its vocabulary, so that lengths are the same, and weights that know nothing."""
    tokenizer = load_tokenizer("smollm2")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.vocabulary_size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.end_of_turn,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save(folder)
    return folder
