"""`/v1/responses` over a real server, with the real `openai` client; every object is checked against the schema."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from coa.models.base import Context
from coa.tools import Observation, Tool, ToolContext
from coa.tools.read_file import ReadFile
from coa.trajectory import Form, Shape
from support.open_responses import checked, checked_events, frames, streamed
from support.served import AGENT, ANSWER, SEARCH, ServedAgent, served

WEATHER: Any = {
    "type": "function", "name": "get_weather", "description": "the weather of a city", "strict": True,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}  # fmt: skip
CALL = '<think>I ask the client.</think>\n<get_weather>\n```json\n{"city": "Oslo"}\n```\n</get_weather>'
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)


def test_a_response_has_one_item_for_each_step() -> None:
    with served() as server:
        answer = httpx.post(f"{server.url}/v1/responses", json={"model": AGENT, "input": "Which tower?"})
    response = checked(answer.json())
    assert response["status"] == "completed"
    assert [item["type"] for item in response["output"]] == ["reasoning", "reasoning", "reasoning", "message"]
    thought, search, _, message = response["output"]
    assert thought["summary"] == [{"type": "summary_text", "text": "I look it up."}]
    assert search["summary"] == [{"type": "summary_text", "text": "web_search: tallest tower"}]
    assert search["content"][0]["text"].endswith("https://towers.example/vell")
    assert search["coa"]["agent"] == "web_search" and search["coa"]["arguments"] == {"text": "tallest tower"}
    (part,) = message["content"]
    assert part["text"] == "The Vell tower."
    (source,) = part["annotations"]
    assert source["url"] == "https://towers.example/vell"
    assert part["text"][source["start_index"] : source["end_index"]] == part["text"]
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]


def test_a_stream_has_the_events_of_the_standard_in_their_order() -> None:
    with served() as server:
        events = streamed(server.url, {"model": AGENT, "input": "Which tower?"})
    assert events[-1]["type"] == "response.completed"
    assert [event["type"] for event in events if event.get("output_index") == 3] == [
        "response.output_item.added", "response.content_part.added", "response.output_text.delta",
        "response.output_text.annotation.added", "response.output_text.done", "response.content_part.done",
        "response.output_item.done",
    ]  # fmt: skip


def test_the_openai_client_streams_and_reads_back() -> None:
    with served() as server:
        with server.client.responses.stream(model=AGENT, input="Which tower?") as stream:
            events = [event.type for event in stream]
            final = stream.get_final_response()
        assert final.output_text == "The Vell tower." and events[-1] == "response.completed"
        again = server.client.responses.retrieve(final.id)
        assert again.output_text == "The Vell tower." and again.usage == final.usage
        server.client.responses.delete(final.id)
        with pytest.raises(openai.NotFoundError):
            server.client.responses.retrieve(final.id)


def test_the_async_client_gets_the_same() -> None:
    async def work(server: ServedAgent) -> list[str]:
        async with server.async_client as client:
            whole = await client.responses.create(model=AGENT, input="Which tower?")
            pieces = ""
            async for event in await client.responses.create(model=AGENT, input="Which tower?", stream=True):
                if event.type == "response.output_text.delta":
                    pieces += event.delta
            return [whole.output_text, pieces]

    with served([SEARCH, ANSWER] * 2) as server:
        assert asyncio.run(work(server)) == ["The Vell tower."] * 2


# ---- conversations


def prompts(script: list[str]) -> tuple[Callable[[Context], str], list[str]]:
    """A script that also notes what the model is given."""
    seen: list[str] = []
    lines: Iterator[str] = iter(script)

    def answer(context: Context) -> str:
        seen.append("\n".join(message.content for message in context.messages) + context.text)
        return next(lines)

    return answer, seen


def test_a_follow_up_question_has_the_conversation_before_it_but_not_the_instructions() -> None:
    script, seen = prompts(["<answer>Paris</answer>", "<answer>Two million</answer>", "<answer>Yes</answer>"])
    with served(script) as server:
        ask = server.client.responses.create
        first = ask(model=AGENT, input="Capital of France?", instructions="Speak like a pirate.")
        second = ask(model=AGENT, input="How many people?", previous_response_id=first.id)
        third = ask(model=AGENT, input="Sure?", previous_response_id=second.id)
    assert second.previous_response_id == first.id and second.instructions is None
    assert "Speak like a pirate." in seen[0] and "Speak like a pirate." not in seen[1]
    for word in ("Capital of France?", "Paris", "How many people?"):
        assert word in seen[1]
    assert "Two million" in seen[2] and "Paris" in seen[2] and third.output_text == "Yes"


def test_earlier_turns_may_come_in_the_input() -> None:
    script, seen = prompts(["<answer>Alice</answer>"])
    turns: Any = [
        {"role": "developer", "content": "Be brief."}, {"role": "user", "content": "My name is Alice."},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello Alice!"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "What is my name?"}]},
    ]  # fmt: skip
    with served(script) as server:
        assert server.client.responses.create(model=AGENT, input=turns).output_text == "Alice"
    for word in ("Be brief.", "My name is Alice.", "Hello Alice!", "What is my name?"):
        assert word in seen[0]


def test_another_keys_responses_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COA_SERVE_KEYS", "key-one-0123456789,key-two-0123456789")
    with served([SEARCH, ANSWER] * 2) as server:
        one, two = (server.client.with_options(api_key=f"key-{name}-0123456789") for name in ("one", "two"))
        response = one.responses.create(model=AGENT, input="Which tower?")
        for attempt in (
            lambda: two.responses.retrieve(response.id), lambda: two.responses.delete(response.id),
            lambda: two.responses.cancel(response.id), lambda: two.responses.input_items.list(response.id),
            lambda: two.responses.create(model=AGENT, input="And?", previous_response_id=response.id),
        ):  # fmt: skip
            with pytest.raises(openai.NotFoundError):
                attempt()
        assert one.responses.retrieve(response.id).status == "completed"


def test_the_input_of_a_response_can_be_read() -> None:
    turns: Any = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hi."},
                  {"role": "user", "content": "Which tower?"}]  # fmt: skip
    with served() as server:
        response = server.client.responses.create(model=AGENT, input=turns)
        listed = server.client.responses.input_items.list(response.id, order="asc", limit=2)
        assert [item.content[0].text for item in listed] == ["Hello?", "Hi.", "Which tower?"]  # type: ignore[union-attr, index]


def test_a_response_that_is_not_stored_cannot_be_read_or_followed() -> None:
    with served() as server:
        response = server.client.responses.create(model=AGENT, input="Which tower?", store=False)
        assert response.model_extra is not None and response.model_extra["store"] is False
        with pytest.raises(openai.NotFoundError):
            server.client.responses.retrieve(response.id)
        with pytest.raises(openai.NotFoundError) as error:
            server.client.responses.create(model=AGENT, input="And?", previous_response_id=response.id)
        assert error.value.param == "previous_response_id"


# ---- tools of the client's


def test_a_client_tool_ends_the_response_and_its_output_continues_the_run() -> None:
    script, seen = prompts([CALL, "<think>It is cold.</think>\n<answer>-3 degrees</answer>", "<answer>Norway</answer>"])
    with served(script) as server:
        ask = server.client.responses.create
        first = ask(model=AGENT, input="Weather in Oslo?", tools=[WEATHER])
        assert [item.type for item in first.output] == ["reasoning", "function_call"]
        call: Any = first.output[-1]
        assert (call.name, call.arguments, first.status) == ("get_weather", '{"city":"Oslo"}', "completed")
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "-3 C"}
        second = ask(model=AGENT, input=[output], previous_response_id=first.id)
        assert [item.type for item in second.output] == ["reasoning", "message"]
        assert second.output_text == "-3 degrees"
        third = ask(model=AGENT, input="Which country?", previous_response_id=second.id)
    assert "get_weather" in seen[1] and "-3 C" in seen[1]
    assert "Weather in Oslo?" in seen[2] and "-3 degrees" in seen[2] and third.output_text == "Norway"
    assert first.usage is not None and second.usage is not None
    assert second.usage.output_tokens == len(["<think>It", "is", "cold.</think>", "<answer>-3", "degrees"])
    assert [tool.name for tool in second.tools] == ["get_weather"]  # type: ignore[union-attr]


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_keeps_the_items_itself_continues_the_run(store: bool, stream: bool) -> None:
    with served([CALL, "<answer>-3 degrees</answer>"]) as server:
        body: dict[str, Any] = {"model": AGENT, "tools": [WEATHER], "store": store}
        items: list[Any] = [{"role": "user", "content": "Weather in Oslo?"}]

        def send() -> dict[str, Any]:
            if stream:
                return dict(streamed(server.url, {**body, "input": items})[-1]["response"])
            return checked(httpx.post(f"{server.url}/v1/responses", json={**body, "input": items}).json())

        first = send()
        items += first["output"]
        items.append({"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "-3 C"})
        assert send()["output"][-1]["content"][0]["text"] == "-3 degrees"


def test_the_stream_of_a_client_tool_has_its_arguments() -> None:
    with served([CALL]) as server:
        events = streamed(server.url, {"model": AGENT, "input": "Weather in Oslo?", "tools": [WEATHER]})
    assert [event["type"] for event in events if event.get("output_index") == 1] == [
        "response.output_item.added", "response.function_call_arguments.delta",
        "response.function_call_arguments.done", "response.output_item.done",
    ]  # fmt: skip


@pytest.mark.parametrize("portable", [True, False])
def test_a_run_that_the_server_has_forgotten_is_rebuilt_from_its_items(portable: bool) -> None:
    """Another server knows nothing of the run; with the items, its model sees the same text as it would have."""
    call = '<get_weather>\n```json\n{"city":"Oslo"}\n```\n</get_weather>'
    lines = [SEARCH, f"<think>Now the client.</think>\n{call}", "<answer>-3 degrees</answer>"]
    first_script, first_seen = prompts(lines)
    question: Any = {"role": "user", "content": "Weather in Oslo?"}
    include: Any = ["reasoning.encrypted_content"] if portable else []
    with served(first_script) as server:
        ask = server.client.responses.create
        first = ask(model=AGENT, input=[question], tools=[WEATHER], include=include, store=False)
        items: list[Any] = [item.model_dump(exclude_unset=True) for item in first.output]
        output: Any = {"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "-3 C"}
        ask(model=AGENT, input=[output], tools=[WEATHER])
    if portable:  # a client may drop every field that it does not know
        items = [{name: value for name, value in item.items() if name not in ("coa", "content")} for item in items]
    again, second_seen = prompts(["<answer>-3 degrees</answer>"])
    with served(again) as server:
        final = server.client.responses.create(model=AGENT, input=[question, *items, output], tools=[WEATHER])
    assert final.output_text == "-3 degrees"
    assert second_seen == [first_seen[-1]]


def test_items_that_no_server_wrote_do_not_break_it() -> None:
    """An answer as a thought, a step of nobody's, content that is not ours: the run goes on with what can be used."""
    odd: Any = [
        {"type": "reasoning", "summary": [{"text": "Done."}], "coa": {"agent": "answer"}},
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA-of-another-server"},
        {"type": "reasoning", "summary": [{"text": "x"}], "encrypted_content": "eyJhZ2VudCI6IFsxXX0="},
        {"type": "reasoning", "summary": [], "coa": {"agent": "observation", "kind": "tool"}},
    ]  # fmt: skip
    call: Any = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Oslo"}'}
    output: Any = {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "-3 C"}]}
    with served(["<answer>-3 degrees</answer>"]) as server:
        question: Any = {"role": "user", "content": "Weather in Oslo?"}
        ask = server.client.responses.create
        final = ask(model=AGENT, input=[question, *odd, call, output], tools=[WEATHER])
        assert final.output_text == "-3 degrees"
        for items, tools in (([question, call, output], []), ([call, output], [WEATHER])):
            with pytest.raises(openai.BadRequestError):
                ask(model=AGENT, input=items, tools=tools)


