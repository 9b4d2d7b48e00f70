"""Agents of CAMEL of which one asks the others through tools, recorded by its log of model calls and as memories."""

from __future__ import annotations

import os
from typing import Any

from teams.common import ANALYST, MANAGER, RESEARCHER, calculator, question, traces, web_search

os.environ |= {"CAMEL_MODEL_LOG_ENABLED": "true", "CAMEL_LOG_DIR": str(traces() / "model_log")}

from camel.agents import ChatAgent
from camel.models import ModelFactory
from camel.types import ModelPlatformType
from camel.utils import BaseTokenCounter


class Words(BaseTokenCounter):
    """Counts words for the memory's limit. The default loads its vocabulary from the network."""

    def count_tokens_from_messages(self, messages: list[Any]) -> int:
        return sum(len(self.encode(str(message))) for message in messages)

    def encode(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]

    def decode(self, token_ids: list[int]) -> str:
        return " ".join("x" * size for size in token_ids)


model = ModelFactory.create(
    model_platform=ModelPlatformType.OPENAI_COMPATIBLE_MODEL,
    model_type="scripted-wrong-arguments",
    url=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    token_counter=Words(),
)
researcher = ChatAgent(RESEARCHER, model=model, tools=[web_search], agent_id="researcher")
analyst = ChatAgent(ANALYST, model=model, tools=[calculator], agent_id="analyst")


def ask_researcher(request: str) -> str:
    """Ask the researcher to look something up.

    Args:
        request: What to look up.
    """
    return researcher.step(request).msg.content


def ask_analyst(request: str) -> str:
    """Ask the analyst to calculate something.

    Args:
        request: What to calculate.
    """
    return analyst.step(request).msg.content


manager = ChatAgent(MANAGER, model=model, tools=[ask_researcher, ask_analyst], agent_id="manager")
answer = manager.step(question()).msg.content

for agent in (manager, researcher, analyst):
    agent.save_memory(str(traces() / "memory.jsonl"))  # appends
print(answer)
