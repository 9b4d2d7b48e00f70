"""Tasks as the rows that verl reads, and the file that names the agent loop for verl.

A row carries the whole task as JSON: the agent loop reads it back and needs nothing else of the row. The columns beside
it are those that verl insists on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from coa.folder import write_atomic
from coa.models.tokenizer import TextTokenizer
from coa.rl.config import RlConfig
from coa.rl.engines.verl.settings import LOOP, Files
from coa.rl.reward import cached_profile
from coa.trajectory import Message, Task


def prompt_of(task: Task, config: RlConfig) -> Sequence[Message]:
    own = task.prompt if config.use_task_prompts else None
    return own or cached_profile(task.profile or config.profile).messages(task)


def longest_prompt(tasks: Sequence[Task], config: RlConfig, tokenizer: TextTokenizer) -> int:
    """In tokens."""
    return max(len(tokenizer.encode_prompt(prompt_of(task, config))[1]) for task in tasks)


def write_tasks(tasks: Sequence[Task], path: Path, config: RlConfig, *, held_out: bool) -> None:
    """Tasks to learn from are repeated until they fill a batch: verl divides by the number of batches in the file."""
    repeated = 1 if held_out else -(-config.train_batch_size // len(tasks))
    rows = [
        {
            "data_source": "coa",
            "agent_name": LOOP,
            "prompt": [{"role": message.role, "content": message.content} for message in prompt_of(task, config)],
            "ability": "agent",
            "reward_model": {"style": "rule", "ground_truth": task.answer[0] if task.answer else ""},
            "extra_info": {"index": number, "task": task.model_dump_json(), "held_out": held_out},
        }
        for number, task in enumerate([*tasks] * repeated)
    ]
    part = path.with_name(f".{path.name}.part")
    pq.write_table(pa.Table.from_pylist(rows), part)
    part.replace(path)


def write_loops(files: Files) -> None:
    """JSON, which is YAML too."""
    loop = {"name": LOOP, "_target_": "coa.rl.engines.verl.loop.ChainLoop", "run_file": str(files.run)}
    write_atomic(files.loops, orjson.dumps([loop]))