def test_an_output_for_a_call_that_was_never_made_is_refused() -> None:
    with served([CALL]) as server:
        ask = server.client.responses.create
        output: Any = {"type": "function_call_output", "call_id": "call_none", "output": "1"}
        with pytest.raises(openai.BadRequestError, match="no function call with the id"):
            ask(model=AGENT, input=[{"role": "user", "content": "Hello"}, output])
        first = ask(model=AGENT, input="Weather in Oslo?", tools=[WEATHER])
        with pytest.raises(openai.BadRequestError, match="output of the function call call_"):
            ask(model=AGENT, input="And now?", previous_response_id=first.id)
        with pytest.raises(openai.BadRequestError, match="output of the function call call_"):
            ask(model=AGENT, input=[output], previous_response_id=first.id)


def test_a_client_may_send_the_output_again_when_its_connection_broke() -> None:
    with served([CALL, "<answer>-3 degrees</answer>", "<answer>-3 degrees</answer>"]) as server:
        ask = server.client.responses.create
        first = ask(model=AGENT, input="Weather in Oslo?", tools=[WEATHER])
        output: Any = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "-3 C"}  # type: ignore[union-attr]
        for _ in range(2):
            second = ask(model=AGENT, input=[output], previous_response_id=first.id)
            assert second.output_text == "-3 degrees"


