"""A coordinator of Google's Agent Development Kit with two sub-agents, to which it transfers control.

Its own spans, by OpenTelemetry's GenAI conventions with the content of messages, and the events of the session.
"""

import asyncio
import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")

from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from teams import common

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)


def refuse_when_busy(tool, args, tool_context):
    """A `before_tool_callback`: what it returns takes the place of the tool's result."""
    if tool.name == "transfer_to_agent" and args.get("agent_name") == "researcher":
        try:
            busy()
        except RuntimeError as error:
            return {"error": str(error)}
    return None


busy = common.BusyOnce()
model = LiteLlm(model="openai/scripted-busy")
researcher = LlmAgent(
    name="researcher", model=model, description=common.RESEARCHER_DOES, instruction=common.RESEARCHER,
    tools=[common.web_search],
)  # fmt: skip
analyst = LlmAgent(
    name="analyst", model=model, description=common.ANALYST_DOES, instruction=common.ANALYST, tools=[common.calculator]
)
manager = LlmAgent(
    name="manager", model=model, instruction=common.MANAGER, sub_agents=[researcher, analyst],
    before_tool_callback=refuse_when_busy,
)  # fmt: skip


async def run(question: str) -> str:
    runner = InMemoryRunner(agent=manager, app_name="towns")
    session = await runner.session_service.create_session(app_name="towns", user_id="user")
    message = types.Content(role="user", parts=[types.Part(text=question)])
    async for event in runner.run_async(user_id="user", session_id=session.id, new_message=message):
        if event.is_final_response() and event.content:
            answer = "".join(part.text or "" for part in event.content.parts or ())
    whole = await runner.session_service.get_session(app_name="towns", user_id="user", session_id=session.id)
    (common.traces() / "session.json").write_text(whole.model_dump_json(by_alias=True, exclude_none=True, indent=1))
    return answer


if __name__ == "__main__":
    answer = asyncio.run(run(common.question()))
    common.write_spans(exporter.get_finished_spans(), "genai.jsonl")
    print(answer)
