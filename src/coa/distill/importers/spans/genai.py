"""OpenTelemetry's GenAI conventions: `gen_ai.operation.name` says what a span is, messages are JSON of parts.

Content is an attribute of the span, or of one of its events. Two older spellings are read too: one event for each
message, and the flattened `gen_ai.prompt.0.content`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coa.distill.importers.content import (
    as_arguments,
    as_calls,
    as_names,
    as_number,
    as_result,
    as_text,
    as_thought,
    as_usage,
    loaded,
    mappings,
)
from coa.distill.importers.messages import Said, definitions_in
from coa.distill.importers.spans.adk import with_adk_content
from coa.distill.importers.spans.openinference import unflattened
from coa.distill.importers.spans.span import ANSWERED, ASKED, SpanReading, SpanRole, TraceSpan, results_in, words
from coa.distill.team_run import EvaluatorVerdict

_ROLES: Final = {
    "chat": SpanRole.MODEL, "text_completion": SpanRole.MODEL, "generate_content": SpanRole.MODEL,
    "completion": SpanRole.MODEL, "invoke_agent": SpanRole.AGENT, "invoke_workflow": SpanRole.AGENT,
    "execute_tool": SpanRole.TOOL, "retrieval": SpanRole.TOOL, "plan": SpanRole.PLAN, "evaluate": SpanRole.JUDGE,
}  # fmt: skip
_EVENT_ROLES: Final = {
    "gen_ai.system.message": "system", "gen_ai.user.message": "user", "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool", "gen_ai.choice": "assistant",
}  # fmt: skip
_USAGE: Final = {
    "prompt_tokens": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    "completion_tokens": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
    "cached_tokens": ("gen_ai.usage.cache_read.input_tokens",),
    "cost": ("gen_ai.usage.cost", "gen_ai.cost.total_cost", "operation.cost"),
}


_CONTROL: Final = frozenset({"ParentCommand", "GraphInterrupt", "GraphBubbleUp"})
"""What LangGraph raises to pass control on. Nothing failed."""


def read_genai(span: TraceSpan) -> SpanReading:
    attributes: dict[str, Any] = {}
    for event, details in span.events:  # content may be exported on an event of the span instead
        if event == "gen_ai.client.inference.operation.details":
            attributes |= {key: value for key, value in details.items() if key.startswith("gen_ai.")}
    attributes |= span.attributes
    operation = str(attributes.get("gen_ai.operation.name") or "")
    role = _ROLES.get(operation, SpanRole.OTHER)
    if not operation:
        by_model = "gen_ai.usage.input_tokens" in attributes or "gen_ai.request.model" in attributes
        # AG2 writes what a call took once more, as a span beside it.
        role = SpanRole.MODEL if by_model and attributes.get("ag2.span.type") != "usage" else role
    heard = _messages(attributes.get("gen_ai.input.messages")) or _older(span, attributes, output=False)
    said = _messages(attributes.get("gen_ai.output.messages")) or _older(span, attributes, output=True)
    # CrewAI's name of an agent is a hash of what it is; its role is what it is called.
    agent = attributes.get("crewai.agent.role") or attributes.get("gen_ai.agent.name")
    name = attributes.get("gen_ai.tool.name") if role is SpanRole.TOOL else agent
    failed = span.failed or "error.type" in attributes
    rules = loaded(attributes.get("gen_ai.system_instructions"))
    results = results_in(attributes.get("gen_ai.tool.call.result"), attributes.get("traceloop.entity.output"))
    call_id = as_text(attributes.get("gen_ai.tool.call.id")) or None
    output, error = _output(role, attributes, said), None
    if role is SpanRole.TOOL and results and call_id in (None, results[-1][0]):
        call_id, output, ok = results[-1]
        error = None if ok else output
    if failed and attributes.get("error.type") not in _CONTROL:
        error = span.error or as_text(attributes.get("error.type")) or "it failed"
    reading = SpanReading(
        role=role,
        name=str(name or attributes.get("gen_ai.workflow.name") or attributes.get("gen_ai.task.name") or span.name),
        description=as_text(attributes.get("gen_ai.agent.description") or attributes.get("gen_ai.tool.description")),
        tools=as_names(loaded(attributes.get("gen_ai.tool.definitions"))),
        definitions=definitions_in(attributes.get("gen_ai.tool.definitions")),
        system="\n".join(map(_part_text, rules)) if isinstance(rules, list) else as_text(rules),
        heard=heard,
        said=said,
        usage=as_usage({n: next((attributes[k] for k in ks if k in attributes), None) for n, ks in _USAGE.items()}),
        model=as_text(attributes.get("gen_ai.response.model") or attributes.get("gen_ai.request.model")) or None,
        call_id=call_id,
        arguments=_arguments(attributes.get("gen_ai.tool.call.arguments")),
        request=_request(attributes, heard),
        output=output,
        error=error,
        verdicts=_verdicts(span, attributes),
        results=results if role is SpanRole.OTHER else (),
    )
    return with_adk_content(reading, attributes)


def _request(attributes: dict[str, Any], heard: tuple[Said, ...]) -> str:
    if "crewai.crew.inputs" in attributes:
        return ""  # values for the blanks in a crew's tasks; the tasks themselves are asked of its agents
    asked = next((message.text for message in heard if message.role == "user"), "")
    return asked or words(attributes.get("input.value", attributes.get("traceloop.entity.input")), ASKED)


def _arguments(value: object) -> dict[str, Any]:
    given = as_arguments(value)
    if "input_str" not in given:
        return given
    # OpenLLMetry records everything that LangChain passed to its callback.
    inputs = given.get("inputs")
    return as_arguments(inputs if isinstance(inputs, Mapping) else given["input_str"])


def _output(role: SpanRole, attributes: dict[str, Any], said: tuple[Said, ...]) -> str | None:
    if role is SpanRole.TOOL:
        result = attributes.get("gen_ai.tool.call.result")
        return None if result is None else as_result(_unquoted(result))[0]
    for message in reversed(said):
        if message.text:
            return message.text
    # PydanticAI keeps the result of a run, which may be an object, in an attribute of its own; OpenLLMetry what a graph
    # or a function returned.
    if "final_result" in attributes:
        return as_text(attributes["final_result"])
    return words(attributes.get("traceloop.entity.output"), ANSWERED) or None


def _unquoted(value: object) -> Any:
    """The value of JSON, of a string too: conventions let a tool's result be written as either text or JSON."""
    inner = loaded(f"[{value}]") if isinstance(value, str) and value[:1] == value[-1:] == '"' else None
    return inner[0] if isinstance(inner, list) and len(inner) == 1 else loaded(value)


