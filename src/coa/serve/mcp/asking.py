"""The tool `ask`: its arguments, its result, and what a client hears while the agents work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mcp_types import Annotations, CallToolResult, TextContent, Tool, ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.json_schema import SkipJsonSchema

from coa.serve.bodies import Body, refusal
from coa.serve.events import ItemDone, RunEvent, ToolReturned
from coa.serve.request import EFFORTS
from coa.trajectory import Stop, Trajectory, Usage
from coa.trajectory.citations import citations

NAME: Final = "ask"
_SHOWN: Final = 160
"""Most characters of a step in a progress notification."""


class AskArguments(Body):
    model_config = ConfigDict(use_attribute_docstrings=True)

    question: str = Field(min_length=1)
    """What to find out. Write it out in full: the agent sees nothing else of your conversation."""
    follow_up: str | SkipJsonSchema[None] = None
    """`run_id` of an earlier answer. The agent then knows that conversation, and the question may refer to it."""
    agent: str | SkipJsonSchema[None] = None
    """Which agent to ask."""
    effort: str | SkipJsonSchema[None] = Field(None, json_schema_extra={"enum": list(EFFORTS)})
    """How much of the agent's budgets it may use for this question. Without it, the agent may use all."""


class Source(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    url: str
    title: str
    """The address again, where no title is known."""


class Answer(BaseModel):
    """The structured content of a result."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    answer: str
    sources: tuple[Source, ...] = ()
    """Pages that the answer cites or rests on."""
    run_id: str
    """Pass it as `follow_up` to ask another question in this conversation."""
    agent: str
    """The agent that answered."""
    stop: Stop
    """Why the run ended: `answered`, or the budget that ran out, so that the agent had to answer."""
    usage: Usage
    """What the run took."""


def ask_tool(agents: Mapping[str, str]) -> Tool:
    """As it is declared to clients. `agents` are the served ones, each with a line about it."""
    schema = AskArguments.model_json_schema()
    for name, part in schema["properties"].items():
        part.pop("title", None)
        part.pop("default", None)
        if name == "agent":
            part["enum"] = list(agents)
    about = (
        "Ask an agent that works on a question in several steps: it plans, uses its tools, checks what it found, and "
    )
    about += "answers with the pages it read. An answer may take minutes."
    if len(agents) == 1:
        del schema["properties"]["agent"]
        about += f" {next(iter(agents.values()))}"
    else:
        about += "".join(f"\n- {name}: {line}" for name, line in agents.items())
    return Tool(
        name=NAME,
        title="Ask the agent",
        description=about,
        input_schema={key: part for key, part in schema.items() if key not in ("title", "description")},
        output_schema=Answer.model_json_schema(),
        annotations=ToolAnnotations(title="Ask the agent", open_world_hint=True),
    )


def read_arguments(given: Mapping[str, Any]) -> AskArguments:
    """Raises ApiError with a sentence for the model that made the call."""
    try:
        return AskArguments.model_validate(given)
    except ValidationError as error:
        raise refusal(error, given) from None


def result_of(run_id: str, agent: str, trajectory: Trajectory) -> CallToolResult:
    """The answer as text and as structured content; a run without an answer is an error of the tool."""
    if trajectory.failure is not None:
        return tool_error(f"the run failed: {trajectory.failure.message}")
    if trajectory.stop is Stop.INTERRUPTED:
        return tool_error("the run was stopped before it came to an answer")
    text = (trajectory.answer or "").strip()
    if not text:
        return tool_error(f"the agent ended without an answer ({trajectory.stop.words})")
    sources = {cited.url: Source(url=cited.url, title=cited.title) for cited in citations(text, trajectory.steps)}
    answer = Answer(
        answer=text,
        sources=tuple(sources.values()),
        run_id=run_id,
        agent=agent,
        stop=trajectory.stop,
        usage=trajectory.usage,
    )
    # Many clients show a model only the text, and it needs the handle to ask on.
    notes = [f"To ask a follow-up question, call {NAME} with follow_up={run_id}."]
    if answer.sources:
        notes.insert(0, f"Sources: {', '.join(sources)}")
    return CallToolResult(
        content=[
            TextContent(text=text),
            TextContent(text="\n".join(notes), annotations=Annotations(audience=["assistant"])),
        ],
        structured_content=answer.model_dump(mode="json", exclude_none=True),
    )


def tool_error(message: str) -> CallToolResult:
    """An error that the calling model reads."""
    return CallToolResult(content=[TextContent(text=f"error: {message}")], is_error=True)


def progress_line(event: RunEvent) -> str | None:
    """The agent and the beginning of what it wrote; None for an event that does not complete a step."""
    if not isinstance(event, ItemDone | ToolReturned):
        return None
    line = " ".join(event.step.text.split())
    return f"{event.step.agent}: {line if len(line) <= _SHOWN else line[: _SHOWN - 1] + '…'}"
