"""The cases of the public acceptance suite of Open Responses, each streamed and not, with a bearer key."""

from __future__ import annotations

from typing import Any, Final

import httpx
import pytest

from coa.tools import Observation, ToolContext
from coa.trajectory import Form, Shape
from support.open_responses import checked, streamed
from support.served import AGENT, served

KEY: Final = "acceptance-0123456789abcdef"
HEART: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
WEATHER: Final = {
    "type": "function", "name": "get_weather", "description": "Current weather of a place",
    "parameters": {"type": "object", "properties": {"location": {"type": "string", "description": "City and state"}},
                   "required": ["location"]},
}  # fmt: skip


def message(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


CASES: Final[dict[str, tuple[dict[str, Any], list[str], str]]] = {
    "a plain question": (
        {"input": [message("user", "Greet me in three words.")]}, ["<answer>Hello to you</answer>"], "message",
    ),
    "a system message": (
        {"input": [message("system", "Talk like a pirate."), message("user", "Greet me.")]},
        ["<think>Arr.</think>\n<answer>Ahoy</answer>"], "message",
    ),
    "a function that the model must call": (
        {"input": [message("user", "How is the weather in San Francisco?")], "tools": [WEATHER]},
        ['<get_weather>\n```json\n{"location": "San Francisco, CA"}\n```\n</get_weather>'], "function_call",
    ),
    "an image": (
        {"input": [message("user", [{"type": "input_text", "text": "What is in this image?"},
                                    {"type": "input_image", "image_url": f"data:image/png;base64,{HEART}"}])]},
        ["<visual_inspector>image.png</visual_inspector>", "<answer>A dot</answer>"], "message",
    ),
    "earlier turns": (
        {"input": [message("user", "I am Alice."), message("assistant", "Hello Alice!"),
                   message("user", "Who am I?")]},
        ["<answer>Alice</answer>"], "message",
    ),
}  # fmt: skip


class Eyes:
    about, shape, timeout_s = "looks at an image of the task", Shape(form=Form.LINE), 5.0

    async def call(self, arguments: Any, context: ToolContext) -> Observation:
        return Observation(f"{len(context.attachments[str(arguments['text'])])} bytes")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("case", CASES)
def test_the_acceptance_suite_passes(case: str, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COA_SERVE_KEYS", KEY)
    headers = {"Authorization": f"Bearer {KEY}"}
    body, script, kind = CASES[case]
    body = {"model": AGENT, **body}
    with served(script, tools={"visual_inspector": Eyes()}) as server:
        if stream:
            events = streamed(server.url, body, headers=headers)
            response = checked(events[-1]["response"])
            if kind == "function_call":
                seen = [event["type"] for event in events if event.get("output_index") == len(response["output"]) - 1]
                assert seen == [
                    "response.output_item.added", "response.function_call_arguments.delta",
                    "response.function_call_arguments.done", "response.output_item.done",
                ]  # fmt: skip
        else:
            answer = httpx.post(f"{server.url}/v1/responses", json=body, headers=headers)
            assert answer.status_code == 200
            response = checked(answer.json())
    assert response["status"] == "completed"
    assert response["output"][-1]["type"] == kind


def test_a_response_follows_a_previous_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COA_SERVE_KEYS", KEY)
    headers = {"Authorization": f"Bearer {KEY}"}
    with served(["<answer>Noted</answer>", "<answer>Alice</answer>"]) as server:
        url = f"{server.url}/v1/responses"
        first = checked(httpx.post(url, json={"model": AGENT, "input": "I am Alice."}, headers=headers).json())
        body = {"model": AGENT, "input": "Who am I?", "previous_response_id": first["id"]}
        second = checked(httpx.post(url, json=body, headers=headers).json())
        assert second["previous_response_id"] == first["id"] and second["status"] == "completed"
        missing = httpx.post(url, json={**body, "previous_response_id": "resp_none"}, headers=headers)
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "previous_response_not_found"
        assert httpx.post(url, json=body).status_code == 401
