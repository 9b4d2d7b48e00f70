"""A team without a framework, traced by MLflow: model calls by its autologging, agents and tools by decorators."""

from __future__ import annotations

import json
import logging
import tempfile
from typing import Any

import mlflow
from mlflow.entities import SpanType, Trace
from openai import OpenAI

from teams import bare_loop, common

logging.disable(logging.WARNING)


def agent(name: str) -> bare_loop.Decorator:
    return mlflow.trace(name=name, span_type=SpanType.AGENT)


def tool(name: str) -> bare_loop.Decorator:
    return mlflow.trace(name=name, span_type=SpanType.TOOL)


def kept(trace: Trace) -> dict[str, Any]:
    """The trace without what names the machine and its user."""
    row = trace.to_dict()
    metadata = row["info"]["trace_metadata"]
    for name in [name for name in metadata if name.startswith(("mlflow.source", "mlflow.user"))]:
        del metadata[name]
    for event in (event for span in row["data"]["spans"] for event in span["events"]):
        event["attributes"].pop("exception.stacktrace", None)
    return row


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        experiment = mlflow.create_experiment("towns", artifact_location=f"file://{folder}")
        mlflow.set_experiment(experiment_id=experiment)
        mlflow.openai.autolog()
        answer = bare_loop.Team(OpenAI(), agent, tool).run(question=common.question())
        found = mlflow.search_traces(return_type="list", flush=True)
        text = "".join(json.dumps(kept(trace)) + "\n" for trace in found)
        (common.traces() / "traces.jsonl").write_text(text.replace(folder, "/home/user"))
    print(answer)
