"""The manager of the OpenAI Agents SDK with two agents as tools, on the Responses API.

The first call of the researcher has wrong arguments, which the SDK reports to the manager.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from agents import Agent, Runner, function_tool, set_trace_processors
from agents.tracing import Span, Trace, TracingProcessor
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from teams import common

MODEL = "scripted-wrong-arguments"


class JsonLines(TracingProcessor):
    """Writes traces and spans as the SDK exports them, with the messages that it leaves out of `response` spans."""

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def on_trace_start(self, trace: Trace) -> None:
        print(json.dumps(trace.export()), file=self.file, flush=True)

    def on_span_end(self, span: Span[Any]) -> None:
        row = span.export() or {}
        if span.span_data.type == "response" and span.span_data.response is not None:
            row["span_data"]["input"] = span.span_data.input
            row["span_data"]["response"] = span.span_data.response.model_dump(mode="json", exclude_none=True)
        print(json.dumps(row), file=self.file, flush=True)

    def on_trace_end(self, trace: Trace) -> None:
        pass

    def on_span_start(self, span: Span[Any]) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def force_flush(self) -> None:
        pass


def manager() -> Agent:
    researcher = Agent(
        name="researcher", instructions=common.RESEARCHER, model=MODEL, tools=[function_tool(common.web_search)]
    )
    analyst = Agent(name="analyst", instructions=common.ANALYST, model=MODEL, tools=[function_tool(common.calculator)])
    members = [
        researcher.as_tool("researcher", common.RESEARCHER_DOES),
        analyst.as_tool("analyst", common.ANALYST_DOES),
    ]
    return Agent(name="manager", instructions=common.MANAGER, model=MODEL, tools=members)


@contextmanager
def recorded() -> Iterator[None]:
    """Both ways at once. `exclusive_processor=False` keeps the SDK's own processors beside OpenInference's."""
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with (common.traces() / "export.jsonl").open("w") as file:
        set_trace_processors([JsonLines(file)])
        OpenAIAgentsInstrumentor().instrument(tracer_provider=provider, exclusive_processor=False)
        yield
    common.write_spans(spans.get_finished_spans(), "openinference.jsonl")


def main() -> None:
    with recorded():
        result = Runner.run_sync(manager(), common.question())
    print(result.final_output)


if __name__ == "__main__":
    main()
