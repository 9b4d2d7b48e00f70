"""SmolLM2 becomes an agent: arithmetic in words, with the code agent and the real sandbox."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from coa.config import load_config
from coa.progress import PrintProgress
from coa.sft.config import SftConfig
from coa.sft.train import train
from coa.trajectory import Step, Task, Trajectory, observation, write

TEMPLATES = [
    ("{x} has {a} apples and buys {b} more. How many apples are there now?", "{a} + {b}"),
    ("{x} has {a} coins and gives {b} away. How many coins are left?", "{a} - {b}"),
    ("A train has {a} cars with {b} seats each. How many seats does {x} count?", "{a} * {b}"),
    ("{x} walks {a} steps, rests, and walks {b} steps twice. How many steps in all?", "{a} + 2 * {b}"),
    ("A box holds {a} pens. {x} fills {b} boxes and loses 7 pens. How many pens remain?", "{a} * {b} - 7"),
]
NAMES = ["Ida", "Omar", "Lena", "Kofi", "Mira", "Juan", "Anya", "Tom"]


def problems(count: int, seed: int) -> list[Trajectory]:
    rng = random.Random(seed)
    made: dict[str, Trajectory] = {}
    while len(made) < count:
        question, formula = rng.choice(TEMPLATES)
        a, b = rng.randint(100, 999), rng.randint(11, 99)
        asked, expression = question.format(x=rng.choice(NAMES), a=a, b=b), formula.format(a=a, b=b)
        result = str(eval(expression))
        made[asked] = Trajectory(
            task=Task(id=f"p{seed}-{len(made)}", question=asked, answer=result),
            profile="nano",
            steps=(
                Step(agent="think", text="I compute it."),
                Step(agent="code", text=f"```py\nprint({expression})\n```"),
                observation(result),
                Step(agent="answer", text=result),
            ),
        )
    return list(made.values())


@pytest.mark.slow
def test_smollm2_learns_to_compute_with_the_code_agent(tmp_path: Path) -> None:
    write(tmp_path / "data.jsonl", problems(320, seed=0))
    tasks = [t.task for t in problems(50, seed=1)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(task.model_dump_json(exclude_defaults=True) for task in tasks))
    recipe = Path(__file__).parents[2] / "configs" / "sft" / "nano.toml"
    files = {"data": (str(tmp_path / "data.jsonl"),), "eval_tasks": str(tmp_path / "tasks.jsonl")}
    given = {**files, "num_eval_tasks": 50, "profile": "nano"}
    config = load_config(SftConfig, recipe, ["report_to=[]", "eval_steps=20"], given=given)
    train(config, tmp_path / "run", progress=PrintProgress(lambda line: print(line, flush=True)))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    success = {row["step"]: row["success"] for row in rows if "success" in row}
    assert success[0] == 0.0
    assert success[max(success)] > 0.95, success