def _messages(value: object) -> tuple[Said, ...]:
    return tuple(map(_said, mappings(loaded(value))))


def _said(row: Mapping[str, Any]) -> Said:
    role = str(row.get("role") or "")
    parts = row.get("parts")
    if not isinstance(parts, list):
        text = as_text(row.get("content"))
        identity = row.get("tool_call_id") or row.get("id")
        answers = ((str(identity), text),) if role == "tool" and identity else ()
        return Said(role, text, as_text(row.get("reasoning_content")), as_calls(row.get("tool_calls")), answers)
    texts, thoughts, calls, found, failed = [], [], [], [], []
    for part in mappings(parts):
        kind = str(part.get("type") or "text")
        if kind == "tool_call":
            calls.append(part)
        elif kind == "tool_call_response":
            result = part.get("response", part.get("result"))
            text, ok = as_result(loaded(result))
            found.append((str(part.get("id") or ""), text))
            failed += [] if ok else [str(part.get("id") or "")]
        elif kind in ("reasoning", "thinking"):
            thoughts.append(_part_text(part))
        elif isinstance(inner := loaded(part.get("content")), Mapping) and as_text([inner]) == "":
            # OpenLLMetry writes a block that it does not know as the text of a part.
            thoughts.append(as_thought([inner]))
        else:
            written = part.get("content") is not None or part.get("text") is not None
            texts.append(_part_text(part) if written else f"[{kind}]")
    thought = "\n".join(filter(None, thoughts))
    return Said(role, "\n".join(texts), thought, as_calls(calls), tuple(found), tuple(failed))


def _part_text(part: object) -> str:
    return as_text(part.get("content", part.get("text")) if isinstance(part, Mapping) else part)


def _older(span: TraceSpan, attributes: dict[str, Any], *, output: bool) -> tuple[Said, ...]:
    rows = mappings(unflattened(attributes, "gen_ai.completion" if output else "gen_ai.prompt"))
    flat = tuple(_said(row) for row in rows if not isinstance(row.get("parts"), list))
    if flat:
        return flat
    found = []
    for name, event in span.events:
        role = _EVENT_ROLES.get(name)
        if role is None or (name == "gen_ai.choice") is not output:
            continue
        message = loaded(event.get("message"))
        body = {**event, **message} if isinstance(message, Mapping) else event
        found.append(_said({"role": role, **body, "tool_calls": loaded(body.get("tool_calls"))}))
    return tuple(found)


def _verdicts(span: TraceSpan, attributes: dict[str, Any]) -> tuple[EvaluatorVerdict, ...]:
    rows = [event for name, event in span.events if name == "gen_ai.evaluation.result"]
    if "gen_ai.evaluation.name" in attributes:
        rows.append(attributes)
    return tuple(
        EvaluatorVerdict(
            judge=as_text(row.get("gen_ai.evaluation.name")),
            score=as_number(row.get("gen_ai.evaluation.score.value")),
            label=as_text(row.get("gen_ai.evaluation.score.label")),
            text=as_text(row.get("gen_ai.evaluation.explanation")),
        )
        for row in rows
    )
