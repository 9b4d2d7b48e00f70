"""`coa demo`: the whole pipeline on the embedded world and model. Its stages are the public commands."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from coa.errors import CoaError

STATE: Final = "demo.json"
ERRORS: Final = "0.05"
"""How often the expert errs. What it does wrong is imitated too: at 0.25 a small model learns to open wrong pages."""
_ENVIRONMENT: Final = {
    "OMP_WAIT_POLICY": "PASSIVE",
    # glibc: memory that is freed is kept, in large pages, for the next pass: a tenth quicker.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 28),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""Of each stage, where the user has not chosen otherwise."""
FILTERS: Final = "filters.toml"
_KEEP_ALL: Final = """\
# The team of this world errs at a set rate, so runs with and without reflection are mixed as they should be.
[reflection]
kept_without = 1.0
"""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How much of everything."""

    teach: int
    """Tasks that the team is recorded on."""
    sft_steps: int
    rl_steps: int
    test: int
    """Held-out tasks."""
    test_base: int
    """Of these, for the model as it comes, which solves none of them and takes as long as it may."""
    adapter: bool = False
    """Train an adapter instead of all weights: one file of a few MB that goes over SmolLM2, as `nano` does."""


RECIPES: Final = {
    "quick": Recipe(teach=120, sft_steps=24, rl_steps=1, test=32, test_base=4),
    "full": Recipe(teach=400, sft_steps=36, rl_steps=7, test=200, test_base=12),
    "long": Recipe(teach=400, sft_steps=150, rl_steps=4, test=200, test_base=4, adapter=True),
}


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    about: str
    command: tuple[str, ...]
    seconds: float
    """What it took on two idle cores; only for the time left."""


def demo(
    out: Annotated[Path, typer.Option(help="The demo's folder. Run again with it to go on.")] = Path("runs/demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Ten minutes on two cores: every stage, small.")] = False,
    long: Annotated[bool, typer.Option("--long", help="Longer: an adapter to keep, such as nano.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the world, the teacher and the training.")] = 7,
    plan: Annotated[bool, typer.Option("--plan", help="Print the commands, and stop.")] = False,
) -> None:
    """Teach, distil, fine-tune, reinforce and evaluate on the embedded world: no GPU, no key, no network."""
    if quick and long:
        raise typer.BadParameter("--quick or --long, not both")
    kind = "quick" if quick else "long" if long else "full"
    stages = stages_of(RECIPES[kind], out, seed)
    if plan:
        for stage in stages:
            typer.echo(_shown(stage))
        return
    seconds = run_stages(stages, out, {"recipe": kind, "seed": seed})
    from coa.cli.demo_page import demo_page

    (out / "report.html").write_text(demo_page(out), encoding="utf-8")
    _say(f"\nall of it took {_span(seconds)}; the pages: {out / 'report.html'}")
    _say("ask it something new, and look into what it did:")
    model, world = shlex.quote(str(out / "rl")), shlex.quote(str(out / "world"))
    _say(f'  coa run --model {model} --world {world} "{_new_question(out / "world")}"')
    _say(f"  coa inspect {shlex.quote(str(out / 'eval' / 'rl'))}")


def stages_of(recipe: Recipe, out: Path, seed: int) -> list[Stage]:
    """The public commands, in order."""
    world, tasks = str(out / "world"), out / "world" / "tasks"
    train, rl_tasks, test = (str(tasks / f"{split}.jsonl") for split in ("train", "rl", "test"))

    def evaluated(name: str, about: str, model: str, count: int) -> Stage:
        command = ["eval", test, "--limit", str(count), "--model", model, "--world", world, "--temperature", "0"]
        command += ["--constrain", "never", "--concurrency", "128", "--out", str(out / "eval" / name)]
        return Stage(f"eval-{name}", about, tuple(command), seconds=20 + count * (0.6 if name != "base" else 4))

    def taught(name: str, about: str, source: str, count: int, folder: Path) -> Stage:
        command = (
            "teach",
            source,
            "--limit",
            str(count),
            "--team",
            "world",
            "--world",
            world,
            "--errors",
            ERRORS,
            "--seed",
            str(seed),
            "--out",
            str(folder),
        )
        return Stage(name, about, command, seconds=10 + 0.3 * count)

    sft = {"max_steps": recipe.sft_steps, "batch_size": 4, "lr": 2e-4, "epochs": 8, "max_tokens": 1024, "seed": seed}
    sft |= {"freeze_embeddings": True, "held_out": 0}
    rl: dict[str, Any] = {"steps": recipe.rl_steps, "prompts": 12, "group": 6, "draw": 14, "rounds": 1, "seed": seed}
    # Without the two families that teach nothing yet: three hops are hardly ever right after so little fine-tuning, and
    # comparisons are right by chance.
    rl |= {"families": ["arithmetic", "code_only", "one_hop", "page_only", "two_hop"], "draw_by": "family"}
    rl |= {"max_rows": 84, "kv_gb": 4, "turn_tokens": 80, "row_tokens": 2048}
    # A group's advantages sum to zero over its tokens: wrong attempts are the longer ones here, and otherwise what all
    # of them have in common is pushed down (docs/lab-book.md).
    rl |= {"baseline": "token", "updates": 2, "lr": 4e-5, "beta2": 0.95, "weight_decay": 0.0, "warmup_steps": 2}
    rl |= {"freeze_embeddings": True, "freeze_layers": 10}
    if recipe.adapter:
        lora = {"lora.rank": 8, "lora.alpha": 16, "lora.merge": False, "freeze_embeddings": False}
        sft |= {**lora, "lr": 1e-3}
        rl |= {**lora, "lr": 2e-4, "freeze_layers": 0}
    compared = tuple(str(out / "eval" / name) for name in ("team", "base", "sft", "rl"))
    return [
        Stage("world", "an invented web, its search index and its questions",
              ("world", "build", "--seed", str(seed), "--out", world), 5),
        taught("teach", "a team of agents works on the training tasks and is recorded", train, recipe.teach,
               out / "traces"),
        Stage("distil", "its runs become runs of one model; only the good ones stay",
              ("distill", str(out / "traces"), "--profile", "atlas", "--config", str(out / FILTERS),
               "--out", str(out / "data")), 10),
        evaluated("base", "the model as it comes, on held-out tasks", "smollm2", recipe.test_base),
        Stage("sft", "SmolLM2 learns to be all of the agents",
              ("sft", "--model", "smollm2", "--data", str(out / "data"), "--out", str(out / "sft"), *_sets(sft)),
              15 + 5 * recipe.sft_steps),
        evaluated("sft", "the fine-tuned model on held-out tasks", str(out / "sft"), recipe.test),
        Stage("rl", "it learns by trying, with real tools and no teacher",
              ("rl", "--model", str(out / "sft"), "--tasks", rl_tasks, "--world", world, "--out", str(out / "rl"),
               *_sets(rl)), 20 + 90 * recipe.rl_steps),
        evaluated("rl", "the reinforced model on the same held-out tasks", str(out / "rl"), recipe.test),
        taught("eval-team", "the team itself on the same held-out tasks", test, recipe.test, out / "eval" / "team"),
        Stage("compare", "all of them side by side",
              ("compare", *compared, "--all", "--tokenizer", "smollm2", "--out", str(out / "comparison")), 10),
    ]  # fmt: skip


def run_stages(stages: Sequence[Stage], out: Path, made_with: Mapping[str, Any]) -> float:
    """One after another, but for those that came to their end before; how long all of them took."""
    done = _Done.of(out / STATE, made_with)
    out.mkdir(parents=True, exist_ok=True)
    (out / FILTERS).write_text(_KEEP_ALL)
    for number, stage in enumerate(stages, start=1):
        left = sum(later.seconds for later in stages[number - 1 :] if later.name not in done.seconds)
        _say(f"\n[{number}/{len(stages)}] {stage.about}" + (f"; about {_span(left)} left" if left else ""))
        _say(f"$ {_shown(stage)}")
        if stage.name in done.seconds:
            _say(f"done before, in {_span(done.seconds[stage.name])}")
            continue
        done.add(stage, _run(stage))
    return sum(done.seconds.values())


def _new_question(world: Path) -> str:
    """One that nobody was asked: the last of the held-out tasks, of which the first ones are used."""
    import orjson

    lines = (world / "tasks" / "test.jsonl").read_bytes().splitlines()
    return str(orjson.loads(lines[-1])["question"])


def _sets(settings: dict[str, Any]) -> list[str]:
    return [part for name, value in settings.items() for part in ("--set", f"{name}={_toml(value)}")]


def _toml(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Done:
    """Which stages came to their end, in the demo's folder. One that did not is run again, and resumes by itself."""

    def __init__(self, file: Path, made_with: Mapping[str, Any], seconds: dict[str, float]) -> None:
        self._file, self._made_with, self.seconds = file, made_with, seconds

    @classmethod
    def of(cls, file: Path, made_with: Mapping[str, Any]) -> _Done:
        import orjson

        if not file.is_file():
            return cls(file, made_with, {})
        kept = orjson.loads(file.read_bytes())
        if {name: kept.get(name) for name in made_with} != made_with:
            was = ", ".join(f"{name} {kept.get(name)}" for name in made_with)
            raise CoaError(f"{file.parent} holds a demo with {was}", cure="choose another folder with --out")
        return cls(file, made_with, kept["seconds"])

    def add(self, stage: Stage, seconds: float) -> None:
        import orjson

        self.seconds[stage.name] = seconds
        self._file.parent.mkdir(parents=True, exist_ok=True)
        part = self._file.with_suffix(".part")
        part.write_bytes(orjson.dumps({**self._made_with, "seconds": self.seconds}, option=orjson.OPT_INDENT_2))
        part.replace(self._file)


def _run(stage: Stage) -> float:
    began = time.monotonic()
    command = [sys.executable, "-m", "coa.cli", *stage.command]
    environment = {**_ENVIRONMENT, **os.environ}
    try:
        code = subprocess.run(command, env=environment).returncode
    except KeyboardInterrupt:  # the stage got it too, and has kept what it had
        _say("\ninterrupted; the same command goes on from here")
        raise typer.Exit(1) from None
    if code:
        raise CoaError(
            f"this stage failed: {_shown(stage)}", cure="mend what it says above; the demo then goes on from here"
        )
    return time.monotonic() - began


def _shown(stage: Stage) -> str:
    return shlex.join(["coa", *stage.command])


def _say(line: str) -> None:
    typer.echo(line)


def _span(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
