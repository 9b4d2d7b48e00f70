"""Spans of MLflow and of Langfuse: a type, an input and an output, both as the traced function or model had them.

MLflow writes `mlflow.spanType`, `mlflow.spanInputs` and `mlflow.spanOutputs`, each value as JSON. Langfuse writes
`langfuse.observation.type`, `.input` and `.output`. Both trace Python functions (by their arguments) and calls of model
APIs (by request and reply).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coa.distill.importers.content import as_arguments, as_number, as_text, as_usage, at, loaded, mappings
from coa.distill.importers.messages import Said, definitions_in, message, reply_in, said_in
from coa.distill.importers.spans.span import ANSWERED, ASKED, SpanReading, SpanRole, TraceSpan, words
from coa.trajectory.types import Usage

MLFLOW: Final = "mlflow.spanType"
LANGFUSE: Final = "langfuse.observation.type"
_ROLES: Final = {
    "AGENT": SpanRole.AGENT,
    "CHAT_MODEL": SpanRole.MODEL,
    "LLM": SpanRole.MODEL,
    "GENERATION": SpanRole.MODEL,
    "TOOL": SpanRole.TOOL,
    "RETRIEVER": SpanRole.TOOL,
    "EVALUATOR": SpanRole.JUDGE,
}


def read_mlflow(span: TraceSpan) -> SpanReading:
    given = {name: _decoded(value) for name, value in span.attributes.items()}
    usage = as_usage(given.get("mlflow.chat.tokenUsage"))
    model = as_text(given.get("mlflow.llm.model") or at(given.get("mlflow.spanInputs"), "model"))
    return _reading(
        span, as_text(given[MLFLOW]), given.get("mlflow.spanInputs"), given.get("mlflow.spanOutputs"),
        usage=usage, model=model or None, tools=given.get("mlflow.chat.tools"),
    )  # fmt: skip


def read_langfuse(span: TraceSpan) -> SpanReading:
    given = span.attributes
    failed = given.get("langfuse.observation.level") == "ERROR"
    if failed and not span.failed:
        span.failed, span.error = True, as_text(given.get("langfuse.observation.status_message"))
    costs = loaded(given.get("langfuse.observation.cost_details"))
    return _reading(
        span, as_text(given[LANGFUSE]), loaded(given.get("langfuse.observation.input")),
        loaded(given.get("langfuse.observation.output")),
        usage=_langfuse_usage(loaded(given.get("langfuse.observation.usage_details")), as_number(at(costs, "total"))),
        model=as_text(given.get("langfuse.observation.model.name")) or None, tools=None,
    )  # fmt: skip


def _reading(
    span: TraceSpan, kind: str, given: Any, output: Any, *, usage: Usage | None, model: str | None, tools: object
) -> SpanReading:
    role = _ROLES.get(kind.upper(), SpanRole.OTHER)
    error = (span.error or "it failed") if span.failed else None
    if role is SpanRole.MODEL:
        definitions = definitions_in(tools or at(given, "tools"))
        return SpanReading(
            role, span.name, definitions=definitions, heard=_heard(given), said=_said(output), usage=usage,
            model=model, error=error, system=as_text(at(given, "system") or at(given, "instructions")),
        )  # fmt: skip
    shown = None if output is None else words(output, ANSWERED)
    if role is SpanRole.TOOL:
        return SpanReading(
            role, span.name, arguments=as_arguments(_called_with(given)), error=error,
            output=None if output is None else as_text(output),
        )  # fmt: skip
    return SpanReading(role, span.name, request=_asked(given), output=shown, error=error)


def _decoded(value: object) -> object:
    """MLflow writes every value as JSON, texts with their quotes."""
    value = loaded(value)
    if isinstance(value, str) and value[:1] == value[-1:] == '"':
        decoded = loaded(f"[{value}]")
        return decoded[0] if isinstance(decoded, list) else value
    return value


def _called_with(given: object) -> object:
    """The arguments of a Python function: Langfuse keeps positional and named ones apart."""
    if isinstance(given, Mapping) and set(given) == {"args", "kwargs"} and isinstance(given["kwargs"], Mapping):
        positional = given["args"] if isinstance(given["args"], list) else []
        return {**{f"argument_{n}": value for n, value in enumerate(positional, 1)}, **given["kwargs"]}
    return given


def _asked(given: object) -> str:
    arguments = _called_with(given)
    if isinstance(arguments, Mapping) and not any(arguments.get(name) for name in ASKED):
        texts = [value for value in arguments.values() if isinstance(value, str) and value.strip()]
        if len(texts) == 1:
            return texts[0]
    return words(arguments, ASKED) if arguments not in (None, {}, []) else ""


def _heard(given: object) -> tuple[Said, ...]:
    """The messages of a request; LangChain nests them in a batch of one."""
    if isinstance(given, Mapping):
        return said_in(next((given[name] for name in ("messages", "input", "prompt") if given.get(name)), None))
    return said_in(given[0] if isinstance(given, list) and given and isinstance(given[0], list) else given)


def _said(output: object) -> tuple[Said, ...]:
    batches = at(output, "generations")
    first = batches[0] if isinstance(batches, list) and batches else None
    if (generated := mappings(first)[:1]) and isinstance(reply := generated[0].get("message"), Mapping):
        return (message({"role": "assistant", **reply}),)
    return reply_in(output)


def _langfuse_usage(counts: object, cost: float | None) -> Usage | None:
    """As the model's API counts, or as Langfuse does: `input`, `input_cached_tokens`, `output`, which add up."""
    if isinstance(counts, Mapping) and any(str(name).startswith(("input", "output")) for name in counts):
        numbers = {str(name): int(as_number(value) or 0) for name, value in counts.items()}
        prompt, completion = (
            sum(number for name, number in numbers.items() if name.startswith(side)) for side in ("input", "output")
        )
        cached = sum(number for name, number in numbers.items() if name.startswith("input") and "cache" in name)
        counts = {"prompt_tokens": prompt, "completion_tokens": completion, "cached_tokens": cached}
    usage = as_usage(counts)
    return usage.model_copy(update={"cost": cost}) if usage is not None and cost is not None else usage
