"""Agents without a span of their own: what works inside the span of a tool that asks a member of the team.

CrewAI's delegation is a tool whose span holds the model calls and the tools of the coworker. A tool that merely uses a
model, such as one that sums up a page, is not taken for an agent: its model calls no tools.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from coa.distill.importers.calls.naming import prompt
from coa.distill.importers.spans.span import SpanReading, SpanRole, TraceSpan
from coa.distill.member_names import generic, guessed_in, plain_name
from coa.distill.team_run import ToolCall

Reader = Callable[[TraceSpan], SpanReading]
_DEEP: Final = 50


def hidden_agent(span: TraceSpan, read: Reader) -> TraceSpan | None:
    """The span of a tool as that of the agent which works in it; None where none does."""
    reading = read(span)
    models = list(_models(span, read, _DEEP))
    call = ToolCall(id=span.id, name=reading.name or "tool", arguments=reading.arguments)
    acts = any(message.calls for model in models for message in model.said)
    if not models or not (acts or generic(call)):
        return None
    system = next((m.text for model in models for m in model.heard if m.role == "system"), models[0].system)
    named = guessed_in(call)
    name = named if plain_name(named) != plain_name(call.name) else prompt(system).name or call.name
    # What it was asked stands in what its model read.
    agent = SpanReading(role=SpanRole.AGENT, name=name, output=reading.output)
    return replace(span, id=f"{span.id}/agent", reading=agent)


def _models(span: TraceSpan, read: Reader, left: int) -> list[SpanReading]:
    """Model calls inside that no agent's span and no other tool's span encloses."""
    found: list[SpanReading] = []
    for child in span.children if left else ():
        reading = read(child)
        if reading.role is SpanRole.MODEL:
            found.append(reading)
        elif reading.role in (SpanRole.OTHER, SpanRole.PLAN):
            found += _models(child, read, left - 1)
        elif reading.role is SpanRole.AGENT:
            return []
    return found
