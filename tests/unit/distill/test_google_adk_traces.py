"""Sessions and spans of Google ADK. Real recordings of whole teams are in tests/corpus/teams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coa.distill.importers.content import as_result
from coa.distill.importers.detect import read_traces
from coa.distill.importers.messages import message
from coa.distill.team_run import ModelCall, Note, Skipped, TeamRun, ToolResult

Json = dict[str, Any]


def event(author: str, *parts: Json, **more: Any) -> Json:
    role = "user" if author == "user" else "model"
    return {"author": author, "content": {"role": role, "parts": list(parts)}, "timestamp": 1.0, **more}


def session(*events: Json, camel: bool = True) -> Json:
    named = {"appName": "towns", "userId": "u"} if camel else {"app_name": "towns", "user_id": "u"}
    return {"id": "s1", **named, "state": {}, "events": list(events)}


def only(tmp_path: Path, value: object) -> Any:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(value))
    (run,) = read_traces([file])
    return run


def test_pieces_of_a_streamed_reply_are_read_once(tmp_path: Path) -> None:
    whole = event("solver", {"text": "It is 4."})
    run = only(tmp_path, session(event("user", {"text": "2+2?"}), event("solver", {"text": "It"}, partial=True), whole))
    assert isinstance(run, TeamRun)
    assert [call.text for call in run.root.model_calls] == ["It is 4."]
    assert (run.task.question, run.answer) == ("2+2?", "It is 4.")


def test_thoughts_calls_and_results_have_their_places_in_either_spelling(tmp_path: Path) -> None:
    thinking = {"text": "I add.", "thought": True}
    call = {"function_call": {"id": "c1", "name": "add", "args": {"a": 2}}}
    result = {"function_response": {"id": "c1", "name": "add", "response": {"error": "no b"}}}
    usage = {"prompt_token_count": 7, "candidates_token_count": 3, "thoughts_token_count": 2}
    events = [
        event("user", {"text": "2+2?"}), event("solver", thinking, call, usage_metadata=usage),
        event("solver", result), event("solver", {"text": "4"}),
    ]  # fmt: skip
    run = only(tmp_path, session(*events, camel=False))
    first = run.root.model_calls[0]
    assert (first.thought, first.text, first.calls[0].name) == ("I add.", "", "add")
    assert first.usage is not None and (first.usage.prompt_tokens, first.usage.completion_tokens) == (7, 5)
    (told,) = [item for item in run.root.events if isinstance(item, ToolResult)]
    assert (told.text, told.ok) == ("no b", False)


def test_a_model_that_failed_and_a_later_word_of_the_user_are_kept(tmp_path: Path) -> None:
    failed = {"author": "solver", "errorCode": "500", "errorMessage": "the server is down", "timestamp": 2.0}
    again = [event("user", {"text": "Try again."}), event("solver", {"text": "4"})]
    run = only(tmp_path, session(event("user", {"text": "2+2?"}), failed, *again))
    kinds = [type(item) for item in run.root.events]
    assert kinds == [ModelCall, Note, ModelCall]
    assert run.root.model_calls[0].error == "the server is down"


@pytest.mark.parametrize("events", [[event("solver", {"text": "4"})], [event("user", {"text": "2+2?"})]])
def test_a_session_without_question_or_agent_is_refused_by_name(tmp_path: Path, events: list[Json]) -> None:
    run = only(tmp_path, session(*events))
    assert isinstance(run, Skipped) and run.reason.startswith("no ")


def test_a_wrapper_around_a_result_is_taken_off_and_other_objects_are_kept() -> None:
    assert as_result('{"result": "four"}') == ("four", True)
    assert as_result({"id": "c1", "name": "add", "response": {"error": "no b"}}) == ("no b", False)
    assert as_result([False, {"role": "function", "name": "add", "content": "no b"}]) == ("no b", False)
    assert as_result('{"result": 4, "unit": "m"}') == ('{"result": 4, "unit": "m"}', True)
    assert as_result("plain") == ("plain", True)


def test_messages_of_the_genai_conventions_are_no_contents_of_gemini() -> None:
    said = message({"role": "model", "parts": [{"text": "4"}]})
    assert (said.role, said.text) == ("assistant", "4")
    typed = {"role": "assistant", "parts": [{"type": "text", "text": "4"}]}
    assert message(typed).text == ""  # read by spans/genai.py


def span(identity: str, parent: str | None, name: str, start: int, **attributes: Any) -> Json:
    context = {"trace_id": "0x1", "span_id": identity}
    began = f"2026-01-01T00:00:{start:02d}Z"
    return {"name": name, "context": context, "parent_id": parent, "start_time": began, "attributes": attributes}


def test_a_call_that_two_spans_record_is_counted_once(tmp_path: Path) -> None:
    request = {"contents": [{"role": "user", "parts": [{"text": "2+2?"}]}], "config": {"system_instruction": "Add."}}
    reply = {"content": {"role": "model", "parts": [{"text": "4"}]}}
    usage = {"gen_ai.usage.input_tokens": 5, "gen_ai.usage.output_tokens": 1, "gen_ai.request.model": "m"}
    own = {"gcp.vertex.agent.llm_request": json.dumps(request), "gcp.vertex.agent.llm_response": json.dumps(reply)}
    agent = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "solver"}
    spans = [
        span("a", None, "invoke_agent solver", 1, **agent),
        span("b", "a", "call_llm", 2, **usage, **own),
        span("c", "b", "generate_content m", 3, **usage, **{"gen_ai.operation.name": "generate_content"}),
    ]
    run = only(tmp_path, spans)
    assert (run.task.question, run.root.system, run.answer) == ("2+2?", "Add.", "4")
    assert (run.usage.model_calls, run.usage.prompt_tokens, run.left_out) == (1, 5, ())


def test_a_call_that_was_written_over_is_read_from_the_history_of_the_next(tmp_path: Path) -> None:
    """OpenInference on ADK 2.12: the last model call of a turn has the span of all, and the tools are below it."""
    kind = "openinference.span.kind"
    heard = {
        "0.message.role": "user", "0.message.content": "2+2?", "1.message.role": "model",
        "1.message.content": "I add.", "1.message.tool_calls.0.tool_call.id": "c1",
        "1.message.tool_calls.0.tool_call.function.name": "add", "2.message.role": "tool",
        "1.message.tool_calls.0.tool_call.function.arguments": '{"a": 2}', "2.message.tool_call_id": "c1",
        "2.message.content": '{"result": "4"}',
    }  # fmt: skip
    model = {f"llm.input_messages.{key}": value for key, value in heard.items()}
    model |= {"llm.output_messages.0.message.role": "model", "llm.output_messages.0.message.content": "It is 4."}
    tool = {"tool.name": "add", "tool.id": "c1", "input.value": '{"a": 2}', "output.value": '{"result": "4"}'}
    spans = [
        span("a", None, "agent_run [solver]", 1, **{kind: "AGENT", "agent.name": "solver"}),
        span("b", "a", "invoke_agent solver", 2, **{kind: "LLM", "llm.token_count.prompt": 9, **model}),
        span("c", "b", "execute_tool add", 3, **{kind: "TOOL", **tool}),
    ]
    run = only(tmp_path, spans)
    assert [type(item) for item in run.root.events] == [ModelCall, ToolResult, ModelCall]
    first, last = run.root.model_calls
    assert (first.text, first.calls[0].id, last.text) == ("I add.", "c1", "It is 4.")
    assert run.unmetered_calls == 1  # nobody knows what it took
