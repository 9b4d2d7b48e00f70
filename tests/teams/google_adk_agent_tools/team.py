"""A manager of Google's Agent Development Kit that calls its specialists as tools (`AgentTool`).

Each specialist works in a session of its own, which ends with it: only the spans show what it did. The instrumentation
of OpenInference replaces ADK's spans, so `team_openinference.py` runs the team once more.
"""

import asyncio
import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")

from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
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

model = LiteLlm(model="openai/scripted-wrong-name")
researcher = LlmAgent(
    name="researcher", model=model, description=common.RESEARCHER_DOES, instruction=common.RESEARCHER,
    tools=[common.web_search],
)  # fmt: skip
analyst = LlmAgent(
    name="analyst", model=model, description=common.ANALYST_DOES, instruction=common.ANALYST, tools=[common.calculator]
)
manager = LlmAgent(
    name="manager", model=model, instruction=common.MANAGER, tools=[AgentTool(researcher), AgentTool(analyst)]
)


async def run(question: str) -> str:
    runner = InMemoryRunner(agent=manager, app_name="towns")
    session = await runner.session_service.create_session(app_name="towns", user_id="user")
    message = types.Content(role="user", parts=[types.Part(text=question)])
    async for event in runner.run_async(user_id="user", session_id=session.id, new_message=message):
        if event.is_final_response() and event.content:
            answer = "".join(part.text or "" for part in event.content.parts or ())
    return answer


if __name__ == "__main__":
    answer = asyncio.run(run(common.question()))
    common.write_spans(exporter.get_finished_spans(), "genai.jsonl")
    print(answer)
