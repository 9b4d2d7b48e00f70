"""A task for RL on the model of `words`: the tool says the answer to one of five queries, and nothing of use to the
others. Before RL the model repeats what the tool says, but queries at random; which query it is is told nowhere, only
the reward shows it. The profile wants the tool asked, so that guessing earns nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

from coa.sft.config import SftConfig
from coa.sft.train import train
from coa.tools import Observation
from coa.trajectory import Message, Step, Trajectory, observation, write
from support.tools import FakeTool
from support.words import WORDS, trajectory, word_model

QUERIES, ANSWERS, QUESTIONS, NOTHING = WORDS[:5], WORDS[5:9], WORDS[9:21], WORDS[21]
KEY = QUERIES[2]
PROFILE = 'extends = "nano"\nname = "asking"\nstart = ["web_search"]\n'


def answer_to(question: str) -> str:
    return ANSWERS[QUESTIONS.index(question) % len(ANSWERS)]


def before_rl(folder: Path, *, seed: int = 0, steps: int = 260) -> Path:
    """A model that knows the format and to repeat what the tool says, and that queries at random."""
    rng = random.Random(seed)
    data = []
    for number in range(600):
        asked, said, query = rng.choice(QUESTIONS), rng.choice([*ANSWERS, NOTHING]), rng.choice(QUERIES)
        steps_of = (Step(agent="web_search", text=query), observation(said), Step(agent="answer", text=said))
        made: Trajectory = trajectory(f"t{number}", asked, said)
        data.append(made.model_copy(update={"steps": steps_of}))
    write(folder / "data.jsonl", data)
    config = SftConfig(
        model=str(word_model(folder / "random", seed=seed)),
        data=(str(folder / "data.jsonl"),),
        lr=6e-3,
        max_steps=steps,
        batch_size=32,
        max_length=64,
        micro_batch_tokens=1024,
        save_steps=10_000,
        report_to=(),
    )
    (folder / "asking.toml").write_text(PROFILE)
    return train(config, folder / "sft").folder


def key_tasks(path: Path, questions: list[str] = QUESTIONS) -> Path:
    rows = [
        {
            "id": question,
            "question": question,
            "answer": answer_to(question),
            "prompt": [Message(role="user", content=question).model_dump()],
        }
        for question in questions
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


class Keyed(FakeTool):
    """`before` is called with each query and may break."""

    def __init__(self, before: Callable[[str], None] | None = None, *, timeout_s: float = 5.0) -> None:
        super().__init__(lambda arguments: "", timeout_s=timeout_s)
        self._before = before

    async def call(self, arguments, context):  # type: ignore[no-untyped-def]
        query = str(arguments["text"])
        if self._before is not None:
            self._before(query)
        return Observation(answer_to(context.task.question) if query == KEY else NOTHING)


def settings(model: Path, tasks: Path) -> dict[str, object]:
    """A step takes less than a second."""
    return {
        "model": str(model),
        "tasks": str(tasks),
        "use_task_prompts": True,
        "profile": str(tasks.parent / "asking.toml"),
        "max_steps": 12,
        "train_batch_size": 4,
        "gen_batch_size": 6,
        "max_num_gen_batches": 1,
        "min_groups": 1,
        "num_generations": 8,
        "warmup_steps": 4,
        "lr": 7e-4,
        "adam_beta2": 0.99,
        "max_completion_length": 24,
        "max_model_len": 160,
        "max_turn_tokens": 8,
        "report_to": [],
        "save_steps": 100,
    }
