"""What the agents of the scripted team say: `scripted_team.py` is the server that speaks for them.

What is said depends only on who is asked (each agent's instructions contain "You are the manager", "... researcher",
"... analyst") and on what stands in the history, so that a team gets the same replies in whatever framework it was
built.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Json = dict[str, Any]
ANSWER = "674,500"
SEARCHES = ("inhabitants of Ostrel", "inhabitants of Brnov")
SUM = "279500 + 395000"


class Failing(StrEnum):
    """How the first hand-over fails."""

    WRONG_NAME = "wrong-name"
    """The manager names an agent that does not exist."""
    WRONG_ARGUMENTS = "wrong-arguments"
    """The arguments do not fit the tool."""
    BUSY = "busy"
    """The call is right. The team refuses it once."""


@dataclass(frozen=True)
class Turn:
    role: str
    text: str = ""
    calls: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tool:
    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """A request in any protocol."""

    model: str
    system: str
    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...]
    stream: bool

    @property
    def heard(self) -> str:
        return "\n".join(turn.text for turn in self.turns)


@dataclass(frozen=True)
class Reply:
    text: str = ""
    thought: str = ""
    calls: tuple[tuple[str, Json], ...] = ()


def reply_to(asked: Asked) -> tuple[str, Reply]:
    """Who is asked, and what it says."""
    said = f"{asked.system}\n{asked.turns[0].text if asked.turns else ''}"
    agent = next((name for name in ("researcher", "analyst", "manager") if f"You are the {name}" in said), "")
    if agent == "researcher":
        return agent, _researcher(asked)
    if agent == "analyst":
        return agent, _analyst(asked)
    if agent == "manager":
        return agent, _manager(asked)
    return "nobody", Reply("ok")  # a title, a summary: what a framework asks for on its own account


def _manager(asked: Asked) -> Reply:
    if "The analyst reports:" in asked.heard:
        finishing = _finishing(asked)
        return Reply(calls=((finishing.name, _filled(finishing, ANSWER, "")),)) if finishing else Reply(ANSWER)
    if "The researcher reports:" in asked.heard:
        call = _hand_over(asked, "analyst", "Add 279,500 and 395,000.")
        return Reply("Both numbers are known. The analyst adds them.", calls=(call,))
    wanted = "Find the number of inhabitants of Ostrel and of Brnov."
    if any(turn.calls or turn.role == "assistant" for turn in asked.turns):  # smolagents repeats calls as text
        call = _hand_over(asked, "researcher", wanted)
        return Reply("The request was refused. I ask the researcher again.", calls=(call,))
    way = next((way for way in Failing if way in asked.model), Failing.BUSY)
    call = _hand_over(asked, "researcher", wanted, way)
    return Reply("I ask the researcher how many people live in Ostrel and in Brnov.", calls=(call,))


def _researcher(asked: Asked) -> Reply:
    if "279,500" in asked.heard and "395,000" in asked.heard:
        return _report(asked, "The researcher reports: Ostrel has 279,500 inhabitants and Brnov has 395,000.")
    tool = _tool(asked, "web_search")
    calls = tuple((tool.name, _filled(tool, query, "")) for query in SEARCHES)
    return Reply("I look up both towns at once.", calls=calls)


def _analyst(asked: Asked) -> Reply:
    if "674500" in asked.heard:
        return _report(asked, "The analyst reports: the sum is 674,500.")
    tool = _tool(asked, "calculator")
    return Reply(thought="The sum needs one calculation.", calls=((tool.name, _filled(tool, SUM, "")),))


def _report(asked: Asked, text: str) -> Reply:
    """A member that can give control back, or has a tool to hand in what it found, does so."""
    if finishing := _finishing(asked):
        return Reply(calls=((finishing.name, _filled(finishing, text, "")),))
    back = [tool for tool in asked.tools if re.search(r"manager|transfer_back", tool.name, re.IGNORECASE)]
    if not back:
        back = [tool for tool in asked.tools if tool.name == "transfer_to_agent"]
    if not back:
        return Reply(text)
    return Reply(text, calls=((back[0].name, _filled(back[0], text, "manager")),))


def _finishing(asked: Asked) -> Tool | None:
    names = ("final_answer", "final_result", "submit", "finish")
    return next((tool for tool in asked.tools if tool.name in names), None)


def _tool(asked: Asked, name: str) -> Tool:
    return next((tool for tool in asked.tools if name in tool.name), Tool(name))


_DELEGATION = re.compile(r"delegate|transfer|hand_?off|^task$|^agent$|send_message|assign", re.IGNORECASE)


def _hand_over(asked: Asked, member: str, request: str, failing: Failing | None = None) -> tuple[str, Json]:
    named = [tool for tool in asked.tools if member in tool.name.casefold()]
    generic = [tool for tool in asked.tools if _DELEGATION.search(tool.name)]
    tool = next(iter([*named, *generic]), Tool(member))
    if failing is Failing.WRONG_NAME:
        name = tool.name.casefold().replace(member, "librarian") if named else tool.name
        return name, _filled(tool, request, "librarian")
    if failing is Failing.WRONG_ARGUMENTS:
        return tool.name, {"subject": 7}
    return tool.name, _filled(tool, request, member)


def _filled(tool: Tool, text: str, member: str) -> Json:
    """Arguments that fit the tool: the member's name where an agent is to be named, else the text."""
    properties = tool.parameters.get("properties") or {}
    required = tool.parameters.get("required") or list(properties)
    if member and "subagent_type" in properties:  # Claude Code has an agent of its own where none is named
        required = [*required, "subagent_type"]
    found: Json = {}
    for name in required:
        if name not in properties:
            continue
        if member and re.search(r"agent|coworker|recipient|member|^to$|^name$", name):
            found[name] = member
        elif properties[name].get("type", "string") == "string" or "anyOf" in properties[name]:
            found[name] = "The question is about two towns." if name == "context" else text
        elif properties[name].get("type") == "object":
            found[name] = {}
        elif properties[name].get("type") == "array":
            found[name] = []
        elif properties[name].get("type") == "boolean":
            found[name] = False
        else:
            found[name] = 0
    return found or ({} if tool.parameters else {"query": text})


def tokens(*parts: str) -> int:
    """A count that depends on the text alone."""
    return max(1, sum(len(re.findall(r"\w+|[^\w\s]", part)) for part in parts))
