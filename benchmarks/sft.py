"""SFT: trained tokens/s and peak memory compared with TRL's SFTTrainer at its defaults, on equal samples and weights.

Each side runs in a process of its own, so that its peak memory is its own; the sides take turns, and the best update of
all rounds counts. Speeds are given by the clock and by CPU seconds, which other load on the machine falsifies less.
Both sides run in fp32, and in bf16, too, where the CPU has units for it: without them, TRL's default of bf16 is forty
times slower and would make the comparison worthless. The share of the limit is the least CPU time of an update's
multiplications, at the speed that is measured in the same process, by the CPU time it took.
`python -m benchmarks.sft 512 --rounds 1` measures one length of sample, once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.limits import GEMM, measure_limits
from benchmarks.results import SHARE, Figure, save
from coa.models.precision import cpu_has_bf16

NAMES: Final = {
    "trl-fp32": "TRL SFTTrainer, fp32",
    "fp32": "coa sft, fp32",
    "trl-bf16": "TRL SFTTrainer, bf16",
    "bf16": "coa sft, bf16",
}
SIZES: Final = {512: (4, 3), 4096: (1, 2)}
"""Longest sample -> samples an update, updates."""
LABELS: Final = 0.45
"""Share of tokens with a label, as in trajectories with tool output."""
ROUNDS: Final = 2
SPEED: Final = {512: "at least 1.4"}
MEMORY: Final = {4096: "at most 0.6"}
MEMORY_BF16: Final = {4096: "at most 0.35"}


class Measured(NamedTuple):
    rate: float
    """Trained tokens per second."""
    cpu_rate: float
    """Trained tokens per CPU second."""
    peak: float
    """GB."""
    share: float
    """Of the limit; 0 for TRL, whose update does not differ in what has to be multiplied."""

    def better(self, other: Measured) -> Measured:
        """The best of both in each respect but memory, of which a round may need more than another."""
        return Measured(*map(max, self, other))


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in NAMES:
        side, length = sys.argv[1], int(sys.argv[2])
        bf16 = side.endswith("bf16")
        print(json.dumps(_trl(length, bf16=bf16) if side.startswith("trl") else _ours(length, bf16=bf16)))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lengths", type=int, nargs="*", help="512 or 4096; by default both")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    lengths = given.lengths or [*SIZES]
    if wrong := [length for length in lengths if length not in SIZES]:
        parser.error(f"there is no measurement for {wrong[0]} tokens: choose from {', '.join(map(str, SIZES))}")
    print("SFT of SmolLM2-135M, full: trained tokens/s and peak memory")
    sides = [side for side in NAMES if cpu_has_bf16() or not side.endswith("bf16")]
    figures = list[Figure]()
    for length in lengths:
        found = {side: Measured(0.0, 0.0, 0.0, 0.0) for side in sides}
        for _ in range(given.rounds):
            for side, best in found.items():
                found[side] = best.better(_measured(side, length))
        for side in sides:
            rate, cpu_rate, peak, share = found[side]
            limit = f"   {share:.2f} of the limit" if share else ""
            print(
                f"  up to {length:>4} tokens  {NAMES[side]:<20}  {rate:7.1f} trained tokens/s, {cpu_rate:7.1f} a CPU "
                f"second  {peak:5.2f} GB{limit}"
            )
        figures += _figures(f"up to {length:,} tokens", length, found)
        save("sft", " ".join(["python -m benchmarks.sft", *sys.argv[1:]]), figures)
    for figure in figures:
        print(f"  {figure.what}: {figure.value:.2f} {figure.unit} {figure.beside} {figure.goal}")


def _figures(what: str, length: int, found: Mapping[str, Measured]) -> list[Figure]:
    made, in_fp32, trl = list[Figure](), found["fp32"], found["trl-fp32"]
    for side in ("fp32", "bf16"):
        if (ours := found.get(side)) is None:
            continue
        made.append(Figure(f"{what}, {side}", ours.rate, "trained tokens/s"))
        for peer in ("trl-fp32", "trl-bf16") if side == "bf16" else ("trl-fp32",):
            theirs, name = found[peer], NAMES[peer]
            wanted = SPEED.get(length, "") if side == "fp32" else ""
            made += [
                Figure(f"{what}, {side}: speed", ours.rate / theirs.rate, beside=name, goal=wanted),
                Figure(f"{what}, {side}: speed by CPU seconds", ours.cpu_rate / theirs.cpu_rate, beside=name),
            ]
        memory = (MEMORY if side == "fp32" else MEMORY_BF16).get(length, "")
        made.append(Figure(f"{what}, {side}: peak memory", ours.peak / trl.peak, beside=NAMES["trl-fp32"], goal=memory))
        if side == "bf16":
            theirs, name = found["trl-bf16"], NAMES["trl-bf16"]
            gain, by_cpu = ours.rate / in_fp32.rate, ours.cpu_rate / in_fp32.cpu_rate
            made += [
                Figure(f"{what}, {side}: peak memory", ours.peak / theirs.peak, beside=name),
                Figure(f"{what}, {side}: speed", gain, beside="coa sft in fp32", goal="at least 1.3"),
                Figure(f"{what}, {side}: speed by CPU seconds", by_cpu, beside="coa sft in fp32"),
            ]
        made.append(Figure(f"{what}, {side}{SHARE}", ours.share, beside=GEMM))
    return made


def _measured(side: str, length: int) -> Measured:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.sft", side, str(length)],
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("COA_BENCH_VERBOSE") else subprocess.DEVNULL,
        text=True,
        check=True,
        env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "TRANSFORMERS_VERBOSITY": "error"},
    )
    return Measured(*json.loads(done.stdout.splitlines()[-1]))


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


def _result(labels: list[int], spent: list[tuple[float, float]]) -> Measured:
    """The best update but the first, which warms up; peak memory in GB."""
    wall, cpu = zip(*spent, strict=True)
    best = max(count / seconds for count, seconds in zip(labels[1:], wall[1:], strict=True))
    by_cpu = max(count / seconds for count, seconds in zip(labels[1:], cpu[1:], strict=True))
    return Measured(best, by_cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 0.0)


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _stopwatch() -> Any:
    """A callback of transformers' Trainer that keeps the seconds and CPU seconds of each update in `spent`."""
    from transformers import TrainerCallback

    class Times(TrainerCallback):
        def __init__(self) -> None:
            self.began, self.spent = (0.0, 0.0), list[tuple[float, float]]()

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = _now()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            wall, cpu = _now()
            self.spent.append((wall - self.began[0], cpu - self.began[1]))

    return Times()


