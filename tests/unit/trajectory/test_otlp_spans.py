"""A run as OpenTelemetry spans: by the published names, with content only if wanted, and as a tree that says who did
what and for how long."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest

from coa.trajectory import Failure, FailureSite, Stop, Trajectory, Usage, profile_of
from coa.trajectory.formats.otlp_export import to_spans
from coa.trajectory.formats.otlp_wire import Span, SpanKind, resource_spans
from support.builders import make_trajectory, web_run
from support.team_of_five import SECRETS, team_of_five

ENDED = 1_800_000_000_000_000_000
PUBLISHED = {
    line
    for line in (Path(__file__).parents[2] / "support" / "genai_attributes.txt").read_text().splitlines()
    if not line.startswith("#")
}
REQUIRED_IN_PARTS = {
    "text": {"content"}, "reasoning": {"content"}, "tool_call": {"name"}, "tool_call_response": {"response"},
}  # fmt: skip
"""Fields that the conventions' schema of messages requires in a part, besides its type."""


def spans_of(trajectory: Trajectory, *, content: bool = True) -> list[Span]:
    return to_spans(trajectory, profile_of(trajectory), ended_ns=ENDED, content=content)


def named(spans: list[Span], name: str) -> Span:
    [found] = [span for span in spans if span.name == name]
    return found


def loaded(span: Span, key: str) -> Any:
    return json.loads(str(span.attributes[key]))


def test_every_attribute_is_published_or_under_our_own_prefix() -> None:
    assert len(PUBLISHED) == 67
    for content in (True, False):
        spans = spans_of(team_of_five(), content=content)
        names = {key for span in spans for key in span.attributes}
        names |= {key for span in spans for event in span.events for key in event.attributes}
        unknown = {name for name in names - PUBLISHED if not name.startswith("coa.")}
        assert unknown == ({"input.value", "output.value"} if content else set())


def test_no_name_is_an_attribute_and_the_beginning_of_another() -> None:
    for span in spans_of(team_of_five()):
        keys = set(span.attributes)
        assert not [(one, other) for one in keys for other in keys if other.startswith(one + ".")]


def test_the_tree_has_a_span_for_the_run_for_each_role_for_each_text_and_for_each_tool() -> None:
    spans = spans_of(team_of_five())
    assert [span.name for span in spans] == [
        "invoke_agent coa",
        "chat nano",
        "invoke_agent plan", "chat nano",
        "chat nano", "execute_tool web_search",
        "chat nano", "execute_tool crawl_page",
        "invoke_agent reflection", "chat nano",
        "chat nano", "execute_tool code",
        "invoke_agent suggested_answer", "chat nano",
        "invoke_agent double_check", "chat nano",
    ]  # fmt: skip
    root = spans[0]
    assert root.parent is None and len({span.trace for span in spans}) == 1
    roles = {span.id for span in spans[1:] if span.name.startswith("invoke_agent")}
    assert all(span.parent in ({root.id} | roles) for span in spans[1:])
    assert [span.parent in roles for span in spans if span.name == "chat nano"] == [
        False, True, False, False, True, False, True, True,
    ]  # fmt: skip
    assert len({span.id for span in spans}) == len(spans)
    assert {span.kind for span in spans if span.name == "chat nano"} == {SpanKind.CLIENT}
    assert {span.kind for span in spans if span.name != "chat nano"} == {SpanKind.INTERNAL}


def test_the_run_says_what_it_took_and_how_it_ended() -> None:
    told = spans_of(team_of_five(), content=False)[0].attributes
    assert told == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "coa",
        "gen_ai.request.model": "nano",
        "gen_ai.conversation.id": "conv-7",
        "gen_ai.agent.name": "coa",
        "gen_ai.usage.input_tokens": 900,
        "gen_ai.usage.output_tokens": 120,
        "gen_ai.usage.cache_read.input_tokens": 300,
        "coa.profile.name": "web",
        "coa.profile.hash": team_of_five().profile_hash,
        "coa.task.id": "cities-1",
        "coa.sample": 3,
        "coa.stop": "answered",
        "coa.steps": 13,
        "coa.model_calls": 5,
        "coa.tool_calls": 3,
        "coa.repairs": 1,
        "coa.seconds": 20.0,
        "coa.cost": 0.25,
        "coa.score.exact": 1.0,
    }


