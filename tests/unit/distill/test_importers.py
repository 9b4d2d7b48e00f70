"""Importers: each format read as a team run, by its content alone."""

# ruff: noqa: E501 - rows of data are easier to read whole

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coa.distill.convert import convert
from coa.distill.importers.detect import read_traces
from coa.distill.importers.trace_format import Imported
from coa.distill.team_run import (
    AgentRun,
    CodeCall,
    EvaluatorVerdict,
    ModelCall,
    Note,
    Purpose,
    Skipped,
    SubRun,
    TeamRun,
    ToolResult,
)
from coa.errors import StoreError
from coa.trajectory import load_profile
from coa.trajectory.types import Stop, Trajectory

SHARED = Path(__file__).resolve().parents[4] / "shared" / "traces"
captured = pytest.mark.skipif(not SHARED.is_dir(), reason="the captured files are not beside the repository")


def written(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def only_run(found: list[Imported]) -> TeamRun:
    assert len(found) == 1 and isinstance(found[0], TeamRun), found
    return found[0]


def model_calls(run: AgentRun) -> list[ModelCall]:
    return [call for below in run.walk() for call in below.model_calls]


# -- the captured files -------------------------------------------------------------------------------------------------


@captured
@pytest.mark.parametrize("name", ["smolagents_memory.json", "smolagents_openinference_spans.json"])
def test_both_captured_files_tell_the_same_run(name: str) -> None:
    run = only_run(list(read_traces(SHARED / name)))
    assert (run.task.question, run.answer) == ("How many feet tall is the tower?", "1082")
    # What the file itself logs: 14 model calls, 21595 tokens read and 222 written, sub-agents included.
    assert (run.usage.model_calls, run.usage.prompt_tokens, run.usage.completion_tokens) == (14, 21595, 222)
    assert run.left_out == () and run.unmetered_calls == 0
    subs = [event for event in run.root.events if isinstance(event, SubRun)]
    assert [(sub.run.agent, sub.run.request, sub.run.answer) for sub in subs] == [
        ("search_agent", "How tall is the tower?", "330 m"),
        ("search_agent", "Verify the tower is 330 m", "330 m confirmed"),
    ]
    assert [call.purpose for call in run.root.model_calls] == [
        Purpose.PLAN, Purpose.ACT, Purpose.ACT, Purpose.ACT, Purpose.PLAN, Purpose.ANSWER,
    ]  # fmt: skip
    failed = [e for r in run.root.walk() for e in r.events if isinstance(e, ToolResult) and not e.ok]
    assert ["503" in event.text for event in failed] == [False, True]  # the manager's code, then the searcher's page
    searches = [call for call in subs[0].run.model_calls[1].calls]
    assert [dict(call.arguments) for call in searches] == [{"query": "tower height"}, {"query": "tower height metres"}]


@captured
def test_a_memory_alone_says_what_it_lacks(tmp_path: Path) -> None:
    steps = json.loads((SHARED / "smolagents_memory.json").read_text())["manager_memory_get_full_steps"]
    path = tmp_path / "memory.json"
    path.write_text(json.dumps(steps))
    run = only_run(list(read_traces(path)))
    assert run.usage.prompt_tokens == 12412  # the manager's own; what was spent below is not in a memory
    assert [item.what for item in run.left_out] == ["what managed agents did"]


# -- OpenTelemetry ------------------------------------------------------------------------------------------------------


def span(number: int, parent: int | None, name: str, **attributes: Any) -> dict[str, Any]:
    """A span as OTLP-JSON spells it. `_` in a name stands for a dot, `error` for a failed status."""
    error = attributes.pop("error", None)
    row: dict[str, Any] = {
        "traceId": "t" * 32,
        "spanId": f"{number:016x}",
        "name": name,
        "startTimeUnixNano": str(1_700_000_000_000_000_000 + number),
        "attributes": [{"key": key, "value": value_of(value)} for key, value in attributes.items()],
    }
    if parent is not None:
        row["parentSpanId"] = f"{parent:016x}"
    if error:
        row["status"] = {"code": 2, "message": error}
    return row


def value_of(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": value if isinstance(value, str) else json.dumps(value)}


def export(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


def gen_ai(operation: str, **rest: Any) -> dict[str, Any]:
    return {"gen_ai.operation.name": operation, **{f"gen_ai.{key.replace('__', '.')}": v for key, v in rest.items()}}


def message(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": list(parts)}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}


CALL = {"type": "tool_call", "id": "c1", "name": "researcher", "arguments": {"task": "height?"}}
GENAI = [
    span(
        1, None, "invoke_agent boss",
        **gen_ai(
            "invoke_agent", agent__name="boss", usage__input_tokens=999,
            input__messages=[message("user", text("How tall?"))], output__messages=[message("assistant", text("330 m"))],
        ),
    ),
    span(2, 1, "plan", **gen_ai("plan")),
    span(
        3, 2, "chat m",
        **gen_ai(
            "chat", request__model="m", usage__input_tokens=10, usage__output_tokens=2,
            system_instructions=[text("Be brief.")], input__messages=[message("user", text("How tall?"))],
            output__messages=[message("assistant", text("1. ask"))],
        ),
    ),
    span(
        4, 1, "chat m",
        **gen_ai(
            "chat", request__model="m", usage__input_tokens=20, usage__output_tokens=4,
            input__messages=[message("user", text("How tall?"))],
            output__messages=[message("assistant", {"type": "reasoning", "content": "who?"}, text("I ask."), CALL)],
        ),
    ),
    span(5, 1, "execute_tool researcher", **gen_ai("execute_tool", tool__name="researcher", tool__call__id="c1",
                                                   tool__call__result="330 m says the guide")),
    span(6, 5, "invoke_agent researcher", **gen_ai("invoke_agent", agent__name="researcher",
                                                   input__messages=[message("user", text("height?"))])),
    span(
        7, 6, "chat m",
        **gen_ai(
            "chat", request__model="m", usage__input_tokens=30, usage__output_tokens=6,
            output__messages=[message("assistant", {"type": "tool_call", "id": "c1", "name": "search", "arguments": "{\"q\": \"tower\"}"})],
        ),
    ),
    span(8, 6, "execute_tool search", **gen_ai("execute_tool", tool__name="search", tool__call__id="c1"), error="timeout"),
    span(
        9, 6, "chat m",
        **gen_ai("chat", usage__input_tokens=40, usage__output_tokens=8,
                 output__messages=[message("assistant", text("330 m says the guide"))]),
    ),
    span(10, 1, "evaluate", **gen_ai("evaluate", evaluation__name="fact", evaluation__score__value=0.9,
                                      evaluation__explanation="fits")),
]  # fmt: skip


def check_genai(run: TeamRun) -> None:
    assert run.source.format == "otel"
    assert (run.task.question, run.answer, run.root.agent) == ("How tall?", "330 m", "boss")
    plan, ask, sub, report, verdict = run.root.events
    assert isinstance(plan, ModelCall) and (plan.purpose, plan.text) == (Purpose.PLAN, "1. ask")
    assert run.root.system == "Be brief."
    assert isinstance(ask, ModelCall) and (ask.thought, ask.text, ask.calls[0].name) == ("who?", "I ask.", "researcher")
    assert isinstance(sub, SubRun) and (sub.call_id, sub.run.request, sub.run.answer) == (
        "c1", "height?", "330 m says the guide",
    )  # fmt: skip
    assert isinstance(report, ToolResult) and report.report_of == (sub.run.id,)
    assert isinstance(verdict, EvaluatorVerdict) and (verdict.judge, verdict.score, verdict.text) == (
        "fact",
        0.9,
        "fits",
    )
    search, failed, last = sub.run.events
    assert isinstance(search, ModelCall) and dict(search.calls[0].arguments) == {"q": "tower"}
    assert isinstance(failed, ToolResult) and not failed.ok and failed.text == "timeout"
    assert isinstance(last, ModelCall)
    # Only chat spans are summed: the agent span's 999 is a repetition.
    assert (run.usage.prompt_tokens, run.usage.completion_tokens, run.usage.model_calls) == (100, 20, 4)


def test_genai_spans_in_one_export(tmp_path: Path) -> None:
    path = tmp_path / "spans.json"
    path.write_text(json.dumps(export(*GENAI)))
    check_genai(only_run(list(read_traces(path))))


def test_a_trace_scattered_over_exports_and_among_others_is_brought_together(tmp_path: Path) -> None:
    other = [{**row, "traceId": "u" * 32} for row in GENAI]
    lines = [export(row) for pair in zip(reversed(GENAI), other, strict=True) for row in pair]
    found = list(read_traces(written(tmp_path / "spans.jsonl", *lines)))
    assert len(found) == 2
    for run in found:
        assert isinstance(run, TeamRun)
        check_genai(run)


def test_results_are_found_in_what_the_next_call_read_where_tools_have_no_spans(tmp_path: Path) -> None:
    answer = {"type": "tool_call_response", "id": "c1", "result": "sunny"}
    rows = [
        span(1, None, "agent", **gen_ai("invoke_agent", agent__name="solo", input__messages=[message("user", text("Hi?"))])),
        span(2, 1, "chat", **gen_ai("chat", output__messages=[message("assistant", CALL)])),
        span(3, 1, "chat", **gen_ai("chat", input__messages=[message("tool", answer)],
                                     output__messages=[message("assistant", text("It is sunny."))])),
    ]  # fmt: skip
    run = only_run(list(read_traces(written(tmp_path / "s.jsonl", export(*rows)))))
    result = run.root.events[1]
    assert isinstance(result, ToolResult) and (result.call_ids, result.text) == (("c1",), "sunny")
    assert run.answer == "It is sunny."


def test_model_spans_without_content_are_left_out_but_counted(tmp_path: Path) -> None:
    rows = [
        span(
            1,
            None,
            "agent",
            **gen_ai("invoke_agent", agent__name="solo", input__messages=[message("user", text("Hi?"))]),
        ),
        span(2, 1, "chat", **gen_ai("chat", usage__input_tokens=5, usage__output_tokens=1)),
    ]
    run = only_run(list(read_traces(written(tmp_path / "s.jsonl", export(*rows)))))
    assert len(run.left_out) == 1 and run.usage.prompt_tokens == 5 and run.usage.model_calls == 1


def test_a_trace_without_any_content_is_skipped_with_the_reason(tmp_path: Path) -> None:
    rows = [
        span(1, None, "agent", **gen_ai("invoke_agent")),
        span(2, 1, "chat", **gen_ai("chat", usage__input_tokens=5)),
    ]
    (skipped,) = read_traces(written(tmp_path / "s.jsonl", export(*rows)))
    assert isinstance(skipped, Skipped) and "no content" in skipped.reason


def test_a_span_whose_parent_is_missing_is_left_out(tmp_path: Path) -> None:
    rows = [*GENAI, span(11, 77, "chat stray", **gen_ai("chat", usage__input_tokens=1000))]
    run = only_run(list(read_traces(written(tmp_path / "s.jsonl", export(*rows)))))
    assert [(item.what, item.usage and item.usage.prompt_tokens) for item in run.left_out] == [
        ("span chat stray", 1000)
    ]


# -- chat ---------------------------------------------------------------------------------------------------------------


def called(identity: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


BOSS: dict[str, Any] = {
    "session_id": "s1", "agent": "boss", "task_id": "q7", "answer": "330 m",
    "messages": [
        {"role": "system", "content": "You lead."},
        {"role": "user", "content": "How tall?"},
        {"role": "assistant", "content": "I ask.", "reasoning_content": "who?", "usage": {"prompt_tokens": 9, "completion_tokens": 1},
         "tool_calls": [called("k1", "ask_helper", task="height?")]},
        {"role": "tool", "tool_call_id": "k1", "content": "330 m"},
        {"role": "assistant", "content": "It is 330 m."},
    ],
}  # fmt: skip
HELPER: dict[str, Any] = {
    "session_id": "s2", "agent": "helper", "parent_call_id": "k1",
    "messages": [
        {"role": "user", "content": "You are a helper. Your task: height?"},
        {"role": "assistant", "content": "", "tool_calls": [called("h1", "search", q="tower")]},
        {"role": "tool", "tool_call_id": "h1", "content": "HTTP 500", "status": "error"},
        {"role": "assistant", "content": "330 m"},
    ],
}  # fmt: skip


def check_chat(run: TeamRun) -> None:
    assert run.source.format == "chat"
    assert (run.task.id, run.task.question, run.task.answer, run.answer) == (
        "q7",
        "How tall?",
        ("330 m",),
        "It is 330 m.",
    )
    ask, sub, report, last = run.root.events
    assert isinstance(ask, ModelCall) and ask.thought == "who?" and ask.calls[0].agent
    assert isinstance(sub, SubRun) and (sub.call_id, sub.run.agent, sub.run.request) == ("k1", "helper", "height?")
    assert isinstance(report, ToolResult) and report.report_of == (sub.run.id,)
    assert isinstance(last, ModelCall)
    failed = sub.run.events[1]
    assert isinstance(failed, ToolResult) and not failed.ok
    assert run.usage.prompt_tokens == 9 and run.unmetered_calls == 3


@pytest.mark.parametrize("order", [(BOSS, HELPER), (HELPER, BOSS)])
def test_a_sub_agents_session_hangs_on_the_call_it_names(tmp_path: Path, order: tuple[dict[str, Any], ...]) -> None:
    other = {"session_id": "s9", "messages": [{"role": "user", "content": "x?"}, {"role": "assistant", "content": "y"}]}
    found = list(read_traces(written(tmp_path / "chat.jsonl", order[0], other, order[1])))
    assert len(found) == 2
    check_chat(next(run for run in found if isinstance(run, TeamRun) and run.task.id == "q7"))


def test_one_message_to_a_line_is_a_conversation_too(tmp_path: Path) -> None:
    rows = []
    for session in (BOSS, HELPER):
        about = {key: value for key, value in session.items() if key in ("session_id", "parent_call_id", "agent")}
        rows += [{**about, **message} for message in session["messages"]]
    rows[0] |= {"task_id": "q7", "answer": "330 m"}
    check_chat(only_run(list(read_traces(written(tmp_path / "chat.jsonl", *rows)))))


def test_agents_that_share_a_conversation_are_runs_of_their_own(tmp_path: Path) -> None:
    row = {
        "messages": [
            {"role": "user", "content": "Go?"},
            {"role": "assistant", "name": "planner", "content": "1. code"},
            {"role": "assistant", "name": "coder", "content": "print(1)"},
            {"role": "user", "content": "More."},
            {"role": "assistant", "name": "planner", "content": "Done."},
        ]
    }
    run = only_run(list(read_traces(written(tmp_path / "chat.jsonl", row))))
    plan, coder, end = run.root.events
    assert run.root.agent == "planner" and isinstance(plan, ModelCall) and isinstance(end, ModelCall)
    assert isinstance(coder, SubRun) and coder.run.agent == "coder"
    assert isinstance(coder.run.events[1], Note)


def test_a_conversation_without_an_id_has_the_same_task_wherever_it_stands(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": f"Q{n}?"}, {"role": "assistant", "content": "a"}]} for n in "12"]
    runs = [list(read_traces(written(tmp_path / "c.jsonl", *order))) for order in (rows, rows[::-1])]
    one, other = ({run.task.question: run.task.id for run in found if isinstance(run, TeamRun)} for found in runs)
    assert one == other and len(set(one.values())) == 2


# -- OAgents and AFM ----------------------------------------------------------------------------------------------------

OAGENTS = {
    "question": "How tall?", "augmented_question": "It is one paragraph below.\nHow tall?", "prediction": "330 m",
    "true_answer": "330 m", "task": "1", "task_id": "gaia-1", "parsing_error": False, "iteration_limit_exceeded": False,
    "agent_error": None,
    "intermediate_steps": [
        {"step_type": "task", "task": "How tall?"},
        {"step_type": "planning", "facts": "none known", "plan": "1. search"},
        {"step_type": "action", "model_output": "Thought: ask.\n```py\nsearch_agent(task='height of the tower')\n```",
         "code_action": "search_agent(task='height of the tower')", "tool_calls": [], "observations": "330 m",
         "error": None, "score": 3, "evaluate_thought": "on track"},
        {"step_type": "action", "model_output": "Thought: again.\n```py\nbad(\n```", "code_action": "bad(", "tool_calls": [],
         "observations": None, "error": "SyntaxError"},
    ],
    "search_agent_actions": {
        "height of the tower": {"answer": "330 m", "tool_calls": [{"name": "search", "args": {"q": "a"}, "observation": "x"}]},
        "second": {"answer": "?", "tool_calls": [{"name": "search", "args": {"q": "a"}, "observation": "x"},
                                                  {"name": "visit", "args": {"url": "u"}, "observation": "y"}]},
    },
}  # fmt: skip


def test_oagents_rows_give_the_question_without_augmentation_and_never_trust_the_prediction(tmp_path: Path) -> None:
    run = only_run(list(read_traces(written(tmp_path / "o.jsonl", OAGENTS))))
    assert run.source.format == "oagents" and run.meta["judge_again"] is True
    assert (run.task.id, run.task.question, run.task.answer) == ("gaia-1", "How tall?", ("330 m",))
    plan, ask, sub, report, verdict, bad, failed, stray = run.root.events
    assert isinstance(plan, ModelCall) and plan.purpose is Purpose.PLAN and "none known" in plan.text
    assert isinstance(ask, ModelCall) and ask.text == "ask."
    assert isinstance(sub, SubRun) and sub.run.request == "height of the tower"
    assert isinstance(report, ToolResult) and report.report_of == (sub.run.id,)
    assert isinstance(verdict, EvaluatorVerdict) and (verdict.score, verdict.text) == (3.0, "on track")
    assert isinstance(bad, ModelCall) and isinstance(failed, ToolResult) and not failed.ok
    # The second sub-task's list begins with the first one's call, which is cut off and named.
    assert isinstance(stray, SubRun)
    assert [event.call.name for event in stray.run.events if isinstance(event, CodeCall)] == ["visit"]
    assert [item.what for item in run.left_out][1:] == ["1 call of sub-task 2", "the place of a sub-task"]


def test_afm_rows_pass_as_trajectories(tmp_path: Path) -> None:
    row = {"instruction": "Use tags.", "input": "Who?", "output": "<think>hm</think><plan>p</plan><answer>Ada</answer>"}
    (found,) = read_traces(written(tmp_path / "sft.jsonl", row))
    assert isinstance(found, Trajectory) and found.answer == "Ada"
    source: Any = found.meta["source"]
    assert source["format"] == "afm"
    assert source["file"] == "sft.jsonl"  # a data set is shared; folders of this machine are not


# -- files --------------------------------------------------------------------------------------------------------------


def test_a_folder_of_everything_gives_what_it_can_and_names_the_rest(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", BOSS, HELPER)
    written(tmp_path / "b.jsonl", OAGENTS)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "c.json").write_text(json.dumps(export(*GENAI), indent=1))
    (tmp_path / "d.json").write_text('{"schema_version": "ATIF-v1.7", "steps": [')
    (tmp_path / "e.jsonl").write_text(json.dumps(OAGENTS) + "\n{torn\n" + json.dumps(OAGENTS) + "\n")
    written(tmp_path / "f.jsonl", {"some": "thing"}, {"some": "thing"})
    (tmp_path / "g.png").write_bytes(b"\x89PNG")
    (tmp_path / "h.json").write_text("")
    (tmp_path / ".hidden.json").write_text("{")
    (tmp_path / "config.json").write_text("{}")
    found = list(read_traces(tmp_path))
    runs = [Path(item.source.file).name for item in found if isinstance(item, TeamRun)]
    skipped = [(Path(item.file).name, item.place) for item in found if isinstance(item, Skipped)]
    assert sorted(runs) == ["a.jsonl", "b.jsonl", "c.json", "e.jsonl", "e.jsonl"]
    assert skipped == [
        ("d.json", "document 1"),
        ("e.jsonl", "line 2"),
        ("f.jsonl", "line 1"),
        ("g.png", ""),
        ("h.json", ""),
    ]


def test_spans_printed_one_after_another_are_read(tmp_path: Path) -> None:
    rows = [
        {"name": "agent", "context": {"trace_id": "0x1", "span_id": "0xa"}, "parent_id": None, "start_time": "2026-01-01T00:00:00Z",
         "status": {"status_code": "OK"}, "attributes": {"openinference.span.kind": "AGENT", "input.value": "Hi?", "output.value": "Yes."}},
        {"name": "llm", "context": {"trace_id": "0x1", "span_id": "0xb"}, "parent_id": "0xa", "start_time": "2026-01-01T00:00:01Z",
         "status": {"status_code": "OK"}, "attributes": {"openinference.span.kind": "LLM", "llm.token_count.prompt": 3,
         "llm.output_messages.0.message.role": "assistant", "llm.output_messages.0.message.content": "Yes."}},
    ]  # fmt: skip
    path = tmp_path / "console.log"
    path.write_text("\n".join(json.dumps(row, indent=4) for row in rows))
    run = only_run(list(read_traces(path)))
    assert (run.task.question, run.answer, run.usage.prompt_tokens) == ("Hi?", "Yes.", 3)
    assert run.stop is Stop.ANSWERED


def test_a_path_that_is_not_there_is_an_error() -> None:
    with pytest.raises(StoreError, match="no file or folder"):
        list(read_traces("nowhere"))


@pytest.mark.parametrize("opening", ["<think>", ""])  # some servers keep the opening tag back
def test_reasoning_in_the_text_of_a_reply_is_a_thought_and_no_part_of_the_answer(tmp_path: Path, opening: str) -> None:
    messages = [
        {"role": "user", "content": "How tall?"},
        {
            "role": "assistant",
            "content": f"{opening}\nA page may tell.\n</think>\n\nI look it up.",
            "tool_calls": [{"id": "k", "function": {"name": "web_search", "arguments": '{"query": "tower"}'}}],
        },
        {"role": "tool", "tool_call_id": "k", "content": "330 m"},
        {"role": "assistant", "content": f"{opening}It says so.</think>330 m"},
    ]
    run = only_run(list(read_traces(written(tmp_path / "chat.jsonl", {"messages": messages}))))
    first, last = run.root.model_calls
    assert (first.thought, first.text, last.thought) == ("A page may tell.", "I look it up.", "It says so.")
    assert run.answer == "330 m"
    told = [(step.agent, step.text) for step in convert(run, load_profile("web")).steps]
    assert told == [
        ("think", "A page may tell.\n\nI look it up."),
        ("web_search", "tower"),
        ("observation", "330 m"),
        ("think", "It says so."),
        ("answer", "330 m"),
    ]