def test_tool_choice_none_leaves_the_clients_tools_out() -> None:
    script, seen = prompts(["<answer>No idea</answer>", "<answer>No idea</answer>"])
    with served(script) as server:
        ask = server.client.responses.create
        ask(model=AGENT, input="Weather in Oslo?", tools=[WEATHER], tool_choice="none")
        ask(model=AGENT, input="Weather in Oslo?", tools=[WEATHER])
    assert "get_weather" not in seen[0] and "get_weather" in seen[1]


# ---- background, cancelling, limits, failures


class Slow:
    about, shape, timeout_s = "takes long", Shape(form=Form.LINE), 60.0

    async def call(self, arguments: Any, context: ToolContext) -> Observation:
        await asyncio.sleep(50)
        return Observation("never")


def test_a_background_response_goes_on_without_its_client_and_can_be_streamed_later() -> None:
    with served() as server:
        client = server.client
        response = client.responses.create(model=AGENT, input="Which tower?", background=True)
        assert response.status in ("queued", "in_progress") and response.background
        url = f"{server.url}/v1/responses/{response.id}"
        events = frames(httpx.get(url, params={"stream": "true"}, timeout=30).content)
        checked_events(events)
        assert checked(httpx.get(url).json())["status"] == "completed"
        rest = frames(httpx.get(url, params={"stream": "true", "starting_after": 7}, timeout=30).content)
        assert rest == events[8:]


