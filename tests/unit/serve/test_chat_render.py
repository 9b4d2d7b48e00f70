"""A run as a chat completion: where its words go, in chunks and as a whole."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from coa.serve.chat_render import (
    Chunks,
    Deltas,
    StopCut,
    cited_urls,
    completion,
    failure_of,
    finish_reason,
    message_of,
    tool_calls,
)
from coa.serve.events import ItemBegan, ItemDone, ItemKind, ItemText, RunEnded, RunEvent, ToolReturned
from coa.serve.request import ClientCall
from coa.serve.usage import TokenCount
from coa.trajectory import Failure, FailureSite, Step, Stop, Task, Trajectory, load_profile, observation
from coa.trajectory.citations import Citation

HEAD = {"id": "chatcmpl-1", "created": 1, "model": "nano"}
COUNT = TokenCount(100, 40, 30, 20)


def ended(stop: Stop = Stop.ANSWERED, failure: Failure | None = None) -> Trajectory:
    return Trajectory(task=Task(id="t", question="q"), profile="web", stop=stop, failure=failure)


def item(number: int, agent: str, kind: ItemKind, *texts: str, arguments: Any = None) -> list[RunEvent]:
    done = ItemDone(number, Step(agent=agent, text="".join(texts)), arguments)
    return [ItemBegan(number, agent, kind), *(ItemText(number, text) for text in texts), done]


RUN: list[RunEvent] = [
    *item(0, "think", ItemKind.THOUGHT, "I need ", "to look."),
    *item(1, "plan", ItemKind.THOUGHT, "1. Search"),
    *item(2, "web_search", ItemKind.TOOL, "Arun", arguments={"text": "Arun"}),
    ToolReturned(2, observation("a river\nin Nepal", meta={"ok": True, "seconds": 0.25})),
    *item(3, "answer", ItemKind.ANSWER, "A <think>river", "</think>."),
    RunEnded(ended()),
]


def message(events: list[RunEvent], *stops: str) -> dict[str, Any]:
    return message_of(Deltas(load_profile("web"), stops).of(events))


def test_the_answer_is_the_content_and_everything_before_it_the_reasoning() -> None:
    made = message(RUN)
    assert made["content"] == "A <think>river</think>."
    assert made["reasoning"] == made["reasoning_content"]
    assert made["reasoning"].startswith("I need to look.\n\n**")
    assert "1. Search" in made["reasoning"] and made["reasoning"].endswith("Arun\n\n> a river\n> in Nepal")


def test_items_of_the_run_are_typed() -> None:
    assert message(RUN)["coa"] == [
        {"index": 0, "agent": "think", "kind": "thought"},
        {"index": 1, "agent": "plan", "kind": "thought"},
        {
            "index": 2, "agent": "web_search", "kind": "tool", "arguments": {"text": "Arun"},
            "output": "a river\nin Nepal", "ok": True, "seconds": 0.25,
        },
        {"index": 3, "agent": "answer", "kind": "answer"},
    ]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_any_grouping_of_events_gives_the_same_message(size: int) -> None:
    deltas = Deltas(load_profile("web"))
    parts = [deltas.of(RUN[at : at + size]) for at in range(0, len(RUN), size)]
    assert message_of(delta for part in parts for delta in part) == message(RUN)


def test_texts_that_arrive_together_are_one_delta() -> None:
    texts = [delta["content"] for delta in Deltas(load_profile("web")).of(RUN) if "content" in delta]
    assert texts == ["A <think>river</think>."]


def test_a_long_result_is_shortened_in_the_reasoning_only() -> None:
    made = message([*item(0, "web_search", ItemKind.TOOL, "x"), ToolReturned(0, observation("y" * 5000))])
    assert made["coa"][0]["output"] == "y" * 5000
    assert len(made["reasoning"]) < 600


def test_a_call_for_the_client_is_not_shown_as_text() -> None:
    events = item(0, "lookup", ItemKind.CLIENT_TOOL, '{"place": "Arun"}', arguments={"place": "Arun"})
    made = message([*events, RunEnded(ended(Stop.WAITING))])
    assert "reasoning" not in made and made["content"] == ""
    call = tool_calls(ClientCall("call_1", "Lookup", {"place": "Arun"}))
    made = message_of([*Deltas(load_profile("web")).of(events), {"tool_calls": call}])
    assert made["content"] is None
    function = {"name": "Lookup", "arguments": '{"place":"Arun"}'}
    assert made["tool_calls"] == [{"id": "call_1", "type": "function", "function": function}]


def test_a_call_of_the_clients_tool_that_could_not_be_read_is_shown() -> None:
    events = [
        *item(0, "lookup", ItemKind.CLIENT_TOOL, "not json"),
        ToolReturned(0, observation("error: no JSON", meta={"ok": False})),
    ]
    made = message(events)
    assert "not json" in made["reasoning"] and made["coa"][0]["ok"] is False


@pytest.mark.parametrize("size", range(1, 9))
def test_the_answer_ends_before_a_stop_string_however_it_arrives(size: int) -> None:
    text = "x = 1\n</code> and Observ more"
    cut = StopCut(["</code>", "Observation:"])
    said = "".join(cut.feed(text[at : at + size]) for at in range(0, len(text), size)) + cut.rest()
    assert said == "x = 1\n"


def test_text_that_only_looks_like_a_stop_string_is_kept() -> None:
    cut = StopCut(["Observation:"])
    assert cut.feed("See Observ") == "See "
    assert cut.feed("able") == "Observable"
    assert cut.feed(" Obs") + cut.rest() == " Obs"


def test_stop_strings_cut_the_answer_and_nothing_else() -> None:
    made = message(RUN, "river", "look")
    assert made["content"] == "A <think>"
    assert "look" in made["reasoning"]


def test_citations_have_the_form_of_chat_completions() -> None:
    inside = {"url": "https://a.example", "title": "A", "start_index": 0, "end_index": 3}
    assert cited_urls([Citation("https://a.example", "A", 0, 3)]) == [{"type": "url_citation", "url_citation": inside}]


def test_every_chunk_and_the_whole_are_what_openais_types_describe() -> None:
    deltas = Deltas(load_profile("web"))
    chunks = Chunks(HEAD, include_usage=True)
    written = chunks.first() + b"".join(chunks.delta(delta) for delta in deltas.of(RUN)) + chunks.last("stop", COUNT)
    events = written.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    read = [ChatCompletionChunk.model_validate_json(event.removeprefix("data: "), strict=True) for event in events[:-2]]
    assert read[-1].choices == [] and read[-1].usage is not None and read[-1].usage.total_tokens == 130
    assert [chunk.choices[0].finish_reason for chunk in read[:-1]] == [None] * (len(read) - 2) + ["stop"]
    whole = completion(HEAD, message_of(Deltas(load_profile("web")).of(RUN)), "stop", COUNT)
    made = ChatCompletion.model_validate_json(orjson.dumps(whole), strict=True)
    assert made.choices[0].message.content == "".join(chunk.choices[0].delta.content or "" for chunk in read[:-1])
    assert made.usage is not None and made.usage.completion_tokens_details is not None
    assert made.usage.completion_tokens_details.reasoning_tokens == 20
    assert made.usage.prompt_tokens_details is not None and made.usage.prompt_tokens_details.cached_tokens == 40


def test_usage_is_sent_only_to_those_who_ask() -> None:
    chunks = Chunks(HEAD, include_usage=False)
    assert b"usage" not in chunks.first() + chunks.last("stop", COUNT)


def test_control_characters_and_line_ends_stay_inside_their_event() -> None:
    chunk = Chunks(HEAD, include_usage=False).delta({"content": "a\r\n\ndata: [DONE]\n\n\x00\x1b\u2028"})
    assert chunk.count(b"\n") == 2 and b"\r" not in chunk
    assert orjson.loads(chunk[6:])["choices"][0]["delta"]["content"] == "a\r\n\ndata: [DONE]\n\n\x00\x1b\u2028"


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        (Stop.ANSWERED, "stop"), (Stop.UNANSWERED, "stop"), (Stop.WAITING, "tool_calls"), (Stop.TOKENS, "length"),
        (Stop.STEPS, "length"), (Stop.CONTEXT, "length"), (Stop.TIME, "length"), (Stop.TOOL_CALLS, "length"),
    ],
)  # fmt: skip
def test_finish_reasons(stop: Stop, reason: str) -> None:
    assert finish_reason(ended(stop)) == reason
    assert failure_of(ended(stop)) is None


def test_a_run_that_failed_is_an_error_with_the_status_of_its_cause() -> None:
    def status(stop: Stop, site: FailureSite | None = None) -> int | None:
        error = failure_of(ended(stop, Failure(site=site, message="gone") if site else None))
        return error.status if error is not None else None

    assert status(Stop.FAILED, FailureSite.MODEL) == 502
    assert status(Stop.FAILED, FailureSite.RUNTIME) == 500
    assert status(Stop.INTERRUPTED) == 503