def test_without_content_no_word_of_user_model_or_tool_is_in_the_spans() -> None:
    failed = Failure(site=FailureSite.MODEL, message="the answer 'Perham' is no JSON")
    run = team_of_five(stop=Stop.FAILED, failure=failed)
    sent = json.dumps(resource_spans(spans_of(run, content=False), "coa"), ensure_ascii=False)
    assert [word for word in SECRETS if word in sent] == []
    kept = json.dumps(resource_spans(spans_of(run), "coa"), ensure_ascii=False)
    assert [word for word in SECRETS if word not in kept] == []


def test_messages_have_the_form_of_the_conventions() -> None:
    spans = spans_of(team_of_five())
    keys = ("gen_ai.input.messages", "gen_ai.output.messages")
    messages = [message for span in spans for key in keys if key in span.attributes for message in loaded(span, key)]
    assert {message["role"] for message in messages} == {"user", "assistant", "tool", "system"}
    for message in messages:
        for part in message["parts"]:
            assert REQUIRED_IN_PARTS[part["type"]] <= set(part)
    assert loaded(spans[0], "gen_ai.system_instructions") == [
        {"type": "text", "content": "You are several agents; be brief."}
    ]


def test_what_the_model_reads_is_in_the_input_of_what_it_writes_next() -> None:
    chats = [span for span in spans_of(team_of_five()) if span.name == "chat nano"]
    assert loaded(chats[0], "gen_ai.input.messages")[0]["parts"][0]["content"].startswith("How much larger")
    assert "gen_ai.input.messages" not in chats[1].attributes
    answer = {"type": "tool_call_response", "id": "call_2", "response": "Perham: 1,169 people"}
    assert loaded(chats[3], "gen_ai.input.messages") == [{"role": "tool", "parts": [answer]}]
    assert loaded(chats[5], "gen_ai.input.messages")[0]["role"] == "system"


def test_a_thought_is_reasoning_and_a_call_has_its_arguments() -> None:
    chats = [span for span in spans_of(team_of_five()) if span.name == "chat nano"]
    [said] = loaded(chats[0], "gen_ai.output.messages")
    assert said == {
        "role": "assistant", "parts": [{"type": "reasoning", "content": "Two look-ups."}], "finish_reason": "stop",
    }  # fmt: skip
    [called] = loaded(chats[2], "gen_ai.output.messages")
    search = {"type": "tool_call", "id": "call_2", "name": "web_search", "arguments": {"text": "Perham population"}}
    assert called == {"role": "assistant", "parts": [search], "finish_reason": "tool_call"}


def test_a_tool_says_what_it_was_asked_and_whether_it_failed() -> None:
    spans = spans_of(team_of_five())
    worked, failed = named(spans, "execute_tool web_search"), named(spans, "execute_tool crawl_page")
    assert worked.attributes["gen_ai.tool.call.id"] == "call_2" and worked.attributes["gen_ai.tool.type"] == "function"
    assert worked.attributes["gen_ai.tool.call.result"] == "Perham: 1,169 people"
    assert loaded(failed, "gen_ai.tool.call.arguments") == {"items": ["https://verwell.example", "harbour"]}
    assert (worked.error, failed.error, failed.attributes["error.type"]) == (None, "", "service")


@pytest.mark.parametrize("code", ["a whole sentence with words", "", 7, None, "x" * 65])
def test_an_error_that_is_no_code_is_not_repeated(code: object) -> None:
    run = make_trajectory(("web_search", "x"), ("observation", "e"))
    failed = run.steps[1].model_copy(update={"meta": {"ok": False, "error": code}})
    run = run.model_copy(update={"steps": (run.steps[0], failed)})
    assert named(spans_of(run, content=False), "execute_tool web_search").attributes["error.type"] == "_OTHER"


def test_a_failed_run_says_which_part_failed_and_with_content_why() -> None:
    failure = Failure(site=FailureSite.MODEL, message="it broke")
    run = web_run(stop=Stop.FAILED, failure=failure)
    plain, whole = spans_of(run, content=False)[0], spans_of(run)[0]
    assert (plain.error, plain.attributes["error.type"], whole.error) == ("", "model", "it broke")


