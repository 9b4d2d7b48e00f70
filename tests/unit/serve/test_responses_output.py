"""From events of a run to items and events of Open Responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from coa.serve.events import ItemBegan, ItemDone, ItemKind, ItemText, RunEnded, RunEvent, ToolReturned
from coa.serve.request import ClientCall
from coa.serve.responses.output import Output
from coa.trajectory import Step, Stop, Task, Trajectory, observation
from support.open_responses import EVENTS, _check_items


def item(number: int, agent: str, kind: ItemKind, *pieces: str, arguments: Any = None) -> list[RunEvent]:
    step = Step(agent=agent, text="".join(pieces))
    texts = [ItemText(number, piece) for piece in pieces]
    return [ItemBegan(number, agent, kind), *texts, ItemDone(number, step, arguments)]


def ended(stop: Stop = Stop.ANSWERED) -> RunEnded:
    return RunEnded(Trajectory(task=Task(id="t", question="?"), profile="nano", stop=stop))


def rendered(events: Sequence[RunEvent], **options: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The items, and the events of the stream, which are valid and in order."""
    output = Output("run", **options)
    written = [shown for event in events for shown in output.feed(event)]
    _check_items(written)
    for number, event in enumerate(written):
        EVENTS[event["type"]].model_validate({"sequence_number": number, **event})
    return output.items, written


CALLED = ClientCall("call_1", "weather", {"city": "Oslo"})
RETURNED = observation("88 m", meta={"ok": True, "seconds": 0.5})


def test_pieces_become_deltas_of_one_item() -> None:
    items, events = rendered([*item(0, "think", ItemKind.THOUGHT, "I ", "see"), ended()])
    assert [event["delta"] for event in events if "delta" in event] == ["I ", "see"]
    assert items[0]["summary"][0]["text"] == "I see" and items[0]["coa"] == {"agent": "think", "kind": "thought"}


def test_a_thought_without_words_has_an_empty_summary() -> None:
    items, _ = rendered([*item(0, "think", ItemKind.THOUGHT), ended()])
    assert items[0]["summary"] == []


def test_a_tool_call_shows_what_it_was_given_and_what_it_returned() -> None:
    call = item(0, "lookup", ItemKind.TOOL, "tower", arguments={"text": "tower"})
    items, events = rendered([*call, ToolReturned(0, RETURNED), ended()])
    assert items[0]["summary"] == [{"type": "summary_text", "text": "lookup: tower"}]
    assert items[0]["content"] == [{"type": "reasoning_text", "text": "88 m"}]
    assert items[0]["coa"] == {
        "agent": "lookup", "kind": "tool", "arguments": {"text": "tower"}, "ok": True, "seconds": 0.5,
    }  # fmt: skip
    assert not any(event["type"].startswith("response.function_call") for event in events)


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_run_that_is_cut_anywhere_leaves_whole_items(cut: int) -> None:
    """Cancelled in the middle of a thought, of a call, while a tool works, or of an answer."""
    whole: list[RunEvent] = [
        *item(0, "think", ItemKind.THOUGHT, "I ", "see"), *item(1, "lookup", ItemKind.TOOL, "tower", arguments={}),
        ToolReturned(1, RETURNED), *item(2, "answer", ItemKind.ANSWER, "88 ", "m"),
    ]  # fmt: skip
    items, _ = rendered([*whole[:cut], ended(Stop.INTERRUPTED)])
    assert len(items) == sum(isinstance(event, ItemBegan) for event in whole[:cut])


def test_a_client_call_is_handed_over_only_when_the_run_waits_for_it() -> None:
    call = item(1, "weather", ItemKind.CLIENT_TOOL, '{"city": "Oslo"}', arguments={"city": "Oslo"})
    thought = item(0, "think", ItemKind.THOUGHT, "I ask")
    items, _ = rendered([*thought, *call, ended(Stop.WAITING)], call=lambda: CALLED)
    assert items[1] == {
        "type": "function_call", "id": "fc_run_1", "call_id": "call_1", "name": "weather",
        "arguments": '{"city":"Oslo"}', "status": "completed",
    }  # fmt: skip
    items, _ = rendered([*thought, *call, ended(Stop.TOOL_CALLS)])
    assert [item["type"] for item in items] == ["reasoning"]


def test_a_client_call_that_cannot_be_made_is_part_of_the_reasoning() -> None:
    call = item(0, "weather", ItemKind.CLIENT_TOOL, "Oslo")
    slip = observation("write JSON", meta={"ok": False})
    answer = item(1, "answer", ItemKind.ANSWER, "cold")
    items, _ = rendered([*call, ToolReturned(0, slip), *answer, ended()])
    assert [item["type"] for item in items] == ["reasoning", "message"]
    assert items[0]["content"][0]["text"] == "write JSON" and items[0]["coa"]["ok"] is False


def test_a_snapshot_shows_the_item_that_is_being_written() -> None:
    output = Output("run")
    output.feed(ItemBegan(0, "answer", ItemKind.ANSWER))
    output.feed(ItemText(0, "88 "))
    (shown,) = output.snapshot()
    assert shown["status"] == "in_progress" and shown["content"][0]["text"] == "88 "
    assert output.items == []
