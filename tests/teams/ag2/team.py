"""A manager of AG2 that delegates to two agents as tools, traced by AG2's own telemetry."""

import asyncio
import os

from ag2 import Agent, tool
from ag2.config import OpenAIConfig
from ag2.middleware.builtin.telemetry import TelemetryMiddleware
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from teams import common

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))

MODEL = "scripted-wrong-name"
model = OpenAIConfig(model=MODEL, base_url=os.environ["OPENAI_BASE_URL"])


def traced(name: str) -> list[TelemetryMiddleware]:
    return [TelemetryMiddleware(tracer_provider=provider, agent_name=name, model_name=MODEL)]


researcher = Agent(
    "researcher", common.RESEARCHER, config=model, tools=[tool(common.web_search)], middleware=traced("researcher")
)
analyst = Agent("analyst", common.ANALYST, config=model, tools=[tool(common.calculator)], middleware=traced("analyst"))
manager = Agent(
    "manager",
    common.MANAGER,
    config=model,
    tools=[
        researcher.as_tool(description=common.RESEARCHER_DOES),
        analyst.as_tool(description=common.ANALYST_DOES),
    ],
    middleware=traced("manager"),
)

if __name__ == "__main__":
    reply = asyncio.run(manager.ask(common.question()))
    common.write_spans(exporter.get_finished_spans(), "genai.jsonl")
    print(reply.body)
