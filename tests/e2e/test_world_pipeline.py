"""From a world to a trained model, through the command line: build, teach, distil, fine-tune, ask."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from support.commands import coa, save_tiny_model
from support.worlds import SMALL


def test_a_world_teaches_a_model(tmp_path: Path) -> None:
    world, traces, data, model = (tmp_path / name for name in ("world", "traces", "data", "model"))
    sizes = [part for name, size in asdict(SMALL).items() for part in (f"--{name}", size)]
    coa("world", "build", "--out", world, "--seed", 7, *sizes)
    taught = coa("teach", world / "tasks" / "train.jsonl", "--team", "world", "--world", world, "--out", traces,
                 "--jobs", 2, "--limit", 6)  # fmt: skip
    assert "6 answered" in taught
    coa("distill", traces, "--profile", "atlas", "--config", "configs/distill/atlas.toml", "--out", data)
    save_tiny_model(model)
    out = tmp_path / "sft"
    coa("sft", "--model", model, "--data", data, "--out", out, "--world", world,
        "--tasks", world / "tasks" / "test.jsonl", "--init-eval", 1, "--set", "max_steps=2", "--set", "batch_size=2",
        "--set", "max_length=4096",
        "--set", 'report_to=[]', "--json")  # fmt: skip
    evaluated = [path for path in out.rglob("trajectories.jsonl")]
    assert evaluated
    run = json.loads(evaluated[0].read_text().splitlines()[0])
    assert run["profile"] == "atlas" and run["task"]["meta"]["split"] == "test"
