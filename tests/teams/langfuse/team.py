"""A team without a framework, traced by Langfuse: model calls by its OpenAI client, agents and tools by decorators.

`otel.jsonl` has the spans that the SDK sends to the server. `observations.json` has them in the form in which the
server's API lists observations, made with the SDK's own types, because the server is not part of the package.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from langfuse import Langfuse, observe
from langfuse.api.commons.types.observation_v2 import ObservationV2
from langfuse.api.observations.types import ObservationsV2Meta, ObservationsV2Response
from langfuse.openai import OpenAI
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from teams import bare_loop, common


def agent(name: str) -> bare_loop.Decorator:
    return observe(name=name, as_type="agent")


def tool(name: str) -> bare_loop.Decorator:
    return observe(name=name, as_type="tool")


def listed(span: Any) -> ObservationV2:
    """A span as an observation. The server decodes JSON, and counts tokens under names of its own."""
    given = {key.removeprefix("langfuse.observation."): value for key, value in span.attributes.items()}
    usage = json.loads(given.get("usage_details", "{}"))
    counts = {"input": usage["prompt_tokens"], "output": usage["completion_tokens"]} if usage else None
    return ObservationV2(
        id=f"{span.context.span_id:016x}", trace_id=f"{span.context.trace_id:032x}", project_id="project",
        parent_observation_id=f"{span.parent.span_id:016x}" if span.parent else None, type=given["type"].upper(),
        start_time=datetime.fromtimestamp(span.start_time / 1e9, UTC), name=span.name,
        end_time=datetime.fromtimestamp(span.end_time / 1e9, UTC), level=given.get("level", "DEFAULT"),
        status_message=given.get("status_message"), input=decoded(given.get("input")),
        output=decoded(given.get("output")), model=given.get("model.name"), usage_details=counts,
    )  # fmt: skip


def decoded(text: str | None) -> Any:
    try:
        return json.loads(text) if text else text
    except ValueError:
        return text


if __name__ == "__main__":
    spans = InMemorySpanExporter()
    tracer = Langfuse(
        public_key="pk-lf-none", secret_key="sk-lf-none", base_url="http://127.0.0.1:9", span_exporter=spans
    )
    answer = bare_loop.Team(OpenAI(), agent, tool).run(question=common.question())
    tracer.flush()
    found = spans.get_finished_spans()
    common.write_spans(found, "otel.jsonl")
    page = ObservationsV2Response(data=[listed(span) for span in found], meta=ObservationsV2Meta())
    (common.traces() / "observations.json").write_text(page.json(by_alias=True, exclude_none=True))
    print(answer)