def _ours(length: int, *, bf16: bool) -> Measured:
    import torch

    from coa.models.footprint import shape_of
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
        args = arguments(config, Path(out), plan, looks=0, bf16=bf16, resumed=False)
        args.save_strategy = "no"
        times = _stopwatch()
        trainer = RowTrainer(model, args, plan, HeldOut([], length), config, agent_eval=None, callbacks=[times])
        trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    labels = [int(row["label_tokens"]) for row in rows]
    found = _result(labels, times.spent)
    # A forward pass is two operations for each weight and token, a backward pass four; the head is used for labels
    # only. What gradient checkpointing computes again is not counted: it is what checkpointing costs.
    shape = shape_of("smollm2")
    assert shape is not None
    layers, head = shape.layers * shape.layer, shape.vocabulary * shape.hidden
    tokens = [sum(map(len, plan.examples(update))) for update in plan.updates]
    flops = [6 * (layers * read + head * trained) for read, trained in zip(tokens, labels, strict=True)]
    limits = measure_limits(torch.bfloat16 if bf16 else torch.float32, rows=1024, clock=time.process_time)
    shares = [done / limits.flops / cpu for done, (_, cpu) in zip(flops, times.spent, strict=True)]
    return found._replace(share=max(shares[1:]))


def _trl(length: int, *, bf16: bool) -> Measured:
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    from coa.models.local.model import load_weights

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
            bf16=bf16,
            use_cpu=True,
            max_length=length,
            per_device_train_batch_size=batch,
            max_steps=updates,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        times = _stopwatch()
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
    return _result(seen, times.spent)


if __name__ == "__main__":
    main()
