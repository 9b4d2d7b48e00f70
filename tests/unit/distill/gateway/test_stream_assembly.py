"""Streams of all protocols become the reply that the server would have sent without streaming."""

from __future__ import annotations

import json
from typing import Any

from coa.distill.gateway.assembled import Assembled
from coa.distill.gateway.assembly import assemble


def stream(protocol: str, *events: Any, end: bytes = b"", break_: bytes = b"\n\n") -> Assembled:
    raw = b"".join(b"data: " + json.dumps(event).encode() + break_ for event in events)
    return assemble(protocol, raw + end)


def chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": [{"index": 0, "delta": delta, **more}],
    }


DONE = b"data: [DONE]\n\n"


def test_texts_thoughts_and_tool_calls_are_joined() -> None:
    found = stream(
        "chat",
        chunk({"role": "assistant", "content": None, "reasoning_content": "I "}),
        chunk({"reasoning_content": "search."}),
        chunk({"content": "Two "}), chunk({"content": "calls."}),
        chunk({"tool_calls": [{"index": 0, "id": "a", "type": "function",
                               "function": {"name": "search", "arguments": ""}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"q": '}}]}),
        chunk({"tool_calls": [{"index": 1, "id": "b", "type": "function",
                               "function": {"name": "open", "arguments": "{}"}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"x"}'}}]}),
        chunk({}, finish_reason="tool_calls"),
        {"id": "c", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}},
        end=DONE,
    )  # fmt: skip
    assert found.complete and found.error is None
    assert found.body["object"] == "chat.completion" and found.body["usage"]["completion_tokens"] == 7
    (choice,) = found.body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant", "content": "Two calls.", "reasoning_content": "I search.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}},
            {"id": "b", "type": "function", "function": {"name": "open", "arguments": "{}"}},
        ],
    }  # fmt: skip


def test_calls_that_share_an_index_are_told_apart_by_their_ids() -> None:
    def call(identity: str, name: str) -> dict[str, Any]:
        return {"index": 0, "id": identity, "type": "function", "function": {"name": name, "arguments": "{}"}}

    found = stream("chat", chunk({"tool_calls": [call("a", "f")]}), chunk({"tool_calls": [call("b", "g")]}), end=DONE)
    names = [each["function"]["name"] for each in found.body["choices"][0]["message"]["tool_calls"]]
    assert names == ["f", "g"]


def test_ids_and_names_that_are_repeated_in_every_chunk_are_kept_once() -> None:
    part = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}
    again = {**part, "function": {"name": "f", "arguments": "}"}}
    found = stream("chat", chunk({"role": "assistant", "tool_calls": [part]}), chunk({"tool_calls": [again]}), end=DONE)
    message = found.body["choices"][0]["message"]
    assert message["role"] == "assistant"
    assert message["tool_calls"] == [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def test_token_ids_and_logprobs_go_on_from_chunk_to_chunk() -> None:
    first = chunk({"content": "a"}, token_ids=[5], logprobs={"content": [{"token": "a", "logprob": -0.5}]})
    last = chunk({"content": "b"}, token_ids=[6, 7], logprobs={"content": [{"token": "b", "logprob": -1.0}]})
    found = stream("chat", {**first, "prompt_token_ids": [1, 2]}, {**last, "prompt_token_ids": None}, end=DONE)
    (choice,) = found.body["choices"]
    assert found.body["prompt_token_ids"] == [1, 2] and choice["token_ids"] == [5, 6, 7]
    assert [each["logprob"] for each in choice["logprobs"]["content"]] == [-0.5, -1.0]


def test_several_choices_keep_their_order() -> None:
    def at(index: int, text: str) -> dict[str, Any]:
        return {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": None}]}

    found = stream("chat", at(1, "b"), at(0, "a"), at(1, "B"), end=DONE)
    assert [choice["message"]["content"] for choice in found.body["choices"]] == ["a", "bB"]


def test_a_stream_that_was_cut_is_kept_as_far_as_it_came() -> None:
    found = stream("chat", chunk({"content": "half a "}), end=b'data: {"id": "c", "choices": [{"ind')
    assert not found.complete and found.body["choices"][0]["message"]["content"] == "half a "
    assert found.body["choices"][0]["finish_reason"] is None
    assert assemble("chat", b"").body["choices"] == []


def test_an_error_in_the_middle_of_a_stream_is_named() -> None:
    found = stream("chat", chunk({"content": "x"}), {"error": {"message": "out of memory", "code": 500}}, end=DONE)
    assert not found.complete and found.error == "out of memory"
    found = stream("messages", {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    assert not found.complete and found.error == "Overloaded"
    found = stream("responses", {"type": "error", "code": "x", "message": "no"})
    assert not found.complete and found.error == "no"


def test_completions_join_texts_and_lists_of_logprobs() -> None:
    def part(text: str, number: int) -> dict[str, Any]:
        logprobs = {"tokens": [text], "token_logprobs": [-number], "top_logprobs": None}
        return {"object": "text_completion", "choices": [{"index": 0, "text": text, "logprobs": logprobs}]}

    found = stream(
        "completions", part("a", 1), part("b", 2), {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
    )
    (choice,) = found.body["choices"]
    assert found.complete and choice["text"] == "ab" and choice["logprobs"]["token_logprobs"] == [-1, -2]
    assert "message" not in choice


def test_events_may_end_in_any_kind_of_line_break_and_span_lines() -> None:
    for break_ in (b"\n\n", b"\r\n\r\n", b"\r\r"):
        assert stream("chat", chunk({"content": "x"}), end=DONE, break_=break_).complete
    raw = b': a comment\nevent: x\ndata: {"choices": [{"index": 0,\ndata: "delta": {"content": "y"}}]}\n\n'
    assert assemble("chat", raw).body["choices"][0]["message"]["content"] == "y"


def message_events() -> list[dict[str, Any]]:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 4, "output_tokens": 1}
    start: dict[str, Any] = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "c",
        "content": [],
        "stop_reason": None,
    }

    def block(at: int, content: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
        began = {"type": "content_block_start", "index": at, "content_block": content}
        middle = [{"type": "content_block_delta", "index": at, "delta": delta} for delta in deltas]
        return [began, *middle, {"type": "content_block_stop", "index": at}]

    return [
        {"type": "message_start", "message": {**start, "usage": usage}},
        {"type": "ping"},
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "Let me "},
            {"type": "thinking_delta", "thinking": "look."},
            {"type": "signature_delta", "signature": "abc"},
        ),
        *block(
            1,
            {"type": "text", "text": ""},
            {"type": "text_delta", "text": "I "},
            {"type": "text_delta", "text": "look."},
        ),
        *block(
            2,
            {"type": "tool_use", "id": "t1", "name": "search", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"q": "Ri'},
            {"type": "input_json_delta", "partial_json": 'ga"}'},
        ),
        *block(
            3,
            {"type": "tool_use", "id": "t2", "name": "now", "input": {}},
            {"type": "input_json_delta", "partial_json": ""},
        ),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"output_tokens": 25},
        },
        {"type": "message_stop"},
    ]


def test_blocks_of_a_message_are_joined() -> None:
    found = stream("messages", *message_events())
    assert found.complete and found.body["stop_reason"] == "tool_use" and found.body["id"] == "m"
    assert found.body["usage"] == {"input_tokens": 10, "cache_read_input_tokens": 4, "output_tokens": 25}
    assert found.body["content"] == [
        {"type": "thinking", "thinking": "Let me look.", "signature": "abc"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "Riga"}},
        {"type": "tool_use", "id": "t2", "name": "now", "input": {}},
    ]


def test_a_message_that_was_cut_inside_a_tool_call_keeps_what_was_written() -> None:
    events = message_events()
    cut = next(at for at, event in enumerate(events) if event.get("delta", {}).get("partial_json", "").startswith("ga"))
    found = stream("messages", *events[:cut])
    assert not found.complete
    assert found.body["content"][2]["partial_json"] == '{"q": "Ri' and found.body["content"][2]["input"] == {}


def test_a_response_is_that_of_the_last_event() -> None:
    whole = {"id": "r", "object": "response", "status": "completed", "output": [{"type": "message", "id": "1"}]}
    begun = {"id": "r", "object": "response", "status": "in_progress", "output": []}
    found = stream(
        "responses", {"type": "response.created", "response": begun}, {"type": "response.completed", "response": whole}
    )
    assert found.complete and found.body == whole


def test_a_response_that_was_cut_is_put_together_from_its_items() -> None:
    begun = {"id": "r", "object": "response", "status": "in_progress", "output": []}
    reasoning = {"type": "reasoning", "id": "rs", "summary": []}
    done = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "I look."}]}
    call = {"type": "function_call", "id": "fc", "call_id": "c1", "name": "search", "arguments": ""}
    message = {"type": "message", "id": "msg", "role": "assistant", "content": []}
    found = stream(
        "responses",
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": reasoning},
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0, "delta": "I l"},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {"type": "response.output_item.added", "output_index": 1, "item": call},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": '{"q": '},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": '"x"}'},
        {"type": "response.output_item.added", "output_index": 2, "item": message},
        {"type": "response.output_text.delta", "output_index": 2, "content_index": 0, "delta": "Half "},
        {"type": "response.output_text.delta", "output_index": 2, "content_index": 0, "delta": "an answ"},
    )
    assert not found.complete and found.body["status"] == "in_progress"
    assert found.body["output"] == [
        done, {**call, "arguments": '{"q": "x"}'},
        {**message, "content": [{"type": "output_text", "text": "Half an answ"}]},
    ]  # fmt: skip


