"""The recipes of the demo: the public commands in order, with the amounts of tasks and training steps."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SEED: Final = 7
ERRORS: Final = "0.05"
"""How often the expert errs. What it does wrong is imitated too: at 0.25 a small model learns to open wrong pages."""
_FILTERS: Final = {"reflection.kept_without": 1.0}
"""The team of this world errs at a set rate, so runs with and without reflection already have the right proportion."""


@dataclass(frozen=True, slots=True)
class DemoStage:
    name: str
    about: str
    command: tuple[str, ...]
    seconds: float
    """Time that it took on two idle cores; used to estimate the time left."""
    again: tuple[str, ...] = ()
    """Added to the command if it was started before."""

    def shown(self, more: Sequence[str] = ()) -> str:
        return shlex.join(["coa", *self.command, *more])


@dataclass(frozen=True, slots=True)
class Recipe:
    """Numbers of tasks and training steps."""

    teach: int
    """Tasks that the team is recorded on."""
    sft_steps: int
    rl_steps: int
    test: int
    """Held-out tasks."""
    test_base: int
    """Number of these for the untrained model, which solves none of them and takes as long as its limits allow."""
    adapter: bool = False
    """Train an adapter instead of all weights: one file of a few MB that goes over SmolLM2, as `nano` does."""


RECIPES: Final = {
    "quick": Recipe(teach=120, sft_steps=20, rl_steps=1, test=32, test_base=4),
    "full": Recipe(teach=400, sft_steps=20, rl_steps=9, test=200, test_base=12),
    "long": Recipe(teach=400, sft_steps=80, rl_steps=4, test=200, test_base=4, adapter=True),
}


def stages_of(recipe: Recipe, out: Path, seed: int) -> list[DemoStage]:
    """The public commands, in order."""
    world, tasks = str(out / "world"), out / "world" / "tasks"
    train, rl_tasks, test = (str(tasks / f"{split}.jsonl") for split in ("train", "rl", "test"))

    def evaluated(name: str, about: str, model: str, count: int) -> DemoStage:
        command = ["eval", test, "--limit", str(count), "--model", model, "--world", world, "--temperature", "0"]
        command += ["--set", "run.constrain=never", "--concurrency", "128", "--out", str(out / "eval" / name)]
        seconds = 20 + count * (0.6 if name != "base" else 4)
        return DemoStage(f"eval-{name}", about, tuple(command), seconds, again=("--retry-failed",))

    def taught(name: str, about: str, source: str, count: int, folder: Path) -> DemoStage:
        command = ["teach", source, "--limit", str(count), "--team", "world", "--world", world]
        command += ["--errors", ERRORS, "--seed", str(seed), "--out", str(folder)]
        return DemoStage(name, about, tuple(command), seconds=5 + 0.04 * count, again=("--retry-failed",))

    sft = {"max_steps": recipe.sft_steps, "batch_size": 4, "lr": 2e-4, "epochs": 8, "max_length": 1024, "seed": seed}
    sft |= {"freeze_embeddings": True, "held_out": 0}
    rl: dict[str, Any] = {"max_steps": recipe.rl_steps, "train_batch_size": 12, "num_generations": 6, "seed": seed}
    rl |= {"gen_batch_size": 14, "max_num_gen_batches": 1}
    # Without three hops: long attempts, few of them right after so little fine-tuning.
    families = ["arithmetic", "code_only", "comparison", "one_hop", "page_only", "two_hop"]
    rl |= {"families": families, "task_sampling": "family", "save_steps": 1}
    # Sampled as a run is: from the whole vocabulary a lightly taught model loses a quarter of what it would get right
    # to slips, and RL learns not to slip, which greedy decoding never does (docs/lab-book.md).
    rl |= {"top_p": 0.9, "top_k": 20, "guards.min_entropy": 0.01}
    rl |= {"max_num_seqs": 84, "kv_cache_gb": 4, "max_turn_tokens": 80, "micro_batch_tokens": 2048}
    # A group's advantages sum to zero over its tokens: wrong attempts are the longer ones here, and otherwise what all
    # of them have in common is pushed down (docs/lab-book.md).
    rl |= {"advantage_estimator": "token_baseline", "num_mini_batches": 2}
    rl |= {"lr": 4e-5, "min_lr_ratio": 0.25, "warmup_steps": 2}
    rl |= {"adam_beta2": 0.95, "weight_decay": 0.0}
    rl |= {"freeze_embeddings": True, "freeze_layers": 10}
    if recipe.adapter:
        lora = {"lora.rank": 8, "lora.alpha": 16, "lora.merge": False, "freeze_embeddings": False}
        sft |= {**lora, "lr": 1e-3}
        rl |= {**lora, "lr": 2e-4, "freeze_layers": 0}
    compared = tuple(str(out / "eval" / name) for name in ("team", "base", "sft", "rl"))
    return [
        DemoStage("world", "Build an offline world with pages and questions",
              ("world", "build", "--seed", str(seed), "--out", world), 5),
        taught("teach", "Record a team of agents that answers some of them", train, recipe.teach,
               out / "traces"),
        DemoStage("distil", "Distil its runs into training data for one model",
              ("distill", str(out / "traces"), "--profile", "atlas", *_sets(_FILTERS), "--out", str(out / "data")), 10),
        evaluated("base", "Ask the untrained SmolLM2 held-out questions", "smollm2", recipe.test_base),
        DemoStage("sft", "Fine-tune SmolLM2 to play all of its agents",
              ("sft", "--model", "smollm2", "--data", str(out / "data"), "--out", str(out / "sft"), *_sets(sft)),
              15 + 6.5 * recipe.sft_steps),
        evaluated("sft", "Ask the fine-tuned model held-out questions", str(out / "sft"), recipe.test),
        DemoStage("rl", "Reinforcement learning with real tools",
              ("rl", "--model", str(out / "sft"), "--tasks", rl_tasks, "--world", world, "--out", str(out / "rl"),
               *_sets(rl)), 20 + 95 * recipe.rl_steps),
        evaluated("rl", "Ask the model after RL the same questions", str(out / "rl"), recipe.test),
        taught("eval-team", "Ask the team the same questions", test, recipe.test, out / "eval" / "team"),
        DemoStage("compare", "Compare all of them",
              ("compare", *compared, "--all", "--tokenizer", "smollm2", "--out", str(out / "comparison")), 10),
    ]  # fmt: skip


def _sets(settings: dict[str, Any]) -> list[str]:
    return [part for name, value in settings.items() for part in ("--set", f"{name}={_toml(value)}")]


def _toml(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)