def test_scores_are_evaluation_results_and_an_unscored_run_has_no_number() -> None:
    events = [event for event in spans_of(team_of_five())[0].events if event.name == "gen_ai.evaluation.result"]
    assert [dict(event.attributes) for event in events] == [
        {
            "gen_ai.evaluation.name": "exact",
            "gen_ai.evaluation.score.value": 1.0,
            "gen_ai.evaluation.explanation": "169 is 169",
        },
        {"gen_ai.evaluation.name": "judge"},
    ]


def test_several_calls_get_their_results_in_order_and_a_call_without_a_result_has_no_tool_span() -> None:
    run = make_trajectory(
        ("web_search", "a"), ("crawl_page", "b"), ("observation", "of a"), ("observation", "of b"),
        ("web_search", "never answered"), ("plan", "p"), ("observation", "a note"), ("web_search", "waits"),
    )  # fmt: skip
    spans = spans_of(run)
    tools = [(span.name, span.attributes["gen_ai.tool.call.result"]) for span in spans if "execute" in span.name]
    assert tools == [("execute_tool web_search", "of a"), ("execute_tool crawl_page", "of b")]
    assert [event.attributes["coa.step.text"] for event in spans[0].events] == ["a note"]


def test_recorded_times_are_kept_and_the_rest_is_shared() -> None:
    spans = spans_of(team_of_five())
    root = spans[0]
    assert (root.start_ns, root.end_ns) == (ENDED - 20 * 10**9, ENDED)
    assert [span.end_ns - span.start_ns for span in spans if "execute_tool" in span.name] == [
        2_000_000_000, 1_000_000_000, 500_000_000,
    ]  # fmt: skip
    steps = [span for span in spans[1:] if "coa.step.index" in span.attributes]
    assert all(one.end_ns <= other.start_ns for one, other in pairwise(steps))
    assert root.start_ns <= steps[0].start_ns and steps[-1].end_ns <= root.end_ns


@pytest.mark.parametrize("seconds", [0.0, 1e12])
def test_runs_without_a_time_or_with_an_impossible_one_still_have_an_order(seconds: float) -> None:
    run = team_of_five(usage=Usage(seconds=seconds))
    broken = run.steps[3].model_copy(update={"meta": {"seconds": -3.5}})
    run = run.model_copy(update={"steps": (*run.steps[:3], broken, *run.steps[4:])})
    steps = [span for span in spans_of(run) if "coa.step.index" in span.attributes]
    assert all(0 < span.start_ns < span.end_ns < 1 << 63 for span in steps)
    assert [span.start_ns for span in steps] == sorted({span.start_ns for span in steps})


def test_a_run_has_the_same_ids_wherever_and_whenever_it_is_exported() -> None:
    run = team_of_five()
    later = to_spans(run.scored("late", 1.0), profile_of(run), ended_ns=ENDED + 5, content=False)
    assert [(span.trace, span.id, span.parent) for span in later] == [
        (span.trace, span.id, span.parent) for span in spans_of(run)
    ]
    others = [
        team_of_five(sample=4), team_of_five(usage=Usage(seconds=20.5)), team_of_five(steps=run.steps[:-1]),
        team_of_five(stop=Stop.TIME),
    ]  # fmt: skip
    assert len({spans_of(other)[0].trace for other in (run, *others)}) == 5


def test_the_json_is_that_of_otlp() -> None:
    row = resource_spans(spans_of(team_of_five(), content=False), "my-service")
    orjson.dumps(row)
    assert row["resource"]["attributes"][0] == {"key": "service.name", "value": {"stringValue": "my-service"}}
    [scope] = row["scopeSpans"]
    assert scope["scope"]["name"] == "coa"
    root, first = scope["spans"][:2]
    assert set(root) == {
        "traceId", "spanId", "name", "kind", "startTimeUnixNano", "endTimeUnixNano", "attributes", "events",
    }  # fmt: skip
    assert len(root["traceId"]) == 32 and len(root["spanId"]) == 16 and first["parentSpanId"] == root["spanId"]
    assert root["endTimeUnixNano"] == str(ENDED) and root["kind"] == 1 and first["kind"] == 3
    values = {attribute["key"]: attribute["value"] for attribute in root["attributes"]}
    assert values["coa.sample"] == {"intValue": "3"} and values["coa.seconds"] == {"doubleValue": 20.0}
    failed = next(span for span in scope["spans"] if span["name"] == "execute_tool crawl_page")
    assert failed["status"] == {"code": 2}
