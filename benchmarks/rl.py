"""RL: seconds a step and peak memory beside TRL's GRPOTrainer with its own generation, same weights, prompts and group.

Each side runs in a process of its own, so that its peak memory is its own. All weights are trained, in fp32, with one
update a step. TRL writes one completion of exactly `TOKENS` tokens; ours goes through the runtime, which also leads
each attempt to an answer, so it writes somewhat more. Times are therefore also given for a thousand trained tokens.
Rewards are made up on both sides: half of each group is right.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

PROMPTS: Final = 3
GROUP: Final = 4
TOKENS: Final = 64
STEPS: Final = 3
ROOM: Final = 16
"""What the runtime may add to lead an attempt to its answer."""


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps({"ours": _ours, "trl": _trl}[sys.argv[1]]()))
        return
    print(f"RL of SmolLM2-135M, full, fp32: {PROMPTS} prompts x {GROUP} attempts of {TOKENS} tokens")
    found = {side: _measured(side) for side in ("trl", "ours")}
    for side, (seconds, tokens, peak) in found.items():
        name = "TRL GRPOTrainer" if side == "trl" else "coa rl"
        each = 1000 * seconds / tokens
        print(
            f"  {name:<15}  {seconds:6.1f} s a step of {tokens:.0f} trained tokens  {each:6.1f} s/1000  {peak:5.2f} GB"
        )
    (theirs, their_tokens, their_peak), (ours, our_tokens, our_peak) = found["trl"], found["ours"]
    speed = (theirs / their_tokens) / (ours / our_tokens)
    print(f"  a step {theirs / ours:.2f} x as fast, a token {speed:.2f} x, peak memory {our_peak / their_peak:.2f} x")
    print("  goals: 2 x as fast, 0.7 x the memory")


def _measured(side: str) -> tuple[float, float, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.rl", side],
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("COA_BENCH_VERBOSE") else subprocess.DEVNULL,
        text=True,
        check=True,
        env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "TRANSFORMERS_VERBOSITY": "error"},
    )
    seconds, tokens, peak = json.loads(done.stdout.splitlines()[-1])
    return seconds, tokens, peak


def questions() -> list[str]:
    return [f"A hall has {12 + n} rows of {23 + n} seats. How many seats are there?" for n in range(PROMPTS * STEPS)]


def _result(seconds: list[float], tokens: list[float]) -> tuple[float, float, float]:
    """The quickest step but the first, which warms up; peak memory in GB."""
    best = min(range(1, len(seconds)), key=lambda step: seconds[step])
    return seconds[best], tokens[best], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def half_right(trajectory: Any, score: float | None) -> float:
    return float(trajectory.sample % 2)


def _ours() -> tuple[float, float, float]:
    from coa.models.tokenizer import load_tokenizer
    from coa.rl.config import RlConfig
    from coa.rl.loop import train
    from coa.trajectory import Task, load_profile

    tasks = [Task(id=str(number), question=asked) for number, asked in enumerate(questions())]
    tokenizer, profile = load_tokenizer("smollm2"), load_profile("nano")
    longest = max(len(tokenizer.encode_prompt(profile.messages(task))[1]) for task in tasks)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tasks.jsonl").write_text("\n".join(task.model_dump_json() for task in tasks))
        config = RlConfig.model_validate(
            {
                "model": "smollm2",
                "tasks": f"{folder}/tasks.jsonl",
                "steps": STEPS,
                "prompts": PROMPTS,
                "draw": PROMPTS,
                "group": GROUP,
                "model_tokens": TOKENS,
                "context_tokens": (longest + TOKENS + ROOM) * 8 // 7 + 1,  # the runtime keeps an eighth for the answer
                "turn_tokens": TOKENS,
                "tool_calls": 0,
                "row_tokens": 1024,
                "reward": {"function": "benchmarks.rl:half_right"},
                "report_to": [],
                "checkpoint_every": 1000,
            }
        )
        train(config, Path(folder) / "run", tell=lambda line: print(line, file=sys.stderr))
        rows = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    return _result([row["seconds"] for row in rows], [row["trained_tokens"] for row in rows])


def _trl() -> tuple[float, float, float]:
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from coa.models.local.model import load_weights
    from coa.trajectory import Task, load_profile

    class Times(TrainerCallback):
        def __init__(self) -> None:
            self.began, self.seconds = 0.0, list[float]()

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.seconds.append(time.perf_counter() - self.began)

    def reward(completions: list[str], **_: Any) -> list[float | None]:
        return [float(number % 2) for number in range(len(completions))]

    model, tokenizer = load_weights("smollm2", device="cpu")
    profile = load_profile("nano")
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
            num_generations=GROUP,
            per_device_train_batch_size=GROUP,
            gradient_accumulation_steps=PROMPTS,
            max_completion_length=TOKENS,
            generation_kwargs={"min_new_tokens": TOKENS},
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
    return _result(times.seconds, [float(PROMPTS * GROUP * TOKENS)] * STEPS)


if __name__ == "__main__":
    main()
