"""A manager of PydanticAI that delegates through tools which run the other agents, on Chat Completions.

The first delegation has wrong arguments, which PydanticAI asks the manager to correct.
"""

from __future__ import annotations

import json
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Agent, AgentRunResult, InstrumentationSettings, RunContext
from pydantic_ai.models.openai import OpenAIChatModel

from teams import common

MODEL = OpenAIChatModel("scripted-wrong-arguments")
manager = Agent(MODEL, name="manager", instructions=common.MANAGER)
researcher = Agent(MODEL, name="researcher", instructions=common.RESEARCHER, tools=[common.web_search])
analyst = Agent(MODEL, name="analyst", instructions=common.ANALYST, tools=[common.calculator])


@manager.tool
async def ask_researcher(context: RunContext, request: str) -> str:
    """Looks things up on the web."""
    result = await researcher.run(request, usage=context.usage)
    keep_messages("researcher", result, context.tool_call_id)
    return result.output


@manager.tool
async def ask_analyst(context: RunContext, request: str) -> str:
    """Calculates."""
    result = await analyst.run(request, usage=context.usage)
    keep_messages("analyst", result, context.tool_call_id)
    return result.output


def keep_messages(agent: str, result: AgentRunResult[str], parent_call_id: str | None = None) -> None:
    """One run of an agent to a line, with the id of the call that started it."""
    row: dict[str, Any] = {"agent": agent, "parent_call_id": parent_call_id}
    with (common.traces() / "messages.jsonl").open("a") as file:
        print(json.dumps({**row, "messages": json.loads(result.all_messages_json())}), file=file)


def main() -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    Agent.instrument_all(InstrumentationSettings(tracer_provider=provider))
    result = manager.run_sync(common.question())
    keep_messages("manager", result)
    common.write_spans(spans.get_finished_spans(), "genai.jsonl")
    print(result.output)


if __name__ == "__main__":
    main()
