"""A swarm of AutoGen: a manager that hands off to a researcher and an analyst, who hand back to it.

The messages of the run, the state of the team, the spans of OpenInference and AutoGen's own.
"""

import asyncio
import json
import os

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import TextMessageTermination
from autogen_agentchat.teams import Swarm
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from openinference.instrumentation.autogen_agentchat import AutogenAgentChatInstrumentor
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from teams import common

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
AutogenAgentChatInstrumentor().instrument(tracer_provider=provider)

info = ModelInfo(
    vision=False, function_calling=True, json_output=False, family=ModelFamily.UNKNOWN, structured_output=False
)
model = OpenAIChatCompletionClient(model="scripted-wrong-name", base_url=os.environ["OPENAI_BASE_URL"], model_info=info)
manager = AssistantAgent("manager", model, system_message=common.MANAGER, handoffs=["researcher", "analyst"])
researcher = AssistantAgent(
    "researcher", model, description=common.RESEARCHER_DOES, system_message=common.RESEARCHER,
    tools=[common.web_search], handoffs=["manager"], max_tool_iterations=5,
)  # fmt: skip
analyst = AssistantAgent(
    "analyst", model, description=common.ANALYST_DOES, system_message=common.ANALYST,
    tools=[common.calculator], handoffs=["manager"], max_tool_iterations=5,
)  # fmt: skip


async def run(question: str) -> str:
    team = Swarm([manager, researcher, analyst], termination_condition=TextMessageTermination("manager"))
    result = await team.run(task=question)
    messages = [message.model_dump(mode="json") for message in result.messages]
    (common.traces() / "messages.json").write_text(json.dumps(messages, indent=1))
    (common.traces() / "state.json").write_text(json.dumps(await team.save_state(), indent=1))
    return result.messages[-1].to_text()


if __name__ == "__main__":
    answer = asyncio.run(run(common.question()))
    common.write_spans(exporter.get_finished_spans(), "openinference.jsonl")
    print(answer)
