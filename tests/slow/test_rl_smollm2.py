"""SmolLM2, lightly taught to compute with the code agent, gets better at it by RL; the real sandbox, no teacher."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from coa.config import load_config
from coa.progress import PrintProgress
from coa.rl.config import RlConfig
from coa.rl.engines.local import train
from coa.sft.config import SftConfig
from coa.sft.train import train as fine_tune
from coa.trajectory import Step, Task, Trajectory, observation, write

ROOT = Path(__file__).parents[2]
NAMES = ["Ida", "Omar", "Lena", "Kofi", "Mira", "Juan", "Anya", "Tom"]
FAMILIES = {
    "sum": ("{x} has {a} apples and buys {b} more. How many apples are there now?", "{a} + {b}"),
    "rest": ("{x} has {a} coins and gives {b} away. How many coins are left?", "{a} - {b}"),
    "seats": ("A train has {a} cars with {b} seats each. How many seats does {x} count?", "{a} * {b}"),
    "walk": ("{x} walks {a} steps, rests, and walks {b} steps twice. How many steps in all?", "{a} + 2 * {b}"),
    "pens": ("A box holds {a} pens. {x} fills {b} boxes and loses 7 pens. How many pens remain?", "{a} * {b} - 7"),
}


def problems(count: int, seed: int) -> list[Trajectory]:
    """In turn from each family, no question twice."""
    rng = random.Random(seed)
    made: dict[str, Trajectory] = {}
    while len(made) < count:
        family = list(FAMILIES)[len(made) % len(FAMILIES)]
        question, formula = FAMILIES[family]
        a, b = rng.randint(100, 999), rng.randint(11, 99)
        asked, expression = question.format(x=rng.choice(NAMES), a=a, b=b), formula.format(a=a, b=b)
        result = str(eval(expression))
        made[asked] = Trajectory(
            task=Task(id=f"p{seed}-{len(made)}", question=asked, answer=result, meta={"family": family}),
            profile="nano",
            steps=(
                Step(agent="think", text="I compute it."),
                Step(agent="code", text=f"```py\nprint({expression})\n```"),
                observation(result),
                Step(agent="answer", text=result),
            ),
        )
    return list(made.values())


def keep_tasks(path: Path, trajectories: list[Trajectory]) -> str:
    path.write_text("\n".join(t.task.model_dump_json(exclude_defaults=True) for t in trajectories))
    return str(path)


@pytest.mark.slow
def test_smollm2_gets_better_at_computing_by_rl(tmp_path: Path) -> None:
    """Forty examples teach the format, not the sums: RL has no other source than the reward."""
    write(tmp_path / "data.jsonl", problems(40, seed=0))
    light = load_config(
        SftConfig,
        ROOT / "configs" / "sft" / "nano.toml",
        ["report_to=[]", "batch_size=4", "max_steps=8"],
        given={"data": (str(tmp_path / "data.jsonl"),), "profile": "nano"},
    )
    fine_tune(light, tmp_path / "sft", progress=PrintProgress(_said))
    config = load_config(
        RlConfig,
        ROOT / "configs" / "rl" / "nano.toml",
        ["report_to=[]", "num_eval_tasks=60", "eval_steps=100", "max_tool_calls=3"],
        given={
            "model": str(tmp_path / "sft"),
            "tasks": keep_tasks(tmp_path / "tasks.jsonl", problems(200, seed=1)),
            "eval_tasks": keep_tasks(tmp_path / "held_out.jsonl", problems(60, seed=2)),
        },
    )
    train(config, tmp_path / "rl", progress=PrintProgress(_said))
    rows = [json.loads(line) for line in (tmp_path / "rl" / "metrics.jsonl").read_text().splitlines()]
    success = [row["held_out_success"] for row in rows if "held_out_success" in row]
    assert success[-1] > success[0] + 0.1, success


def _said(line: str) -> None:
    print(line, flush=True)
