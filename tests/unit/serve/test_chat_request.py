"""What a chat request means: the question, the conversation before it, and what is refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from coa.serve.api_error import ApiError
from coa.serve.bodies import read_body
from coa.serve.chat_request import ChatBody, ChatTurn, Exchange, read_messages
from coa.trajectory import Message

QUESTION = {"role": "user", "content": "Where does the Arun rise?"}


def parsed(**fields: Any) -> ChatBody:
    body = read_body(ChatBody, orjson.dumps({"model": "nano", "messages": [QUESTION], **fields}))
    body.check()
    return body


def asked(*messages: dict[str, Any]) -> ChatTurn:
    return read_messages(parsed(messages=list(messages)).messages)


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        body = parsed(**fields)
        read_messages(body.messages)
    assert caught.value.status == 400
    return caught.value


def called(call_id: str, name: str = "lookup", arguments: str = '{"place":"Arun"}') -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(call_id: str, content: Any = "a river") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def test_the_last_user_message_is_the_question_and_the_rest_the_conversation() -> None:
    found = asked(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "developer", "content": [{"type": "text", "text": "In English."}]},
        QUESTION,
    )
    assert found.question == QUESTION["content"]
    assert found.conversation == (
        Message(role="system", content="Be brief."),
        Message(role="user", content="Hello"),
        Message(role="assistant", content="Hi"),
        Message(role="system", content="In English."),
    )
    assert found.exchanges == ()


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert asked({"role": "user", "content": parts}).question == "one\ntwo"


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def test_images_become_files_that_the_text_names() -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}", "detail": "low"}}
    content = [{"type": "text", "text": "What is this?"}, image]
    found = asked(
        {"role": "user", "content": content},
        {"role": "assistant", "content": "A dot"},
        {**QUESTION, "content": [image]},
    )
    assert found.conversation[0].content == "What is this?\n[image.png]"
    assert found.question == "[image-2.png]"
    assert list(found.files) == ["image.png", "image-2.png"] and found.files["image.png"].startswith(b"\x89PNG")


@pytest.mark.parametrize("url", ["https://images.example/cat.png", "data:image/png;base64,AAAA", "data:text/plain,cat"])
def test_what_is_not_an_image_in_a_data_url_is_refused(url: str) -> None:
    content = [{"type": "image_url", "image_url": {"url": url}}]
    assert refused(messages=[{"role": "user", "content": content}]).param == "messages[0].content[0].image_url"


def test_a_call_and_its_result_behind_the_question_are_the_run_so_far() -> None:
    found = asked(
        QUESTION,
        {"role": "assistant", "content": None, "reasoning_content": "Look it up.", "tool_calls": [called("c1")]},
        result("c1"),
    )
    assert found.question == QUESTION["content"]
    assert found.exchanges == (Exchange("c1", "lookup", {"place": "Arun"}, "a river", "Look it up.", 2),)


def test_parallel_calls_are_taken_in_the_order_of_their_results() -> None:
    calls = {"role": "assistant", "content": "Both.", "tool_calls": [called("c1"), called("c2")]}
    found = asked(QUESTION, calls, result("c2", "two"), result("c1", [{"type": "text", "text": "one"}]))
    assert [(one.call_id, one.result) for one in found.exchanges] == [("c2", "two"), ("c1", "one")]


def test_of_an_answered_turn_the_conversation_has_the_question_and_the_answer() -> None:
    found = asked(
        {"role": "user", "content": "What is the Arun?"},
        {"role": "assistant", "tool_calls": [called("c1")]},
        result("c1"),
        {"role": "assistant", "content": "A river."},
        QUESTION,
    )
    assert [(turn.role, turn.content) for turn in found.conversation] == [
        ("user", "What is the Arun?"), ("assistant", "A river."),
    ]  # fmt: skip
    assert not found.exchanges


def test_a_result_that_no_answer_followed_becomes_part_of_the_conversation() -> None:
    found = asked(
        {"role": "user", "content": "What is the Arun?"},
        {"role": "assistant", "tool_calls": [called("c1")]},
        result("c1"),
        QUESTION,
    )
    said = found.conversation[1].content
    assert 'lookup with {"place":"Arun"}' in said and "a river" in said and not found.exchanges


def test_the_message_that_this_server_wrote_may_be_sent_back_as_it_is() -> None:
    echoed = {
        "role": "assistant", "content": "A river.", "refusal": None, "annotations": [], "audio": None,
        "function_call": None, "tool_calls": None, "reasoning_content": "hm", "reasoning": "hm",
        "coa": [{"index": 0, "agent": "think", "kind": "thought"}],
    }  # fmt: skip
    assert asked(QUESTION, echoed, QUESTION).conversation[1].content == "A river."


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "system", "content": "x"}], "messages"),
        ([QUESTION, {"role": "assistant", "content": "A river."}], "messages[1]"),
        ([QUESTION, {"role": "assistant", "tool_calls": [called("c1")]}], "messages[1]"),
        ([QUESTION, {"role": "assistant", "tool_calls": [called("c1")]}, QUESTION], "messages[2]"),
        ([QUESTION, result("c1")], "messages[1].tool_call_id"),
        (
            [QUESTION, {"role": "assistant", "tool_calls": [called("c1")]}, result("c2")],
            "messages[2].tool_call_id",
        ),
        (
            [QUESTION, {"role": "assistant", "tool_calls": [called("c1")]}, result("c1"), result("c1")],
            "messages[3].tool_call_id",
        ),
        (
            [QUESTION, {"role": "assistant", "tool_calls": [called("c1"), called("c1")]}, result("c1")],
            "messages[1].tool_calls[1].id",
        ),
        (
            [QUESTION, {"role": "assistant", "tool_calls": [called("c1", arguments="[1")]}, result("c1")],
            "messages[1].tool_calls[0].function.arguments",
        ),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0].type"),
        ([{"role": "function", "name": "f", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": " "}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": "x", "mood": "good"}], "messages[0].mood"),
    ],
)
def test_messages_from_which_no_run_can_start_are_refused(messages: list[Any], param: str) -> None:
    assert refused(messages=messages).param == param


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2), ("seed", 7), ("logprobs", True), ("top_logprobs", 3), ("logit_bias", {"42": 1}),
        ("presence_penalty", 0.5), ("frequency_penalty", -0.5), ("response_format", {"type": "json_object"}),
        ("modalities", ["text", "audio"]), ("audio", {"voice": "x"}), ("prediction", {"type": "content"}),
        ("functions", [{"name": "f"}]), ("function_call", {"name": "f"}), ("web_search_options", {}),
        ("verbosity", "low"), ("moderation", {"model": "x"}), ("stop", ["a", ""]), ("stop", ""), ("temperature", 3),
        ("temperature", "1"), ("top_p", -0.1), ("max_tokens", 0), ("max_completion_tokens", 1.5), ("stream", "yes"),
        ("stream_options", {"include_usage": True}), ("reasoning_effort", "extreme"), ("top_k", 5),
        ("metadata", {"a": 1}), ("tools", [{"type": "custom", "custom": {}}]), ("tool_choice", "sometimes"),
        ("tool_choice", "required"), ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("tools", [{"type": "function", "function": {"name": f"f{n}"}} for n in range(129)]), ("stop", ["a"] * 17),
    ],
)  # fmt: skip
def test_a_parameter_that_is_not_honoured_is_refused_by_name(name: str, value: Any) -> None:
    error = refused(**{name: value})
    assert error.param is not None and error.param.partition("[")[0].partition(".")[0] == name
    assert name in error.message


def test_old_functions_are_refused_with_the_name_of_the_new_field() -> None:
    assert "`tools`" in refused(functions=[{"name": "f"}]).message


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "stop": None, "logit_bias": {}, "logprobs": False},
        {"stop": [], "response_format": {"type": "text"}, "modalities": ["text"], "verbosity": "medium"},
        {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "service_tier": "auto", "store": False},
        {"parallel_tool_calls": True, "tools": [], "tool_choice": "auto", "stream": False, "stream_options": None},
        {"functions": [], "function_call": "auto", "metadata": {"a": "b"}, "reasoning_effort": "low"},
        {"max_tokens": 10, "max_completion_tokens": 10, "temperature": 1, "top_p": 1, "seed": None},
    ],
)
def test_defaults_that_frameworks_send_are_accepted(fields: dict[str, Any]) -> None:
    assert parsed(**fields).model == "nano"


def test_both_names_of_the_token_limit_are_honoured_unless_they_differ() -> None:
    assert parsed(max_tokens=5).max_output_tokens == 5
    assert parsed(max_completion_tokens=6).max_output_tokens == 6
    assert refused(max_tokens=5, max_completion_tokens=6).param == "max_tokens"


def test_stop_is_a_string_or_a_list() -> None:
    assert parsed(stop="a").stops == ("a",)
    assert parsed(stop=["a", "b", "a"]).stops == ("a", "b")
