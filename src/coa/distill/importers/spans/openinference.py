"""OpenInference: messages flattened into attributes, `llm.output_messages.0.message.content` and so on.

Dict-valued tool arguments are dropped from the flattened form by some instrumentations; `output.value` then still holds
the whole message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from coa.distill.importers.content import (
    as_arguments,
    as_calls,
    as_names,
    as_number,
    as_result,
    as_text,
    as_usage,
    at,
    loaded,
    mappings,
    without_label,
)
from coa.distill.importers.messages import Said, definitions_in, reply_in
from coa.distill.importers.spans.span import ANSWERED, ASKED, SpanReading, SpanRole, TraceSpan, results_in, words
from coa.distill.team_run import EvaluatorVerdict

KIND: Final = "openinference.span.kind"
_ROLES: Final = {
    "AGENT": SpanRole.AGENT,
    "LLM": SpanRole.MODEL,
    "TOOL": SpanRole.TOOL,
    "RETRIEVER": SpanRole.TOOL,
    "EVALUATOR": SpanRole.JUDGE,
}

_HANDOFF: Final = re.compile(r"handoff to .+")


def read_openinference(span: TraceSpan) -> SpanReading:
    attributes = span.attributes
    role = _ROLES.get(str(attributes.get(KIND)).upper(), SpanRole.OTHER)
    if role is SpanRole.TOOL and _HANDOFF.match(span.name) and "tool.name" not in attributes:
        # The call that hands over is in the reply before it, and the run of the other agent follows.
        role = SpanRole.OTHER
    common: dict[str, Any] = {
        "role": role,
        "name": _name(span, role),
        "error": (span.error or "it failed") if span.failed else None,
        "verdicts": _verdicts(attributes),
    }
    match role:
        case SpanRole.AGENT:
            members = as_names(unflattened(attributes, "smolagents.managed_agents"))
            tools = attributes.get("smolagents.tools_names")
            listed = [str(name) for name in tools] if isinstance(tools, list | tuple) else []
            # CrewAI records the objects that its function was given; the task is in what the model was asked.
            request = "" if "task_key" in attributes else words(attributes.get("input.value"), ASKED)
            whole = loaded(attributes.get("output.value"))
            replied = at(whole, "role") == "assistant" or (isinstance(whole, str) and "ag2.sender.name" in attributes)
            said = (Said("assistant", whole),) if isinstance(whole, str) else reply_in(whole)
            said = said if replied else ()
            output = None if any(message.calls for message in said) else _output(attributes)
            return SpanReading(**common, tools=(*listed, *members), request=request, output=output, said=said)
        case SpanRole.MODEL:
            counts = unflattened_object(attributes, "llm.token_count")
            tokens = {"prompt_tokens": counts.get("prompt"), "completion_tokens": counts.get("completion")}
            cost = attributes.get("llm.cost.total")
            usage = as_usage({**tokens, "cached_tokens": at(counts, "prompt_details", "cache_read"), "cost": cost})
            definitions = definitions_in(
                [loaded(at(row, "tool", "json_schema")) for row in unflattened(attributes, "llm.tools")]
            )
            heard, model = _messages(attributes, "llm.input_messages"), str(attributes.get("llm.model_name") or "")
            return SpanReading(
                **common, heard=heard, said=_said(attributes), usage=usage, model=model or None, definitions=definitions
            )
        case SpanRole.TOOL:
            output = as_result(attributes["output.value"])[0] if "output.value" in attributes else None
            if output is None:
                documents = mappings([at(row, "document") for row in unflattened(attributes, "retrieval.documents")])
                output = "\n\n".join(as_text(document.get("content")) for document in documents) if documents else None
            call_id = as_text(attributes.get("tool_call.id") or attributes.get("tool.id")) or None
            results = results_in(attributes.get("output.value"))
            if results and call_id in (None, results[-1][0]):
                call_id, output, ok = results[-1]
                common |= {} if ok else {"error": output}
            return SpanReading(
                **common,
                description=as_text(attributes.get("tool.description")),
                arguments=_arguments(attributes),
                definitions=definitions_in(
                    [
                        {
                            "name": common["name"],
                            "description": attributes.get("tool.description"),
                            "parameters": _schema(attributes),
                        }
                    ]
                ),
                call_id=call_id,
                output=output,
            )
    return SpanReading(
        **common,
        request=words(attributes.get("input.value"), ASKED),
        output=_output(attributes),
        results=results_in(attributes.get("output.value")),
    )


def _name(span: TraceSpan, role: SpanRole) -> str:
    attributes = span.attributes
    if role is SpanRole.TOOL:
        return str(attributes.get("tool.name") or attributes.get("tool_call.function.name") or span.name)
    named = attributes.get("agent.name") or attributes.get("graph.node.id")
    return str(named or span.name.removesuffix(".run"))


def _output(attributes: dict[str, Any]) -> str | None:
    value = attributes.get("output.value")
    if value is None or str(value).startswith("RunResult("):
        return None  # smolagents' full result as Python prints it; the span of the final answer has the text
    return words(value, ANSWERED)


def _said(attributes: dict[str, Any]) -> tuple[Said, ...]:
    """The reply as the API returned it, or flattened if that has more. Flattening may lose arguments and thoughts."""
    said, value = _messages(attributes, "llm.output_messages"), loaded(attributes.get("output.value"))
    if isinstance(value, str):
        return said or ((Said("assistant", value),) if value else ())
    whole = reply_in(value)
    calls = [sum(len(message.calls) for message in messages) for messages in (said, whole)]
    if not whole or calls[1] < calls[0]:
        return said
    text = "\n".join(message.text for message in whole)
    beside = "\n".join(message.text.replace(text, "") if text else message.text for message in said).strip()
    if any(message.thought for message in whole) or not (beside or any(message.thought for message in said)):
        return whole
    if beside and isinstance(value, Mapping) and "content" in value:
        # smolagents' instrumentation flattens reasoning as if it were text; the message itself has it apart.
        return (replace(whole[0], thought=beside), *whole[1:])
    return said


def _messages(attributes: dict[str, Any], prefix: str) -> tuple[Said, ...]:
    found = []
    for message in mappings([at(row, "message") for row in unflattened(attributes, prefix)]):
        texts = [as_text(message["content"])] if message.get("content") is not None else []
        thoughts: list[str] = []
        for inner in mappings([at(part, "message_content") for part in _listed(message.get("contents"))]):
            thinking = "reason" in str(inner.get("type")) or "think" in str(inner.get("type"))
            shown = as_text(inner.get("text")) or f"[{inner.get('type')}]"
            if thinking or shown not in texts:  # some instrumentations write the content both ways
                (thoughts if thinking else texts).append(shown)
        calls = [at(call, "tool_call") for call in _listed(message.get("tool_calls"))]
        role = str(message.get("role") or "")
        text, ok = as_result("\n".join(texts)) if role == "tool" else ("\n".join(texts), True)
        identity = str(message.get("tool_call_id") or "") if role == "tool" else ""
        thought = as_text(message.get("reasoning_content")) or "\n".join(thoughts)
        answers = ((identity, text),) if identity else ()
        found.append(Said(role, text, thought, as_calls(calls), answers, () if ok else (identity,)))
    return tuple(found)


def _arguments(attributes: dict[str, Any]) -> dict[str, Any]:
    value = loaded(attributes.get("tool_call.function.arguments", attributes.get("input.value")))
    if isinstance(value, Mapping) and isinstance(value.get("kwargs"), Mapping) and "args" in value:
        # smolagents records the positional and named arguments of the Python call.
        positional = value["args"] if isinstance(value["args"], list) else []
        names = list(as_arguments(attributes.get("tool.parameters")))
        bound = {names[i] if i < len(names) else f"argument_{i + 1}": item for i, item in enumerate(positional)}
        return as_arguments({**bound, **value["kwargs"]})
    return as_arguments(value)


def _schema(attributes: dict[str, Any]) -> object:
    """A tool's parameters, where they are a JSON schema."""
    value = loaded(attributes.get("tool.parameters"))
    return value if isinstance(value, Mapping) and isinstance(value.get("properties"), Mapping) else None


