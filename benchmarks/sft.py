"""SFT: trained tokens/s and peak memory beside TRL's SFTTrainer with its defaults, on the same samples and weights.

Each side runs in a process of its own, so that its peak memory is its own. TRL's default of bf16 is off here: on a CPU
without units for it, it is forty times slower and would make the comparison worthless.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

SIZES: Final = {512: (4, 3), 4096: (1, 2)}
"""Longest sample -> samples an update, updates."""
LABELS: Final = 0.45
"""Share of tokens with a label, as in trajectories with tool output."""


def main() -> None:
    if len(sys.argv) > 1:
        side, length = sys.argv[1], int(sys.argv[2])
        print(json.dumps({"ours": _ours, "trl": _trl}[side](length)))
        return
    print("SFT of SmolLM2-135M, full, fp32: trained tokens/s and peak memory")
    for length in SIZES:
        found = {side: _measured(side, length) for side in ("trl", "ours")}
        for side, (rate, peak) in found.items():
            name = "TRL SFTTrainer" if side == "trl" else "coa sft"
            print(f"  up to {length:>4} tokens  {name:<14}  {rate:7.1f} trained tokens/s  {peak:5.2f} GB")
        (theirs, their_peak), (ours, our_peak) = found["trl"], found["ours"]
        print(f"  up to {length:>4} tokens  speed {ours / theirs:.2f} x, peak memory {our_peak / their_peak:.2f} x")
    print("  goals: 1.4 x at 512 tokens; 0.6 x the memory at 4096")


def _measured(side: str, length: int) -> tuple[float, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.sft", side, str(length)],
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("COA_BENCH_VERBOSE") else subprocess.DEVNULL,
        text=True,
        check=True,
        env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "TRANSFORMERS_VERBOSITY": "error"},
    )
    rate, peak = json.loads(done.stdout.splitlines()[-1])
    return rate, peak


def samples(length: int) -> list[tuple[list[int], list[bool]]]:
    """Ids and masks: alternating stretches by environment and model, lengths from half the limit up to it."""
    rng = random.Random(length)
    batch, updates = SIZES[length]
    made = []
    for number in range(batch * updates):
        size = length if number % batch == 0 else rng.randint(length // 2, length)
        ids = [rng.randrange(1000, 40_000) for _ in range(size)]
        mask = [False] * (size // 10)
        while len(mask) < size:
            trained = bool(mask) and not mask[-1]
            mean = 60 * (LABELS if trained else 1 - LABELS)
            mask += [trained] * max(round(rng.expovariate(1 / mean)), 1)
        made.append((ids, mask[:size]))
    return made


def _result(labels: list[int], seconds: list[float]) -> tuple[float, float]:
    """The best update but the first, which warms up; peak memory in GB."""
    rates = [count / spent for count, spent in zip(labels, seconds, strict=True)]
    return max(rates[1:]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def _ours(length: int) -> tuple[float, float]:
    import torch

    from coa.sft.config import SftConfig
    from coa.sft.trainer import RowTrainer, arguments
    from coa.sft.updates import HeldOut, UpdatePlan
    from coa.training.packed_model import take_rows
    from coa.training.packing import TokenSample
    from coa.training.weights import open_trained

    batch, updates = SIZES[length]
    long = length > 1024
    config = SftConfig(
        batch_size=batch, max_steps=updates, max_length=length, gradient_checkpointing=long, report_to=()
    )
    examples = [TokenSample(torch.tensor(ids), torch.tensor(mask).float()) for ids, mask in samples(length)]
    _, model, _ = open_trained("smollm2", None, dtype=torch.float32, device="cpu")
    take_rows(model)
    plan = UpdatePlan([examples], config)
    with tempfile.TemporaryDirectory() as out:
        args = arguments(config, Path(out), plan, looks=0, bf16=False, resumed=False)
        args.save_strategy = "no"
        trainer = RowTrainer(model, args, plan, HeldOut([], length), config, agent_eval=None, callbacks=[])
        trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    labels = [int(row["label_tokens"]) for row in rows]
    return _result(labels, [row["label_tokens"] / row["label_tokens_per_s"] for row in rows])


def _trl(length: int) -> tuple[float, float]:
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    from coa.models.local.model import load_weights

    class Times(TrainerCallback):
        def __init__(self) -> None:
            self.began, self.seconds = 0.0, list[float]()

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.seconds.append(time.perf_counter() - self.began)

    batch, updates = SIZES[length]
    made = samples(length)
    model, tokenizer = load_weights("smollm2", device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(Path(folder))
        theirs = AutoTokenizer.from_pretrained(folder)
        theirs.pad_token = theirs.eos_token
        rows = [
            {"input_ids": ids, "labels": [i if m else -100 for i, m in zip(ids, mask, strict=True)]}
            for ids, mask in made
        ]
        args = SFTConfig(
            output_dir=folder,
            bf16=False,
            max_length=length,
            per_device_train_batch_size=batch,
            max_steps=updates,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        times = Times()
        trainer = SFTTrainer(
            model=model, args=args, train_dataset=Dataset.from_list(rows), processing_class=theirs, callbacks=[times]
        )
        seen: list[int] = []
        step: Any = trainer.training_step

        def counted(model: Any, inputs: Any, *rest: Any) -> Any:
            seen.append(int((inputs["labels"][:, 1:] != -100).sum()))
            return step(model, inputs, *rest)

        trainer.training_step = counted  # type: ignore[method-assign]
        trainer.train()
    return _result(seen, times.seconds)


if __name__ == "__main__":
    main()
