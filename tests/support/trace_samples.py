"""A small whole file of each trace format, as bytes, one JSON value a line."""

# ruff: noqa: E501 - rows of data are easier to read whole

from __future__ import annotations

import json
from typing import Any

from support.call_records import CallRecords
from support.call_teams import agents_as_tools


def _lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _attribute(key: str, value: Any) -> dict[str, Any]:
    kind = "intValue" if isinstance(value, int) else "stringValue"
    spelled = str(value) if isinstance(value, int) else value if isinstance(value, str) else json.dumps(value)
    return {"key": key, "value": {kind: spelled}}


def _span(number: int, parent: int | None, name: str, **attributes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "traceId": "aa",
        "spanId": str(number),
        "name": name,
        "startTimeUnixNano": str(1_700_000_000_000_000_000 + number),
        "attributes": [_attribute(key, value) for key, value in attributes.items()],
        "status": {"code": 1},
        "events": [],
    }
    return row if parent is None else {**row, "parentSpanId": str(parent)}


_CALL = {"type": "tool_call", "id": "c1", "name": "search", "arguments": {"q": "tower"}}
_GENAI = (
    _span(1, None, "a", **{
        "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "boss",
        "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "How tall?"}]}],
    }),
    _span(2, 1, "chat", **{
        "gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 5, "gen_ai.usage.output_tokens": 2,
        "gen_ai.output.messages": [{"role": "assistant", "parts": [_CALL]}],
    }),
    _span(3, 1, "tool", **{
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search", "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.call.result": "330 m",
    }),
)  # fmt: skip
_OPENINFERENCE = (
    _span(1, None, "boss.run", **{
        "openinference.span.kind": "AGENT", "input.value": "{\"task\": \"How tall?\"}", "smolagents.max_steps": 3,
        "annotations.0.annotation.name": "judge", "annotations.0.annotation.label": "good",
    }),
    _span(2, 1, "Step 1", **{"openinference.span.kind": "CHAIN", "output.value": "330"}),
    _span(3, 2, "llm", **{
        "openinference.span.kind": "LLM", "llm.token_count.prompt": 5, "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.contents.0.message_content.text": "Thought: hm\n<code>\nsearch('x')\n</code>",
        "llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "How tall?",
    }),
    _span(4, 2, "Search", **{
        "openinference.span.kind": "TOOL", "tool.name": "search", "output.value": "330",
        "input.value": "{\"args\": [\"x\"], \"kwargs\": {}}", "tool.parameters": "{\"q\": {}}",
    }),
)  # fmt: skip
_STEPS: list[dict[str, Any]] = [
    {"task": "How tall?", "task_images": None},
    {"plan": "```\nlook\n```", "model_output_message": {"content": "look"}, "token_usage": {"input_tokens": 3, "output_tokens": 1}},
    {
        "step_number": 1, "timing": {"start_time": 1.5}, "model_output": "Thought: x\n<code>\nhelper(task='y')\n</code>",
        "model_output_message": {"content": "x", "tool_calls": None}, "code_action": "helper(task='y')",
        "tool_calls": [{"id": "c1", "function": {"name": "python_interpreter", "arguments": "helper(task='y')"}}],
        "observations": "330", "error": {"type": "AgentExecutionError", "message": "bad"}, "action_output": None,
        "token_usage": {"input_tokens": 3, "output_tokens": 1}, "is_final_answer": False,
    },
]  # fmt: skip
_LOG = [
    {"agent": "helper", "agent_id": 2, "class": "ToolCallingAgent", "type": "ActionStep", "run_task": "y",
     "step": {**_STEPS[2], "timing": {"start_time": 1.7}}},
    {"agent": "helper", "agent_id": 2, "type": "FinalAnswerStep", "run_task": "y", "step": {"output": "330"}},
    {"agent": "manager", "agent_id": 1, "type": "ActionStep", "run_task": "How tall?", "step": _STEPS[2]},
    {"agent": "manager", "agent_id": 1, "type": "FinalAnswerStep", "run_task": "How tall?", "step": {"output": 330}},
]  # fmt: skip
_ATIF = {
    "schema_version": "ATIF-v1.7", "session_id": "s", "agent": {"name": "boss", "version": "1", "tool_definitions": []},
    "steps": [
        {"step_id": 1, "source": "user", "message": "How tall?"},
        {"step_id": 2, "source": "agent", "message": "ask", "llm_call_count": 1, "metrics": {"prompt_tokens": 3},
         "tool_calls": [{"tool_call_id": "a", "function_name": "helper", "arguments": {"task": "y"}}],
         "observation": {"results": [{"source_call_id": "a", "content": "330", "subagent_trajectory_ref": [{"trajectory_id": "h"}]}]}},
    ],
    "subagent_trajectories": [
        {"schema_version": "ATIF-v1.7", "trajectory_id": "h", "agent": {"name": "helper", "version": "1"},
         "steps": [{"step_id": 1, "source": "user", "message": "y"}, {"step_id": 2, "source": "agent", "message": "330"}]},
    ],
    "final_metrics": {"total_prompt_tokens": 3},
}  # fmt: skip
_CHAT = {
    "session_id": "s1", "agent": "boss", "task_id": "q", "answer": "330", "messages": [
        {"role": "user", "content": [{"type": "text", "text": "How tall?"}]},
        {"role": "assistant", "content": "ask", "usage": {"prompt_tokens": 3},
         "tool_calls": [{"id": "k", "function": {"name": "helper", "arguments": "{\"task\": \"y\"}"}}]},
        {"role": "tool", "tool_call_id": "k", "content": "330"},
        {"role": "assistant", "content": "330 m", "name": "boss"},
    ],
}  # fmt: skip
_HELPER = {
    "session_id": "s2",
    "parent_call_id": "k",
    "messages": [{"role": "user", "content": "y"}, {"role": "assistant", "content": "330"}],
}
_OAGENTS = {
    "question": "How tall?", "prediction": "330", "true_answer": "330", "task_id": "o1", "task": "1", "agent_error": None,
    "intermediate_steps": [
        {"step_type": "planning", "facts": "f", "plan": "p"},
        {"step_type": "action", "model_output": "x", "code_action": "search_agent('y')", "tool_calls": [], "observations": "330",
         "error": "bad", "score": 1, "evaluate_thought": "no"},
    ],
    "search_agent_actions": {"y": {"answer": "330", "tool_calls": [{"name": "s", "args": {"q": "y"}, "observation": "330"}]}},
}  # fmt: skip