def test_a_background_response_goes_on_when_the_client_of_its_stream_leaves() -> None:
    with served() as server:
        body = {"model": AGENT, "input": "Which tower?", "background": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/responses", json=body) as answer:
            name = answer.headers["x-coa-run"]
        while (response := server.client.responses.retrieve(f"resp_{name}")).status == "in_progress":
            pass
        assert response.status == "completed" and response.output_text == "The Vell tower."


def test_a_running_response_can_be_deleted() -> None:
    with served([SEARCH], tools={"web_search": Slow()}) as server:
        response = server.client.responses.create(model=AGENT, input="Which tower?", background=True)
        server.client.responses.delete(response.id)
        with pytest.raises(openai.NotFoundError):
            server.client.responses.retrieve(response.id)


def test_a_running_response_is_cancelled() -> None:
    with served([SEARCH], tools={"web_search": Slow()}) as server:
        client = server.client
        response = client.responses.create(model=AGENT, input="Which tower?", background=True)
        while not (seen := client.responses.retrieve(response.id)).output:
            pass
        assert seen.status == "in_progress"
        cancelled = client.responses.cancel(response.id)
        assert cancelled.status == "cancelled"
        again = checked(httpx.get(f"{server.url}/v1/responses/{response.id}").json())
        assert again["status"] == "cancelled" and again["output"][0]["summary"][0]["text"] == "I look it up."
        assert client.responses.cancel(response.id).status == "cancelled"
        events = frames(httpx.get(f"{server.url}/v1/responses/{response.id}?stream=true", timeout=30).content)
        assert checked_events(events)[-1]["type"] == "response.incomplete"


def test_max_output_tokens_makes_the_response_incomplete() -> None:
    with served([f"<think>{'word ' * 40}</think>", "<answer>cut</answer>"]) as server:
        body = {"model": AGENT, "input": "Which tower?", "max_output_tokens": 16}
        response = checked(httpx.post(f"{server.url}/v1/responses", json=body).json())
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_max_tool_calls_leads_the_run_to_its_answer() -> None:
    script = [SEARCH, SEARCH.replace("tallest", "taller"), "<answer>The Vell tower.</answer>"]
    with served(script) as server:
        response = server.client.responses.create(model=AGENT, input="Which tower?", max_tool_calls=1)
    assert response.status == "completed" and response.output_text == "The Vell tower."
    assert response.model_extra is not None and response.model_extra["coa"]["stop"] == "tool_calls"


def test_a_model_that_fails_makes_the_response_fail() -> None:
    with served([]) as server:
        events = streamed(server.url, {"model": AGENT, "input": "Which tower?"})
        response = checked(httpx.post(f"{server.url}/v1/responses", json={"model": AGENT, "input": "?"}).json())
    assert events[-1]["type"] == "response.failed"
    assert response["status"] == "failed" and "the script has 0 lines" in response["error"]["message"]


# ---- files


class Eyes:
    """Looks at an image, as a vision model would; here it only counts its bytes."""

    about, timeout_s = "looks at an image of the task", 5.0
    shape = Shape(form=Form.LINE)

    async def call(self, arguments: Any, context: ToolContext) -> Observation:
        return Observation(f"an image of {len(context.attachments[str(arguments['text'])])} bytes")


LOOK = "<visual_inspector>image.png</visual_inspector>"
IMAGE: Any = {"type": "input_image", "image_url": f"data:image/png;base64,{base64.b64encode(PNG).decode()}"}


def test_the_agents_tools_open_the_image_of_a_request_and_of_a_later_turn() -> None:
    tools: dict[str, Tool] = {"visual_inspector": Eyes()}
    with served([LOOK, "<answer>a dot</answer>"] * 2, tools=tools) as server:
        question: Any = {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, IMAGE]}
        first = server.client.responses.create(model=AGENT, input=[question])
        second = server.client.responses.create(model=AGENT, input="Sure?", previous_response_id=first.id)
    for response in (first, second):
        looked: Any = response.output[0]
        assert looked.content[0].text == f"an image of {len(PNG)} bytes"


