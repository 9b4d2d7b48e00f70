"""Team runs as importers give them: a code agent that manages a searching agent and a verifier."""

from __future__ import annotations

import json
from typing import Any

from coa.distill.atif_writer import to_atif
from coa.distill.team_run import (
    AgentRun,
    CodeCall,
    Event,
    ModelCall,
    Purpose,
    Source,
    SubRun,
    TeamRun,
    ToolCall,
    ToolResult,
)
from coa.trajectory import Task, Usage

SPENT = Usage(prompt_tokens=1000, completion_tokens=50)


def thinks(text: str = "", *calls: ToolCall, purpose: Purpose = Purpose.ACT, thought: str = "") -> ModelCall:
    return ModelCall(purpose=purpose, text=text, calls=calls, usage=SPENT, thought=thought)


def plans(text: str) -> ModelCall:
    return thinks(text, purpose=Purpose.PLAN)


def asks(identity: str, name: str, **arguments: object) -> ToolCall:
    return ToolCall(id=identity, name=name, arguments=arguments)


def member(identity: str, name: str, **arguments: object) -> ToolCall:
    return ToolCall(id=identity, name=name, arguments=arguments, agent=True)


def code(identity: str, program: str) -> ToolCall:
    return ToolCall(id=identity, name="python_interpreter", arguments={"code": program})


def result(identity: str, text: str, *, ok: bool = True, report_of: tuple[str, ...] = ()) -> ToolResult:
    return ToolResult(call_ids=(identity,), text=text, ok=ok, report_of=report_of)


def inside(within: str, name: str, text: str, **arguments: object) -> CodeCall:
    return CodeCall(within=within, call=ToolCall(id=f"{within}-{name}", name=name, arguments=arguments), text=text)


def agent(name: str, *events: Event, answer: str | None = None, **rest: object) -> AgentRun:
    return AgentRun(id=name, agent=name, events=events, answer=answer, **rest)


def called(call_id: str, run: AgentRun) -> SubRun:
    return SubRun(call_id=call_id, run=run)


def team(
    *events: Event, answer: str | None = "330 m", question: str = "How tall is the tower?", **rest: object
) -> TeamRun:
    task = Task(id="tower", question=question, answer="330 m")
    root = agent("manager", *events, answer=answer, tools=("search_agent", "checker", "web_search", "visit_page"))
    return TeamRun(task=task, root=root, source=Source(format="atif", file="a.json"), **rest)


SEARCHER = agent(
    "search_agent",
    plans("Look twice.\n1. search\n2. read the page"),
    thinks("I look for the height.", asks("s1", "web_search", query="tower height")),
    result("s1", "1. http://ex.org/a"),
    thinks("The first hit looks official. Open it.", asks("s2", "visit_page", url="http://bad.org")),
    result("s2", "HTTP 503", ok=False),
    thinks("The site did not answer. It may be down for long. I open the other page.", asks("s3", "visit_page", url="http://ex.org/a")),
    result("s3", "the tower is 330 m tall"),
    thinks("Another source would help.", asks("s4", "web_search", query="tower 330 metres")),
    result("s4", "1. http://ex.org/b: 330 m"),
    thinks("It names the same height. I read it.", asks("s5", "visit_page", url="http://ex.org/b")),
    result("s5", "The tower: 330 m"),
    thinks("Now I can report.", purpose=Purpose.ANSWER),
    answer="### 1. Task outcome\n330 m",
)  # fmt: skip
CHECKER = agent(
    "checker",
    thinks("Both pages name the height.", purpose=Purpose.ANSWER),
    answer="330 m is supported by both pages: correct.",
)


def tower() -> TeamRun:
    """A run that the web profile can express whole."""
    return team(
        plans("The height is needed.\n\n## Plan\n1. ask the searcher\n2. check"),
        thinks("I delegate the look-up.", member("m1", "search_agent", task="Find the height")),
        called("m1", SEARCHER),
        result("m1", "Here is the report: 330 m", report_of=("search_agent",)),
        thinks("Have it checked.", member("m2", "checker", answer="330 m")),
        called("m2", CHECKER),
        result("m2", "correct", report_of=("checker",)),
        thinks("Done.", purpose=Purpose.ANSWER),
    )


FEW_CALLS = "[complexity]\nfewest_calls = 1\n[reflection]\nkept_without = 1.0\n"
"""Settings under which short runs are kept."""


def call_only(number: int) -> dict[str, Any]:
    """A trace with calls and results and not a single thought; its answer needs a judge."""
    run = team(
        thinks("", asks("a", "web_search", query=f"tower {number}")),
        result("a", f"tower {number} is 330 metres tall"),
        answer="three hundred and thirty metres",
    )
    task = Task(id=f"tower-{number}", question=f"How tall is tower {number * 7919}?", answer=f"{330 + number} m")
    return to_atif(run.model_copy(update={"task": task}))


def speaks(body: dict[str, Any]) -> str:
    asked = body["messages"][-1]["content"]
    if "Compare an answer with a reference" in asked:
        return json.dumps({"reason": "r", "verdict": "correct" if '["331 m"]' in asked else "incorrect"})
    return "The page says so.\nscore: 4" if "`double_check`" in asked else "I look at the next thing."