def _line(number: int, kind: str, content: Any, parent: int | None = None, **rest: Any) -> dict[str, Any]:
    message = {"role": kind, "content": content, **({"id": f"m{number}"} if kind == "assistant" else {})}
    return {
        "type": kind,
        "uuid": f"u{number}",
        "parentUuid": parent and f"u{parent}",
        "sessionId": "s",
        "message": message,
        **rest,
    }


CLAUDE = (
    _line(1, "user", "How tall?"),
    _line(
        2,
        "assistant",
        [{"type": "tool_use", "id": "t1", "name": "Task", "input": {"prompt": "Look", "subagent_type": "seeker"}}],
        1,
    ),
    _line(3, "user", "Look", isSidechain=True),
    _line(
        4, "assistant", [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "330 m"}], 3, isSidechain=True
    ),
    _line(5, "user", [{"type": "tool_result", "tool_use_id": "t1", "content": "330 m"}], 2),
    _line(6, "assistant", [{"type": "text", "text": "330 m"}], 5),
)
_EVENT = {"span_id": "a", "timestamp": "2026-01-01T00:00:00+00:00"}
INSPECT: dict[str, Any] = {
    "id": "towers", "epoch": 1, "input": "How tall?", "target": "330 m", "attachments": {"0" * 32: "330 m"},
    "events_data": {"messages": [{"role": "user", "content": "How tall?"}]},
    "events": [
        {"event": "span_begin", "id": "a", "type": "agent", "name": "boss", **_EVENT},
        {"event": "model", "input_refs": [[0, 1]], "output": {"choices": [{"message": {
            "role": "assistant", "content": "hm", "tool_calls": [{"id": "c1", "function": "search", "arguments": {"q": "tower"}}]}}]}, **_EVENT},
        {"event": "tool", "id": "c1", "function": "search", "arguments": {"q": "tower"}, "result": f"attachment://{'0' * 32}", **_EVENT},
        {"event": "model", "output": {"choices": [{"message": {"role": "assistant", "content": "330 m"}}], "usage": {"input_tokens": 5, "output_tokens": 2}}, **_EVENT},
    ],
}  # fmt: skip
_MLFLOW = {"info": {"trace_id": "tr-1"}, "data": {"spans": [
    {"span_id": "1", "parent_span_id": None, "name": "boss", "start_time_unix_nano": 1, "attributes": {
        "mlflow.spanType": '"AGENT"', "mlflow.spanInputs": '{"topic": "How tall?"}', "mlflow.spanOutputs": '"330 m"'}},
    {"span_id": "2", "parent_span_id": "1", "name": "chat", "start_time_unix_nano": 2, "attributes": {
        "mlflow.spanType": '"CHAT_MODEL"', "mlflow.spanInputs": '{"messages": [{"role": "user", "content": "How tall?"}]}',
        "mlflow.spanOutputs": '{"choices": [{"message": {"content": "330 m"}}]}'}},
]}}  # fmt: skip
_LANGFUSE = {"data": [
    {"id": "1", "traceId": "t", "startTime": "2026-01-01T00:00:00Z", "type": "AGENT", "name": "boss",
     "input": {"args": ["How tall?"], "kwargs": {}}, "output": "330 m"},
    {"id": "2", "traceId": "t", "parentObservationId": "1", "startTime": "2026-01-01T00:00:01Z", "type": "GENERATION",
     "input": [{"role": "user", "content": "How tall?"}], "output": {"role": "assistant", "content": "330 m"},
     "usageDetails": {"input": 4, "input_cached_tokens": 1, "output": 2}, "costDetails": {"total": 0.5}},
]}  # fmt: skip

SAMPLES = {
    "genai.jsonl": _lines(*({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]} for span in _GENAI)),
    "openinference.jsonl": _lines({"resourceSpans": [{"scopeSpans": [{"spans": list(_OPENINFERENCE)}]}]}),
    "memory.json": _lines(_STEPS),
    "log.json": _lines(
        {"recorder_events": _LOG, "manager_memory_get_full_steps": _STEPS, "run_result": {"state": "success"}}
    ),
    "atif.json": _lines(_ATIF),
    "chat.jsonl": _lines(_CHAT, _HELPER),
    "session.calls.jsonl": _lines(*agents_as_tools(CallRecords()).lines),
    "oagents.jsonl": _lines(_OAGENTS, _OAGENTS),
    "claude.jsonl": _lines(*CLAUDE),
    "inspect.json": _lines({"version": 2, "status": "success", "eval": {}, "samples": [INSPECT]}),
    "mlflow.json": _lines(_MLFLOW),
    "langfuse.json": _lines(_LANGFUSE),
    "afm.jsonl": _lines({"instruction": "i", "input": "q", "output": "<think>a</think><answer>b</answer>"}),
}