def test_the_agents_tools_open_the_file_of_a_request() -> None:
    table = base64.b64encode(b"name,height\nVell,88\n").decode()
    look = '<read_file>\n```json\n{"file_path": "towers.csv"}\n```\n</read_file>'
    with served([look, "<answer>88</answer>"], tools={"read_file": ReadFile()}) as server:
        file: Any = {"type": "input_file", "filename": "../towers.csv", "file_data": table}
        asked: Any = {"role": "user", "content": [file, {"type": "input_text", "text": "How tall?"}]}
        response = server.client.responses.create(model=AGENT, input=[asked])
    read: Any = response.output[0]
    assert "Vell,88" in read.content[0].text and response.output_text == "88"


def test_an_agent_without_a_tool_for_images_refuses_them() -> None:
    with served() as server:
        with pytest.raises(openai.BadRequestError, match="has no tool to open images"):
            server.client.responses.create(model=AGENT, input=[{"role": "user", "content": [IMAGE]}])
        far: Any = {"type": "input_image", "image_url": "https://images.example/a.png"}
        with pytest.raises(openai.BadRequestError, match="fetches no addresses") as error:
            server.client.responses.create(model=AGENT, input=[{"role": "user", "content": [far]}])
        assert error.value.param == "input[0].content[0].image_url"


# ---- a server that is killed

_SERVER = """
import sys, time
from pathlib import Path
from support.served import served
from ast import literal_eval
from integration.test_serve_responses import Slow
from support.served import PageTool
tools = {"web_search": PageTool(), "slow": Slow()}
with served(literal_eval(sys.argv[2]), tools=tools, state=Path(sys.argv[1])) as server:
    print(server.url, flush=True)
    time.sleep(100)
"""


HANGING = ["<slow>for ever</slow>"]


class Killable:
    """A server in a process of its own."""

    def __init__(self, state: Path, script: list[str]) -> None:
        root = Path(__file__).parents[2]
        environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root / 'tests'}"}
        command = [sys.executable, "-c", _SERVER, str(state), repr(script)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def __enter__(self) -> Killable:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._process.kill()
        self._process.communicate()


def test_stored_responses_survive_a_kill_of_the_server(tmp_path: Path) -> None:
    question: Any = {"model": AGENT, "input": "Weather in Oslo?", "tools": [WEATHER]}
    with Killable(tmp_path, [SEARCH, ANSWER, CALL, *HANGING]) as one:
        done = one.client.responses.create(model=AGENT, input="Which tower?")
        waiting = one.client.responses.create(**question)
        lost = one.client.responses.create(model=AGENT, input="And?", background=True)
    call: Any = waiting.output[-1]
    answers = ["<think>It is cold.</think>\n<answer>-3 degrees</answer>", "<answer>Vell, I said.</answer>"]
    with Killable(tmp_path, answers) as two:
        found = two.client.responses.retrieve(done.id)
        assert found.output_text == done.output_text and found.output[0].type == "reasoning"
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "-3 C"}
        final = two.client.responses.create(model=AGENT, input=[output], previous_response_id=waiting.id)
        assert final.output_text == "-3 degrees" and final.output[0].type == "reasoning"
        again = two.client.responses.create(model=AGENT, input="Sure?", previous_response_id=done.id)
        assert again.output_text == "Vell, I said."
        gone = checked(httpx.get(f"{two.url}/v1/responses/{lost.id}").json())
        assert gone["status"] == "failed" and "stopped" in gone["error"]["message"]
