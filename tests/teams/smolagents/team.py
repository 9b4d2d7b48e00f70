"""A manager of smolagents with two managed agents, which call tools as JSON, on Chat Completions.

The first request has wrong arguments, which smolagents reports to the manager.
"""

from __future__ import annotations

import json
import os

from openinference.instrumentation.smolagents import SmolagentsInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from smolagents import OpenAIModel, ToolCallingAgent, tool

import coa
from coa.distill.atif_writer import to_atif
from coa.distill.recorder import record
from teams import common


def manager() -> ToolCallingAgent:
    model = OpenAIModel("scripted-wrong-arguments", api_base=os.environ["OPENAI_BASE_URL"])
    researcher = ToolCallingAgent(
        tools=[tool(common.web_search)], model=model, name="researcher", description=common.RESEARCHER_DOES
    )
    analyst = ToolCallingAgent(
        tools=[tool(common.calculator)], model=model, name="analyst", description=common.ANALYST_DOES
    )
    agent = ToolCallingAgent(tools=[], model=model, name="manager", managed_agents=[researcher, analyst])
    # A short prompt instead of the library's, which explains what these agents know already.
    for each, prompt in ((researcher, common.RESEARCHER), (analyst, common.ANALYST), (agent, common.MANAGER)):
        each.prompt_templates["system_prompt"] = prompt
    return agent


def main() -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    SmolagentsInstrumentor().instrument(tracer_provider=provider)
    run = record(manager(), coa.Task(id="towns", question=common.question()))
    (common.traces() / "recorder.json").write_text(json.dumps(to_atif(run)))
    common.write_spans(spans.get_finished_spans(), "openinference.jsonl")
    print(run.answer)


if __name__ == "__main__":
    main()
