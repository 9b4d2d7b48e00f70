"""A group chat of AG2 0.x (`import autogen`): a manager hands over to a researcher and an analyst, who hand back.

The history of the chat and AG2's own spans. `team_openinference.py` runs the team once more.
"""

import json
import os

from autogen import ConversableAgent, LLMConfig
from autogen.agentchat import initiate_group_chat
from autogen.agentchat.group import AgentTarget, OnCondition, StringLLMCondition, TerminateTarget
from autogen.agentchat.group.patterns import DefaultPattern
from autogen.opentelemetry import instrument_llm_wrapper, instrument_pattern
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from teams import common

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))

model = LLMConfig(
    {"model": "scripted-wrong-name", "base_url": os.environ["OPENAI_BASE_URL"], "api_key": "none", "price": [0, 0]}
)
researcher = ConversableAgent(
    "researcher", common.RESEARCHER, llm_config=model, description=common.RESEARCHER_DOES, functions=[common.web_search]
)
analyst = ConversableAgent(
    "analyst", common.ANALYST, llm_config=model, description=common.ANALYST_DOES, functions=[common.calculator]
)
manager = ConversableAgent("manager", common.MANAGER, llm_config=model)
manager.handoffs.add_llm_conditions(
    [
        OnCondition(
            target=AgentTarget(researcher), condition=StringLLMCondition(prompt="Something has to be looked up.")
        ),
        OnCondition(
            target=AgentTarget(analyst), condition=StringLLMCondition(prompt="Something has to be calculated.")
        ),
    ]
)
manager.handoffs.set_after_work(TerminateTarget())
researcher.handoffs.set_after_work(AgentTarget(manager))
analyst.handoffs.set_after_work(AgentTarget(manager))
pattern = DefaultPattern(initial_agent=manager, agents=[manager, researcher, analyst])


def run(question: str) -> str:
    result, _, _ = initiate_group_chat(pattern=pattern, messages=question, max_rounds=20)
    (common.traces() / "chat_history.json").write_text(json.dumps(result.chat_history, indent=1))
    return result.summary


if __name__ == "__main__":
    instrument_llm_wrapper(tracer_provider=provider, capture_messages=True)
    instrument_pattern(pattern, tracer_provider=provider)
    answer = run(common.question())
    common.write_spans(exporter.get_finished_spans(), "genai.jsonl")
    print(answer)
