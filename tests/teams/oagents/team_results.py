"""A manager of OAgents that writes code, and its search agent. Writes a row as OAgents' script for GAIA does.

OAgents is not on PyPI, so this is no part of the teams that `capture.py` runs. `tests/corpus/oagents/results.jsonl` was
made by it once, with the library of github.com/OPPO-PersonalAI/OAgents at commit 1ee1d86, json_repair and scikit-learn:

    python tests/teams/oagents/team_results.py > tests/corpus/oagents/results.jsonl

The replies of the model are written down here; everything else is OAgents. The first request of the manager is wrong.
"""

from __future__ import annotations

import json
import os
from contextlib import redirect_stdout
from sys import stderr

os.environ.setdefault("OPENAI_API_KEY", "sk-not-a-key")

from oagents import ChatMessage, CodeAgent, LogLevel, Model, ToolCallingAgent, tool
from oagents.memory import ActionStep, PlanningStep, TaskStep
from oagents.models import ChatMessageToolCall, ChatMessageToolCallDefinition, MessageRole

from teams import common

FRAME = "You have one question to answer. Here is the task:\n"
KINDS = {ActionStep: "action", TaskStep: "task", PlanningStep: "planning"}


def code(thought: str, program: str) -> str:
    return f"Thought: {thought}\nCode:\n```py\n{program}\n```<end_code>"


MANAGER = [
    "Two towns are named. Their numbers are not known.",
    "1. Ask for both numbers. 2. Add them.",
    code("I ask the search agent for both towns.", "found = search_agent(subject='towns')"),
    code(
        "The request was refused. I ask again.",
        "found = search_agent(task='Find the number of inhabitants of Ostrel and of Brnov.')\nprint(found)",
    ),
    code(
        "Both numbers are known. I check one of them.",
        "print(search_agent(task='Verify the number of inhabitants of Brnov.'))",
    ),
    code("Now I add them.", "print(279500 + 395000)"),
    code("The sum is the answer.", "final_answer('674,500')"),
    "FINAL ANSWER: 674,500",
]
SEARCHER = [
    "Two towns are named.",
    "1. Search for each.",
    ("web_search", {"query": "inhabitants of Ostrel"}),
    ("web_search", {"query": "inhabitants of Brnov"}),
    ("final_answer", {"answer": "Ostrel has 279,500 inhabitants and Brnov has 395,000."}),
    "One town is named.",
    "1. Search for it.",
    ("web_search", {"query": "size of Brnov"}),
    ("final_answer", {"answer": "Brnov has 395,000 inhabitants."}),
]


class Written(Model):
    """Says one reply after another."""

    def __init__(self, replies):
        super().__init__()
        self.replies, self.model_id = iter(replies), "written"
        self.last_input_token_count, self.last_output_token_count = 10, 5

    def __call__(self, messages, **options):
        reply = next(self.replies)
        if isinstance(reply, str):
            return ChatMessage(role=MessageRole.ASSISTANT, content=reply)
        name, given = reply
        function = ChatMessageToolCallDefinition(name=name, arguments=given)
        calls = [ChatMessageToolCall(function=function, id="call_0", type="function")]
        return ChatMessage(role=MessageRole.ASSISTANT, content="I look.", tool_calls=calls)


def main() -> None:
    searcher = ToolCallingAgent(
        tools=[tool(common.web_search)],
        model=Written(SEARCHER),
        name="search_agent",
        description="Searches the web.",
        provide_run_summary=True,
    )
    manager = CodeAgent(tools=[], model=Written(MANAGER), managed_agents=[searcher], verbosity_level=LogLevel.OFF)
    with redirect_stdout(stderr):
        result = manager.run(FRAME + common.question())
    steps = []
    for step in manager.memory.steps:
        step.model_input_messages = None
        row = {**step.dict(), "step_type": KINDS.get(type(step), "unknown")}
        steps.append({name: value for name, value in row.items() if not name.startswith("model_output_message")})
    row = {
        "agent_name": "written",
        "question": common.question(),
        "augmented_question": FRAME + common.question(),
        "prediction": str(result),
        "true_answer": "674,500",
        "intermediate_steps": steps,
        "parsing_error": False,
        "iteration_limit_exceeded": False,
        "agent_error": None,
        "task": "1",
        "task_id": "towns",
        "search_agent_actions": searcher.task_records,
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
