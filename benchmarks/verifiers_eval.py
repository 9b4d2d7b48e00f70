"""The same evaluation in verifiers: run by an interpreter that has it, with the server's address and a folder."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

PAGE = "Brannock Head: the north light was first lit in 1871, the south light in 1885. " * 4


async def web_search(query: str) -> str:
    """Looks things up.

    Args:
        query: What to look for.
    """
    return PAGE


async def exact(completion: list[object], answer: str) -> float:
    return float(getattr(completion[-1], "content", None) == answer)


def main(url: str, tasks: Path, results: Path) -> None:
    os.environ |= {"INSTANT_API_KEY": "none", "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
    import verifiers
    from datasets import Dataset
    from verifiers.types import ClientConfig

    rows = [json.loads(line) for line in tasks.read_text().splitlines()]
    data = Dataset.from_list([{"question": row["question"], "answer": row["answer"]} for row in rows])
    environment = verifiers.ToolEnv(
        eval_dataset=data, tools=[web_search], rubric=verifiers.Rubric(funcs=[exact]), max_turns=10
    )
    made = environment.evaluate_sync(
        ClientConfig(api_base_url=url, api_key_var="INSTANT_API_KEY"),
        model="instant",
        sampling_args={"temperature": 1.0, "top_p": 0.9, "max_tokens": 4096},
        max_concurrent=64,
        results_path=results,
        save_results=True,
    )
    rewards = [one["reward"] for one in made["outputs"]]
    assert len(rewards) == len(rows) and sum(rewards) == len(rows), (len(rewards), sum(rewards))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
