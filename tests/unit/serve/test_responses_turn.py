"""How the input of a request becomes a question with its conversation, or the result of a call."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from pydantic import TypeAdapter

from coa.serve.api_error import ApiError
from coa.serve.responses.attachments import check_readable
from coa.serve.responses.body import InputItem, MessageItem
from coa.serve.responses.turn import Turn, read_turn
from coa.trajectory import Message

PNG = b"\x89PNG\r\n\x1a\n..."
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Oslo"}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "-3 C"}
THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}


def turn(*items: Any, before: Turn | None = None) -> Turn:
    return read_turn(TypeAdapter(list[InputItem]).validate_python(list(items), strict=True), before)


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(found: Turn) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in found.conversation]


def refused(*items: Any, before: Turn | None = None) -> ApiError:
    with pytest.raises(ApiError) as error:
        turn(*items, before=before)
    assert error.value.status == 400
    return error.value


def test_a_string_is_a_question() -> None:
    assert read_turn("Why?").question == "Why?"
    with pytest.raises(ApiError):
        read_turn(" ")


def test_questions_in_a_row_are_one_and_system_messages_stay_before_it() -> None:
    found = turn(user("Hi"), {"role": "assistant", "content": "Yes?"}, user("One."), user("Two."),
                 {"role": "system", "content": "Be brief."})  # fmt: skip
    assert found.question == "One.\n\nTwo."
    assert said(found) == [("user", "Hi"), ("assistant", "Yes?"), ("system", "Be brief.")]


def test_calls_of_a_turn_that_was_answered_are_left_out() -> None:
    found = turn(user("Weather?"), THOUGHT, CALL, OUTPUT, {"role": "assistant", "content": "-3"}, user("Where?"))
    assert said(found) == [("user", "Weather?"), ("assistant", "-3")] and found.result is None


def test_a_result_that_was_followed_by_a_question_stays_in_the_conversation() -> None:
    found = turn(user("Weather?"), CALL, OUTPUT, user("Never mind, where is it?"))
    assert found.question == "Never mind, where is it?"
    assert found.conversation[1].role == "assistant" and "-3 C" in found.conversation[1].content


def test_a_result_at_the_end_continues_a_run() -> None:
    found = turn(user("Weather?"), THOUGHT, CALL, OUTPUT)
    assert found.result is not None and found.result.call_id == "c1" and found.question == "Weather?"
    before = Turn([Message(role="user", content="Hi"), Message(role="assistant", content="Yes?")], "Weather?")
    before.trail = turn(user("x"), CALL, OUTPUT).trail[:1]
    again = turn(OUTPUT, before=before)
    assert again.result is not None and said(again)[0] == ("user", "Hi") and again.question == "Weather?"


def test_an_input_without_a_question_or_a_result_is_refused() -> None:
    assert refused().param == "input"
    assert refused(user("Hi"), {"role": "assistant", "content": "Yes?"}).param == "input"
    assert refused(user("Weather?"), CALL).code == "missing_tool_output"
    assert refused(user("Weather?"), CALL, user("Well?")).code == "missing_tool_output"
    assert refused({"type": "item_reference", "id": "rs_1_0"}).code == "item_not_found"


def test_a_reference_stands_for_the_item() -> None:
    answer = MessageItem(role="assistant", content="Paris")
    items = TypeAdapter(list[InputItem]).validate_python([user("Capital?"), {"id": "msg_1_0"}, user("Sure?")])
    found = read_turn(items, None, {"msg_1_0": answer}.get)
    assert said(found) == [("user", "Capital?"), ("assistant", "Paris")]


# ---- files


def image(content: bytes = PNG) -> dict[str, Any]:
    return {"type": "input_image", "image_url": f"data:image/png;base64,{base64.b64encode(content).decode()}"}


def test_files_get_names_that_are_free_and_safe() -> None:
    file = {"type": "input_file", "filename": "../../etc/pass\nwd", "file_data": base64.b64encode(b"x").decode()}
    found = turn(user([image(), image()]), user([file, file, {"type": "input_text", "text": "?"}]))
    assert list(found.attachments.files) == ["image.png", "image-2.png", "pass_wd", "pass_wd-2"]
    assert found.attachments.files["image.png"] == PNG


@pytest.mark.parametrize(
    ("part", "code"),
    [
        (image(b"GIF but not"), "invalid_image"),
        ({"type": "input_image", "image_url": "data:image/png;base64,%%%"}, "invalid_base64"),
        ({"type": "input_image", "image_url": "data:image/png,abc"}, "invalid_value"),
        ({"type": "input_image", "image_url": "https://a.example/b.png"}, "unsupported_parameter"),
        ({"type": "input_image", "file_id": "f"}, "unsupported_parameter"),
        ({"type": "input_image"}, "missing_required_parameter"),
        ({"type": "input_file", "file_url": "https://a.example/b"}, "unsupported_parameter"),
        ({"type": "input_file", "filename": "a"}, "missing_required_parameter"),
    ],
)
def test_files_that_cannot_be_used_are_refused(part: dict[str, Any], code: str) -> None:
    error = refused(user([part]))
    assert error.code == code and error.param is not None and error.param.startswith("input[0].content[0]")


def test_an_agent_needs_a_tool_for_each_kind_of_file() -> None:
    check_readable({"a.png": PNG, "b.csv": b"1,2"}, ["visual_inspector", "code"], "agent")
    for files, tools in (({"a.png": PNG}, ["read_file"]), ({"b.csv": b"1,2"}, ["visual_inspector"])):
        with pytest.raises(ApiError, match="has no tool to open"):
            check_readable(files, tools, "agent")


def test_a_long_input_is_read_in_one_pass() -> None:
    """Each of these lists, sent in a single request, would have kept the server busy for minutes."""
    count = 20_000
    calls = [{**CALL, "call_id": f"c{number}"} for number in range(count)]
    outputs = [{**OUTPUT, "call_id": f"c{number}"} for number in range(count)]
    assert len(turn(user("How cold?"), *calls, *calls, *outputs).trail) == 2 * count
    assert turn(*[user("x")] * count).question.count("x") == count
    image = {"type": "input_image", "image_url": "data:image/png;base64," + base64.b64encode(PNG).decode()}
    assert list(turn(user([image] * count)).attachments.files)[-1] == f"image-{count}.png"