def _verdicts(attributes: dict[str, Any]) -> tuple[EvaluatorVerdict, ...]:
    return tuple(
        EvaluatorVerdict(
            judge=as_text(row.get("name") or row.get("annotator_kind")),
            score=as_number(row.get("score")),
            label=as_text(row.get("label")),
            text=without_label(as_text(row.get("explanation"))),
        )
        for row in mappings([at(row, "annotation") for row in unflattened(attributes, "annotations")])
    )


def unflattened(attributes: dict[str, Any], prefix: str) -> list[Any]:
    """`prefix.0.a.b`, `prefix.1.a` as a list of nested objects."""
    return _listed(unflattened_object(attributes, prefix))


def unflattened_object(attributes: dict[str, Any], prefix: str) -> dict[str, Any]:
    root: dict[str, Any] = {}
    start = prefix + "."
    for key, value in attributes.items():
        if not key.startswith(start):
            continue
        *path, last = key[len(start) :].split(".")
        node = root
        for name in path:
            below = node.get(name)
            if not isinstance(below, dict):
                below = node[name] = {}
            node = below
        node[last] = value
    return root


def _listed(node: object) -> list[Any]:
    """The members of an object whose keys are numbers, in their order."""
    if isinstance(node, list):
        return node
    if not isinstance(node, dict):
        return []
    return [node[key] for key in sorted((key for key in node if key.isdigit()), key=int)]
