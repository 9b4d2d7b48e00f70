"""A team without a framework: three loops around the OpenAI client. Tracing libraries decorate its functions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from teams import common

MODEL = "scripted-busy"
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Json = dict[str, Any]


def described(name: str, about: str, argument: str) -> Json:
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


class Team:
    """`as_agent` and `as_tool` take a name and give a decorator; `conversations` keeps every message."""

    def __init__(self, client: Any, as_agent: Callable[[str], Decorator], as_tool: Callable[[str], Decorator]) -> None:
        self.client, self.busy = client, common.BusyOnce()
        self.conversations: list[Json] = []
        search, calculate = as_tool("web_search")(common.web_search), as_tool("calculator")(common.calculator)
        find = {"web_search": (described("web_search", "Search the web.", "query"), search)}
        count = {"calculator": (described("calculator", "Calculate an expression.", "expression"), calculate)}

        @as_agent("researcher")
        def research(task: str) -> str:
            return self._loop("researcher", common.RESEARCHER, task, find)

        @as_agent("analyst")
        def analyse(task: str) -> str:
            return self._loop("analyst", common.ANALYST, task, count)

        @as_tool("researcher")
        def ask_researcher(task: str) -> str:
            self.busy()
            return str(research(task=task))

        @as_tool("analyst")
        def ask_analyst(task: str) -> str:
            return str(analyse(task=task))

        members = {
            "researcher": (described("researcher", common.RESEARCHER_DOES, "task"), ask_researcher),
            "analyst": (described("analyst", common.ANALYST_DOES, "task"), ask_analyst),
        }

        @as_agent("manager")
        def manage(question: str) -> str:
            return self._loop("manager", common.MANAGER, question, members)

        self.run = manage
        self._calling: list[str] = []

    def _loop(self, name: str, system: str, request: str, tools: dict[str, tuple[Json, Any]]) -> str:
        messages: list[Json] = [{"role": "system", "content": system}, {"role": "user", "content": request}]
        kept: Json = {"session_id": f"{name}-{len(self.conversations)}", "agent": name, "messages": messages}
        if self._calling:
            kept["parent_call_id"] = self._calling[-1]
        self.conversations.append(kept)
        while True:
            offered = [definition for definition, _ in tools.values()]
            reply = self.client.chat.completions.create(model=MODEL, messages=messages, tools=offered)
            message = reply.choices[0].message.model_dump(exclude_none=True)
            messages.append(message | {"usage": reply.usage.model_dump(exclude_none=True)})
            if not message.get("tool_calls"):
                return str(message["content"])
            for call in message["tool_calls"]:
                messages.append(self._called(call, tools))

    def _called(self, call: Json, tools: dict[str, tuple[Json, Any]]) -> Json:
        function = call["function"]
        self._calling.append(call["id"])
        row: Json = {"role": "tool", "tool_call_id": call["id"]}
        try:
            return row | {"content": tools[function["name"]][1](**json.loads(function["arguments"]))}
        except RuntimeError as error:
            return row | {"content": f"Error: {error}", "is_error": True}
        finally:
            self._calling.pop()
