"""The command line as a user types it, and a model folder small enough to train in a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.tiny import tiny_model
from support.tokenizers import TEMPLATE

ROOT = Path(__file__).parents[2]


def coa(*arguments: object) -> str:
    command = [sys.executable, "-m", "coa.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def save_tiny_model(folder: Path) -> None:
    model, tokenizer = tiny_model()
    model.save_pretrained(folder)
    tokenizer._whole.save(str(folder / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
