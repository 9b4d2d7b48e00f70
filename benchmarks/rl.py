"""RL: seconds a step and peak memory compared with TRL's GRPOTrainer, which generates itself; same weights and prompts.

Each side runs in a process of its own, so that its peak memory is its own. All weights are trained, in fp32, with one
update a step. TRL writes one completion of exactly so many tokens; ours goes through the runtime, which also leads
each attempt to an answer, so it gets `ROOM` tokens less before that. What is trained still differs a little, so times
are given for a thousand trained tokens, too, and as CPU seconds, which other load on the machine falsifies less.
Rewards are made up: half of each group is right. The share of the limit is the least CPU time of a step's
multiplications (each prompt and each attempt sampled and trained once), at the speed that is measured in the same
process, by the CPU time the step took. `python -m benchmarks.rl code` measures the steps with one of the prompts.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.limits import GEMM, measure_limits
from benchmarks.results import SHARE, Figure, save

TRL: Final = "TRL GRPOTrainer, fp32"
PROMPTS: Final = 2
SIZES: Final = (("nano", 4, 48), ("nano", 8, 192), ("code", 8, 192))
"""Whose prompt stands before each task, attempts a task, tokens an attempt. The first two have the shortest prompt
there is (66 tokens), the last the one of `coa rl --profile code` (367), on either side."""
GOALS: Final = {"nano": ("at least 2", "at most 1"), "code": ("at least 2.5", "at most 0.65")}
"""Of speed and of peak memory, by whose prompt it is."""
STEPS: Final = 2
"""The first warms up."""
ROOM: Final = 20
"""What the runtime adds to lead an attempt to its answer, about."""


class Measured(NamedTuple):
    wall: float
    cpu: float
    trained: float
    """Tokens of the step that were trained."""
    peak: float
    """GB."""
    share: float
    """Of the limit; 0 for TRL."""


def main() -> None:
    if len(sys.argv) > 2:
        side, profile, group, tokens = sys.argv[1:]
        print(json.dumps({"ours": _ours, "trl": _trl}[side](profile, int(group), int(tokens))))
        return
    figures = list[Figure]()
    for size in SIZES:
        if size[0] in (sys.argv[1:] or GOALS):
            figures += _compare(*size)
            save("rl", " ".join(["python -m benchmarks.rl", *sys.argv[1:]]), figures)


def _compare(profile: str, group: int, tokens: int) -> list[Figure]:
    what = f"{PROMPTS * group} attempts of {tokens} tokens, prompt of {profile}"
    print(f"RL of SmolLM2-135M, full, fp32: {what}", flush=True)
    theirs, ours = _measured("trl", profile, group, tokens), _measured("ours", profile, group, tokens)
    for name, found in (("TRL GRPOTrainer", theirs), ("coa rl", ours)):
        thousand = 1000 / found.trained
        print(
            f"  {name:<15}  a step of {found.trained:.0f} trained tokens {found.wall:6.1f} s, {found.cpu:6.1f} CPU s; "
            f"a thousand tokens {thousand * found.wall:6.1f} s, {thousand * found.cpu:6.1f} CPU s; {found.peak:5.2f} GB"
        )
    speed, memory = GOALS[profile]
    more = ours.trained / theirs.trained
    figures = [
        Figure(f"{what}: speed", more * theirs.wall / ours.wall, beside=TRL, goal=speed),
        Figure(f"{what}: speed by CPU seconds", more * theirs.cpu / ours.cpu, beside=TRL),
        Figure(f"{what}: peak memory", ours.peak / theirs.peak, beside=TRL, goal=memory),
        Figure(f"{what}{SHARE}", ours.share, beside=GEMM),
    ]
    for figure in figures:
        print(f"  {figure.what}: {figure.value:.2f} x {figure.goal}", flush=True)
    return figures


def _measured(side: str, profile: str, group: int, tokens: int) -> Measured:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.rl", side, profile, str(group), str(tokens)],
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("COA_BENCH_VERBOSE") else subprocess.DEVNULL,
        text=True,
        check=True,
        env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "TRANSFORMERS_VERBOSITY": "error"},
    )
    return Measured(*json.loads(done.stdout.splitlines()[-1]))


def questions() -> list[str]:
    return [f"A hall has {12 + n} rows of {23 + n} seats. How many seats are there?" for n in range(PROMPTS * STEPS)]


def _result(times: list[tuple[float, float]], tokens: list[float]) -> Measured:
    """The quickest step but the first."""
    best = min(range(1, len(times)), key=lambda step: times[step][1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return Measured(*times[best], trained=tokens[best], peak=peak, share=0.0)


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _between(moments: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(moments)]


def half_right(trajectory: Any, score: float | None) -> float:
    return float(trajectory.sample % 2)


def _ours(name: str, group: int, tokens: int) -> Measured:
    from coa.models.footprint import shape_of
    from coa.models.tokenizer import load_tokenizer
    from coa.progress import PrintProgress
    from coa.rl.config import RlConfig
    from coa.rl.engines.local import train
    from coa.trajectory import Task, load_profile

    tasks = [Task(id=str(number), question=asked) for number, asked in enumerate(questions())]
    tokenizer, profile = load_tokenizer("smollm2"), load_profile(name)
    longest = max(len(tokenizer.encode_prompt(profile.messages(task))[1]) for task in tasks)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tasks.jsonl").write_text("\n".join(task.model_dump_json() for task in tasks))
        config = RlConfig.model_validate(
            {
                "model": "smollm2",
                "profile": name,
                "tasks": f"{folder}/tasks.jsonl",
                "max_steps": STEPS,
                "train_batch_size": PROMPTS,
                "gen_batch_size": PROMPTS,
                "num_generations": group,
                "max_completion_length": tokens - ROOM,
                "max_model_len": (longest + tokens + ROOM) * 8 // 7 + 1,  # the runtime keeps an eighth for the answer
                "max_turn_tokens": tokens - ROOM,
                "max_tool_calls": 0,
                "reward": {"function": "benchmarks.rl:half_right"},
                "report_to": [],
                "save_steps": 1000,
            }
        )
        moments: list[tuple[float, float]] = []

        def heard(line: str) -> None:
            print(line, file=sys.stderr)
            if "weights trained" in line or (line.startswith("step ") and "/" in line.split()[1]):
                moments.append(_now())

        train(config, Path(folder) / "run", progress=PrintProgress(heard))
        rows = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    found = _result(_between(moments), [row["trained_tokens"] for row in rows])
    # Two operations for each weight and token to sample, two and four to train; the head for trained tokens only.
    shape = shape_of("smollm2")
    assert shape is not None
    layers, head = shape.layers * shape.layer, shape.vocabulary * shape.hidden
    read, trained = PROMPTS * longest + found.trained, found.trained
    flops = 8 * (layers * read + head * trained)
    limits = measure_limits(rows=1024, clock=time.process_time)
    return found._replace(share=flops / limits.flops / found.cpu)


def _trl(name: str, group: int, length: int) -> Measured:
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from coa.models.local.model import load_weights
    from coa.trajectory import Task, load_profile

    class Times(TrainerCallback):
        def __init__(self) -> None:
            self.moments = list[tuple[float, float]]()

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.moments.append(_now())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.moments.append(_now())

    def reward(completions: list[str], **_: Any) -> list[float | None]:
        return [float(number % 2) for number in range(len(completions))]

    model, tokenizer = load_weights("smollm2", device="cpu")
    profile = load_profile(name)
    rows = [
        {"prompt": tokenizer.encode_prompt(profile.messages(Task(id="q", question=asked)))[0]} for asked in questions()
    ]
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(Path(folder))
        theirs = AutoTokenizer.from_pretrained(folder)
        theirs.pad_token = theirs.eos_token
        args = GRPOConfig(
            output_dir=folder,
            bf16=False,
            loss_type="dapo",
            epsilon_high=0.28,
            num_generations=group,
            per_device_train_batch_size=group,
            gradient_accumulation_steps=PROMPTS,
            max_completion_length=length,
            generation_kwargs={"min_new_tokens": length},
            max_steps=STEPS,
            learning_rate=1e-6,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        times = Times()
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=args,
            train_dataset=Dataset.from_list(rows),
            processing_class=theirs,
            callbacks=[times],
        )
        trainer.train()
    return _result(_between(times.moments), [float(PROMPTS * group * length)] * STEPS)


if __name__ == "__main__":
    main()
