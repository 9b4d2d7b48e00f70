"""smolagents teams driven by scripted models: the two-agent team of the captured files, and parts to build others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from smolagents import ChatMessage, CodeAgent, Model, Tool, ToolCallingAgent
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole, TokenUsage

Reply = str | tuple[str, list[tuple[str, str, dict[str, Any]]]] | Exception | Callable[[], Any]


class ScriptedTeamModel(Model):
    """Answers in the order of its script and keeps a log of its calls with what each cost."""

    def __init__(self, name: str, replies: Sequence[Reply]) -> None:
        super().__init__(model_id=f"scripted/{name}")
        self.replies = list(replies)
        self.log: list[tuple[int, int]] = []
        self._guard = threading.Lock()

    def generate(self, messages: Any, *_: Any, **__: Any) -> ChatMessage:
        with self._guard:
            reply = self.replies.pop(0)
        if callable(reply):
            reply = reply()
        if isinstance(reply, Exception):
            raise reply
        text, calls = (reply, None) if isinstance(reply, str) else (reply[0], reply[1])
        used = TokenUsage(input_tokens=100 + 10 * len(messages), output_tokens=len(text) // 4 + 1)
        self.log.append((used.input_tokens, used.output_tokens))
        return ChatMessage(
            role=MessageRole.ASSISTANT,
            content=text,
            tool_calls=calls
            and [
                ChatMessageToolCall(
                    id=identity, type="function", function=ChatMessageToolCallFunction(name=name, arguments=arguments)
                )
                for identity, name, arguments in calls
            ],
            token_usage=used,
        )


class WebSearch(Tool):
    name = "web_search"
    description = "Search the web."
    inputs = {"query": {"type": "string", "description": "query"}}  # noqa: RUF012
    output_type = "string"

    def forward(self, query: str) -> str:
        return f"1. Result about {query} (http://ex.org/a)"


class VisitPage(Tool):
    name = "visit_page"
    description = "Read a page."
    inputs = {"url": {"type": "string", "description": "url"}}  # noqa: RUF012
    output_type = "string"

    def forward(self, url: str) -> str:
        if "bad" in url:
            raise RuntimeError("HTTP 503")
        return f"Page {url}: the tower is 330 m tall."


MANAGER: tuple[Reply, ...] = (
    "## Facts\nnone\n## Plan\n1. ask search_agent\n2. convert to feet\n3. verify",
    "Thought: I delegate the look-up.\n<code>\nr = search_agent(task='How tall is the tower?')\nprint(r)\n</code>",
    "Thought: convert.\n<code>\nh = undefined_name * 3.28\n</code>",
    "Thought: fix the bug, then verify with the team member.\n<code>\nh = 330*3.28\n"
    "r2 = search_agent(task='Verify the tower is 330 m')\nprint(r2)\n</code>",
    "## Updated facts\n330 m\n## Plan\n1. answer",
    "Thought: done.\n<code>\nfinal_answer(round(h))\n</code>",
)
SEARCHER: tuple[Reply, ...] = (
    "1. search\n2. read page",
    (
        "I should search two phrasings.",
        [("c1", "web_search", {"query": "tower height"}), ("c2", "web_search", {"query": "tower height metres"})],
    ),
    ("Open the first hit.", [("c3", "visit_page", {"url": "http://bad.org"})]),
    ("The site failed; try another.", [("c4", "visit_page", {"url": "http://ex.org/a"})]),
    ("Now I can answer.", [("c5", "final_answer", {"answer": "330 m"})]),
    "1. verify on second source",
    ("Verify.", [("d1", "web_search", {"query": "tower height verify"})]),
    ("Confirmed.", [("d2", "final_answer", {"answer": "330 m confirmed"})]),
)


def searcher(model: Model, **rest: Any) -> ToolCallingAgent:
    return ToolCallingAgent(
        tools=[WebSearch(), VisitPage()],
        model=model,
        name="search_agent",
        description="Searches the web.",
        verbosity_level=-1,
        **rest,
    )


def two_agents() -> tuple[CodeAgent, list[ScriptedTeamModel]]:
    """The team of the captured files: a code agent that calls its searcher twice; one tool call and one block fail."""
    models = [ScriptedTeamModel("manager", MANAGER), ScriptedTeamModel("search", SEARCHER)]
    manager = CodeAgent(
        tools=[],
        model=models[0],
        managed_agents=[searcher(models[1], planning_interval=10, max_steps=6)],
        planning_interval=3,
        max_steps=6,
        verbosity_level=-1,
    )
    return manager, models
