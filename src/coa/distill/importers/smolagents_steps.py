"""The steps of a smolagents memory, as dicts, turned into events. The recorder and the importer of memories share it.

smolagents 1.26: a failed tool call leaves `tool_calls` empty, so the attempt is read from `model_output_message`; the
results of parallel calls are merged in one string; and the words that the library puts around a managed agent's report
are removed here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from coa.distill.importers.content import FINISHING, as_calls, as_text, as_time, as_usage, at, split_code, without_label
from coa.distill.team_run import Event, ModelCall, Purpose, ToolCall, ToolResult
from coa.trajectory.types import Usage

Json = Mapping[str, Any]
CODE_TOOL: Final = "python_interpreter"
_FENCED_PLAN: Final = re.compile(r"```\n\s*(.*?)\s*\n\s*```\s*\Z", re.DOTALL)


def is_step(row: object) -> bool:
    return isinstance(row, Mapping) and (
        ("task" in row and "status" not in row)
        or "plan" in row
        or ("step_number" in row and "model_output" in row)
        or set(row) == {"output"}
    )


def unfenced(text: str) -> str:
    """A plan as the model wrote it, without the sentence and the fence that the library puts around it."""
    fenced = _FENCED_PLAN.search(text)
    return fenced.group(1) if fenced else text


def plan_event(step: Json, usage: Usage | None = None, **more: Any) -> ModelCall:
    text = as_text(at(step, "model_output_message", "content"))
    if not text:
        text = unfenced(as_text(step.get("plan")))
    common = {"time": as_time(at(step, "timing", "start_time")), **more, "usage": usage or _spent(step)}
    thought = reasoning(step.get("model_output_message"))
    return ModelCall.model_validate({**common, "purpose": Purpose.PLAN, "text": text.strip(), "thought": thought})


def action_call(
    step: Json,
    members: Sequence[str] = (),
    tags: tuple[str, str] | None = None,
    usage: Usage | None = None,
    **more: Any,
) -> ModelCall | None:
    """The model call of an action step with its tool calls; None if the step has none because the model failed."""
    error = as_text(at(step, "error", "message"))
    common = {"time": as_time(at(step, "timing", "start_time")), **more, "usage": usage or _spent(step)}
    if at(step, "error", "type") == "AgentMaxStepsError":
        text = as_text(step.get("action_output"))
        return ModelCall.model_validate({**common, "purpose": Purpose.ANSWER, "text": text})
    output = as_text(step.get("model_output")) or as_text(at(step, "model_output_message", "content"))
    calls = attempted_calls(step, members)
    text = without_label(output) if step.get("code_action") is None else split_code(output, tags)[0]
    if not (output or calls or step.get("model_output_message")):
        return None
    final = bool(step.get("is_final_answer"))
    kept = tuple(call for call in calls if not (final and call.name in FINISHING))
    wrote = {"thought": reasoning(step.get("model_output_message")), "text": text, "calls": kept}
    purpose, unread = Purpose.ANSWER if final else Purpose.ACT, error if error and not calls else None
    return ModelCall.model_validate({**common, **wrote, "purpose": purpose, "error": unread})


def attempted_calls(step: Json, members: Sequence[str] = ()) -> tuple[ToolCall, ...]:
    """The calls that the model wrote, whether or not they were carried out. Code is one call of the interpreter."""
    code, made = step.get("code_action"), as_calls(step.get("tool_calls"))
    if code is not None:
        identity = made[0].id if made else f"code_{step.get('step_number', 0)}"
        return (ToolCall(id=identity, name=CODE_TOOL, arguments={"code": as_text(code)}),)
    calls = as_calls(at(step, "model_output_message", "tool_calls")) or made
    return tuple(call.model_copy(update={"agent": call.name in members}) for call in calls)


def merged_results(step: Json, calls: Sequence[ToolCall], reports: Sequence[str] = ()) -> list[Event]:
    """The results of a step from memory alone: one text for all of its calls, or the error."""
    if not calls:
        return []
    error = as_text(at(step, "error", "message"))
    text = "\n".join(filter(None, (as_text(step.get("observations")), error)))
    ids = tuple(call.id for call in calls)
    return results_apart(ToolResult(call_ids=ids, text=text, ok=not error, report_of=tuple(reports)))


def results_apart(result: ToolResult) -> list[Event]:
    """One result for each of several calls, where each has a line of the text.

    smolagents writes the results of one reply one below the other, in the order of the calls' ids. With fewer or more
    lines than calls nobody can say which line belongs to which.
    """
    lines = result.text.splitlines()
    if len(result.call_ids) < 2 or len(lines) != len(result.call_ids) or not result.ok or result.report_of:
        return [result]
    about = {**result.meta, "inferred": "one line of the text that came back for several calls"}
    return [
        result.model_copy(update={"call_ids": (identity,), "text": line, "meta": about})
        for identity, line in zip(sorted(result.call_ids), lines, strict=True)
    ]


def reasoning(message: object) -> str:
    """Reasoning that a server returned beside the content; smolagents keeps it only in `raw`."""
    choices = at(message, "raw", "choices")
    inner = at(choices[0], "message") if isinstance(choices, list) and choices else None
    return as_text(at(inner, "reasoning_content") or at(inner, "reasoning")).strip()


def _spent(step: Json) -> Usage | None:
    return as_usage(step.get("token_usage")) or as_usage(at(step, "model_output_message", "token_usage"))
