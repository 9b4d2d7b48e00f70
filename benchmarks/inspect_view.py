"""A log of Inspect with the same runs as a file of ours: run by an interpreter that has Inspect, with both paths."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(runs: Path, log_file: Path) -> None:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSample, EvalSpec, write_eval_log
    from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ModelOutput, ModelUsage
    from inspect_ai.scorer import Score

    samples = []
    with runs.open() as lines:
        for line in lines:
            run = json.loads(line)
            messages = [
                (ChatMessageUser if step.get("author") == "environment" else ChatMessageAssistant)(content=step["text"])
                for step in run["steps"]
            ]
            usage = run["usage"]
            samples.append(
                EvalSample(
                    id=run["task"]["id"], epoch=1, input=run["task"]["question"], target=run["task"]["answer"],
                    messages=messages, output=ModelOutput.from_content("m", run["steps"][-1]["text"]),
                    scores={"exact": Score(value=run["scores"]["exact"]["value"])},
                    model_usage={"m": ModelUsage(input_tokens=usage["prompt_tokens"],
                                                 output_tokens=usage["completion_tokens"])},
                )
            )  # fmt: skip
    spec = EvalSpec(
        created="2026-01-01T00:00:00+00:00", task="runs", dataset=EvalDataset(name="runs", samples=len(samples)),
        model="m", config=EvalConfig(),
    )  # fmt: skip
    write_eval_log(EvalLog(eval=spec, status="success", samples=samples), str(log_file))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