def test_a_failed_response_has_its_error() -> None:
    failed = {"id": "r", "status": "failed", "error": {"code": "server_error", "message": "broke"}, "output": []}
    found = stream("responses", {"type": "response.failed", "response": failed})
    assert not found.complete and found.error == "broke" and found.body["status"] == "failed"


def test_events_of_an_unknown_protocol_are_listed() -> None:
    assert stream("other", {"a": 1}, {"b": 2}, end=DONE).body == {"events": [{"a": 1}, {"b": 2}]}


def test_odd_events_do_not_break_the_assembly() -> None:
    for protocol in ("chat", "completions", "responses", "messages", "other"):
        odd: list[Any] = [
            1,
            None,
            "x",
            [],
            {},
            {"choices": 3},
            {"choices": [4, {"index": "x", "delta": 5}]},
            {"type": 7},
            {"type": "content_block_delta", "index": 3, "delta": {"text": "t"}},
            {"type": "message_delta"},
            {"type": "response.output_text.delta", "output_index": 0, "content_index": -4, "delta": "d"},
            {"choices": [{"index": 0, "delta": {"content": "s"}}]},
            {"choices": [{"index": 0, "delta": {"content": ["list"]}}]},
            {"choices": [{"index": 0, "delta": {"content": "s", "tool_calls": {"a": "b"}}}]},
        ]
        stream(protocol, *odd)
