"""The same evaluation in Inspect AI: run by an interpreter that has it, with the server's address and a folder."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

PAGE = "Brannock Head: the north light was first lit in 1871, the south light in 1885. " * 4


def main(url: str, tasks: Path, logs: Path) -> None:
    os.environ |= {"INSTANT_BASE_URL": url, "INSTANT_API_KEY": "none"}
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import match
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import Tool, tool

    @tool  # type: ignore[untyped-decorator]
    def web_search() -> Tool:
        async def execute(query: str) -> str:
            """Looks things up.

            Args:
                query: What to look for.
            """
            return PAGE

        return execute

    rows = [json.loads(line) for line in tasks.read_text().splitlines()]
    samples = [Sample(input=row["question"], target=row["answer"], id=row["id"]) for row in rows]
    (log,) = eval(
        Task(dataset=samples, solver=[use_tools(web_search()), generate()], scorer=match(location="exact")),
        model="openai-api/instant/instant",
        max_connections=64,
        max_samples=64,
        max_tasks=1,
        display="none",
        log_dir=str(logs),
        temperature=1.0,
        top_p=0.9,
    )
    assert log.status == "success" and log.results is not None, log.error
    accuracy = log.results.scores[0].metrics["accuracy"].value
    assert accuracy == 1.0 and log.results.completed_samples == len(rows), accuracy


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
