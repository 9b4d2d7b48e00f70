"""What a span says, in terms that both dialects share, and the choice between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from coa.distill.importers.content import as_text, loaded
from coa.distill.team_run import EvaluatorVerdict, ToolCall
from coa.trajectory.types import Usage


class SpanRole(StrEnum):
    AGENT = "agent"
    MODEL = "model"
    TOOL = "tool"
    PLAN = "plan"
    JUDGE = "judge"
    OTHER = "other"


@dataclass(frozen=True)
class Said:
    """One message of a model's input or output."""

    role: str
    text: str = ""
    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    answers: tuple[tuple[str, str], ...] = ()
    """Results of tools: the call's id and the text."""


@dataclass(frozen=True)
class SpanReading:
    role: SpanRole = SpanRole.OTHER
    name: str = ""
    description: str = ""
    tools: tuple[str, ...] = ()
    system: str = ""
    heard: tuple[Said, ...] = ()
    said: tuple[Said, ...] = ()
    usage: Usage | None = None
    model: str | None = None
    call_id: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    request: str = ""
    output: str | None = None
    error: str | None = None
    verdicts: tuple[EvaluatorVerdict, ...] = ()


def words(value: object, names: tuple[str, ...]) -> str:
    """The text meant by an input or output that may be JSON with any of some fields, or with messages."""
    value = loaded(value)
    if isinstance(value, Mapping):
        for name in names:
            if value.get(name) not in (None, ""):
                return words(value[name], names)
    if isinstance(value, list) and value and all(isinstance(item, Mapping) and "role" in item for item in value):
        wanted = "user" if "task" in names else "assistant"
        found = [item for item in value if item.get("role") in (wanted, "human" if wanted == "user" else "ai")]
        chosen = (found[0] if wanted == "user" else found[-1]) if found else value[-1]
        return as_text(chosen.get("content", chosen.get("parts")))
    return as_text(value)


ASKED = ("task", "question", "query", "input", "prompt", "messages", "content")
TOLD = ("answer", "final_answer", "final_output", "output", "result", "messages", "content")
