"""What frameworks and model APIs call the same thing: messages of PydanticAI, exports of the OpenAI Agents SDK."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coa.distill.importers.detect import read_traces
from coa.distill.importers.messages import Said, definitions_in, reply_in, said_in
from coa.distill.importers.smolagents_steps import results_apart
from coa.distill.team_run import ModelCall, Note, Purpose, Skipped, TeamRun, ToolCall, ToolResult


def _request(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"kind": "request", "parts": list(parts), "run_id": "r1", "conversation_id": "v1", **more}


def _response(*parts: dict[str, Any]) -> dict[str, Any]:
    usage = {"input_tokens": 20, "cache_read_tokens": 5, "output_tokens": 7}
    about = {"usage": usage, "model_name": "m", "run_id": "r1", "conversation_id": "v1"}
    return {"kind": "response", "parts": list(parts), **about}


def _call(name: str, args: Any, identity: str) -> dict[str, Any]:
    return {"part_kind": "tool-call", "tool_name": name, "args": args, "tool_call_id": identity}


def _return(content: Any, identity: str, outcome: str = "success") -> dict[str, Any]:
    part = {"part_kind": "tool-return", "tool_name": "size", "content": content, "tool_call_id": identity}
    return {**part, "outcome": outcome}


PYDANTIC = [
    _request({"part_kind": "user-prompt", "content": "Which town is larger?"}, instructions="You compare."),
    _response(
        {"part_kind": "thinking", "content": "I need both sizes."},
        {"part_kind": "text", "content": "I look."},
        _call("size", '{"of": "Ostrel"}', "c1"),
        _call("size", {"town": "Brnov"}, "c2"),
    ),
    _request(
        _return([{"type": "missing", "loc": ["town"]}], "c1", "retried"),
        _return(395, "c2"),
        instructions="You compare.",
    ),
    _request({"part_kind": "retry-prompt", "content": "Answer with a town."}),
    _response(_call("final_result", {"town": "Brnov", "size": 395}, "c3")),
    _request(_return("Final result processed.", "c3")),
]


def _run(path: Path, text: str) -> TeamRun:
    path.write_text(text)
    (run,) = read_traces(path)
    assert isinstance(run, TeamRun), run
    return run


@pytest.mark.parametrize("form", ["list", "lines", "row"])
def test_messages_of_pydantic_ai_are_one_run(tmp_path: Path, form: str) -> None:
    texts = {
        "list": json.dumps(PYDANTIC),
        "lines": "\n".join(map(json.dumps, PYDANTIC)),
        "row": json.dumps({"agent": "agent", "messages": PYDANTIC}),
    }
    run = _run(tmp_path / "messages.jsonl", texts[form])
    assert (run.task.question, run.root.system, run.answer) == (
        "Which town is larger?", "You compare.", '{"town":"Brnov","size":395}',
    )  # fmt: skip
    first, failed, found, note, last = run.root.events
    assert isinstance(first, ModelCall) and isinstance(last, ModelCall)
    assert (first.thought, first.text) == ("I need both sizes.", "I look.")
    assert [dict(call.arguments) for call in first.calls] == [{"of": "Ostrel"}, {"town": "Brnov"}]
    assert isinstance(failed, ToolResult) and isinstance(found, ToolResult) and isinstance(note, Note)
    assert [(failed.call_ids, failed.ok), (found.call_ids, found.ok)] == [(("c1",), False), (("c2",), True)]
    assert (found.text, note.text) == ("395", "Answer with a town.")
    assert (last.purpose, last.calls) == (Purpose.ANSWER, ())
    assert (run.usage.prompt_tokens, run.usage.cached_tokens, run.usage.completion_tokens) == (40, 10, 14)


def test_an_export_without_messages_names_the_processor_that_keeps_them(tmp_path: Path) -> None:
    trace = {"object": "trace", "id": "t", "workflow_name": "Agent workflow"}
    span = {"object": "trace.span", "trace_id": "t", "started_at": "2026-11-18T05:00:00+00:00", "error": None}
    agent = {**span, "id": "a", "parent_id": None, "span_data": {"type": "agent", "name": "manager"}}
    usage = {"input_tokens": 3, "output_tokens": 4}
    response = {"type": "response", "response_id": "resp_1", "usage": usage}
    rows = [trace, {**span, "id": "b", "parent_id": "a", "span_data": response}, agent]
    (tmp_path / "export.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (skipped,) = read_traces(tmp_path)
    assert isinstance(skipped, Skipped) and skipped.place == "trace t"
    assert "docs/guides/frameworks.md" in skipped.reason


CALLED = (ToolCall(id="c1", name="search", arguments={"query": "x"}),)
REPLIES: dict[str, Any] = {
    "chat": {
        "choices": [
            {
                "message": {
                    "content": "I look.",
                    "reasoning_content": "Where?",
                    "tool_calls": [{"id": "c1", "function": {"name": "search", "arguments": '{"query": "x"}'}}],
                }
            }
        ]
    },
    "responses": {
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Where?"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "id": "f", "call_id": "c1", "name": "search", "arguments": '{"query": "x"}'},
        ]
    },
    "messages": {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Where?", "signature": "s"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "c1", "name": "search", "input": {"query": "x"}},
        ],
    },
}


@pytest.mark.parametrize("api", REPLIES)
def test_the_reply_of_each_api_says_the_same(api: str) -> None:
    said = reply_in(json.dumps(REPLIES[api]))
    assert "".join(one.thought for one in said) == "Where?"
    assert "".join(one.text for one in said) == "I look."
    assert tuple(call for one in said for call in one.calls) == CALLED


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_list_that_holds_a_reply_is_read_as_the_reply(api: str) -> None:
    """The OpenAI Agents SDK wraps what it streamed from Chat Completions in a reply of Responses."""
    body = {**REPLIES[api], "object": {"chat": "chat.completion", "responses": "response"}[api]}
    assert reply_in([body]) == reply_in(REPLIES[api])


def test_results_of_tools_are_answers_in_each_api() -> None:
    chat = {"role": "tool", "tool_call_id": "c1", "content": "found"}
    item = {"type": "function_call_output", "call_id": "c1", "output": "found"}
    block = {
        "type": "tool_result",
        "tool_use_id": "c1",
        "content": [{"type": "text", "text": "found"}],
        "is_error": True,
    }
    one, two, three = said_in([chat, item, {"role": "user", "content": [block]}])
    assert one.answers == two.answers == three.answers == (("c1", "found"),)
    assert (one.failed, two.failed, three.failed) == ((), (), ("c1",))


def test_a_tool_that_the_server_ran_has_its_result_in_the_reply() -> None:
    ran = {"type": "mcp_call", "id": "m1", "name": "search", "arguments": '{"query": "x"}', "output": "found"}
    assert said_in([ran]) == (
        Said(
            "assistant", calls=(ToolCall(id="m1", name="search", arguments={"query": "x"}),), answers=(("m1", "found"),)
        ),
    )


def test_definitions_of_tools_are_read_in_each_api() -> None:
    schema = {"type": "object", "properties": {"query": {"type": "string"}}}
    chat = {"type": "function", "function": {"name": "search", "parameters": schema}}
    item, block = (
        {"type": "function", "name": "search", "parameters": schema},
        {"name": "search", "input_schema": schema},
    )
    assert definitions_in([chat]) == definitions_in([item]) == definitions_in([block]) == {"search": schema}
    assert definitions_in([{"type": "web_search"}]) == {}


def _merged(text: str, *, ok: bool = True, reports: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], str]]:
    whole = ToolResult(call_ids=("c2", "c1"), text=text, ok=ok, report_of=reports)
    found = [event for event in results_apart(whole) if isinstance(event, ToolResult)]
    return [(event.call_ids, event.text) for event in found]


def test_results_that_smolagents_merged_are_taken_apart_where_each_has_a_line() -> None:
    assert _merged("of the first\nof the second") == [(("c1",), "of the first"), (("c2",), "of the second")]


@pytest.mark.parametrize("text", ["one line", "one\ntwo\nthree"])
def test_merged_results_stay_together_where_lines_and_calls_differ(text: str) -> None:
    assert _merged(text) == [(("c2", "c1"), text)]


def test_a_merged_error_or_report_stays_whole() -> None:
    text = "one\ntwo"
    assert _merged(text, ok=False) == _merged(text, reports=("r",)) == [(("c2", "c1"), text)]


def _span(identity: str, parent: str | None, start: int, kind: str, error: str = "", **more: Any) -> dict[str, Any]:
    status = {"status_code": "ERROR", "description": error} if error else {"status_code": "OK"}
    return {
        "context": {"trace_id": "t", "span_id": identity},
        "parent_id": parent,
        "name": more.pop("name", identity),
        "start_time": f"2026-11-18T05:00:{start:02d}Z",
        "status": status,
        "attributes": {"openinference.span.kind": kind, **more},
    }


def _asking(identity: str, start: int, call: str, **arguments: str) -> dict[str, Any]:
    calls = [{"id": call, "function": {"name": "helper", "arguments": arguments}}]
    reply = {"role": "assistant", "content": "I ask.", "tool_calls": calls}
    asked = {"llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "How tall?"}
    return _span(identity, f"s{start}", start + 1, "LLM", **{"output.value": json.dumps(reply), **asked})


def test_the_error_of_a_smolagents_step_is_that_of_its_request_and_the_retry_has_the_run(tmp_path: Path) -> None:
    rows = [
        _span("root", None, 0, "AGENT", name="manager.run", **{"input.value": '{"task": "How tall?"}'}),
        _span("s1", "root", 1, "CHAIN", "AgentToolCallError: no such argument", name="Step 1"),
        _asking("m1", 1, "c1", subject="x"),
        _span("s5", "root", 5, "CHAIN", name="Step 2", **{"output.value": "330 m"}),
        _asking("m5", 5, "c2", task="Look."),
        _span("sub", "s5", 7, "AGENT", name="helper.run", **{"input.value": "Look.", "output.value": "330 m"}),
    ]
    run = _run(tmp_path / "spans.jsonl", "\n".join(map(json.dumps, rows)))
    results = [event for event in run.root.events if isinstance(event, ToolResult)]
    assert [(event.call_ids, event.ok, event.report_of) for event in results] == [
        (("c1",), False, ()),
        (("c2",), True, ("sub",)),
    ]
    assert "no such argument" in results[0].text


def test_reasoning_that_is_flattened_as_text_is_a_thought(tmp_path: Path) -> None:
    reply: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
    flat = {"llm.output_messages.0.message.role": "assistant"}
    flat["llm.output_messages.0.message.contents.0.message_content.type"] = "text"
    flat["llm.output_messages.0.message.contents.0.message_content.text"] = "Where could it be?"
    rows = [
        _span("root", None, 0, "AGENT", name="manager.run", **{"input.value": '{"task": "How tall?"}'}),
        _span("m1", "root", 1, "LLM", **{"output.value": json.dumps(reply), **flat}),
    ]
    run = _run(tmp_path / "spans.jsonl", "\n".join(map(json.dumps, rows)))
    (call,) = run.root.model_calls
    assert (call.thought, call.text) == ("Where could it be?", "")
