"""Sessions of Claude Code, logs of Inspect, traces of MLflow and Langfuse, beyond what the recorded teams show."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.distill.importers.detect import read_traces
from coa.distill.team_run import ModelCall, Note, Skipped, SubRun, TeamRun, ToolResult
from coa.trajectory import Stop
from support.recorded_teams import CORPUS
from support.trace_samples import CLAUDE, INSPECT, SAMPLES

ARCHIVE = (CORPUS / "inspect_ai" / "own" / "log.eval").read_bytes()


def run_in(path: Path, content: bytes) -> TeamRun:
    path.write_bytes(content)
    (run,) = read_traces(path)
    assert isinstance(run, TeamRun), run
    return run


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.mark.parametrize("name", ["claude.jsonl", "inspect.json", "mlflow.json", "langfuse.json"])
def test_question_and_answer_are_found(name: str, tmp_path: Path) -> None:
    run = run_in(tmp_path / name, SAMPLES[name])
    assert (run.task.question, run.answer, run.stop) == ("How tall?", "330 m", Stop.ANSWERED)


def test_a_sub_agent_inside_an_old_session_is_linked_by_its_prompt(tmp_path: Path) -> None:
    run = run_in(tmp_path / "s.jsonl", lines(*CLAUDE))
    (sub,) = [event for event in run.root.events if isinstance(event, SubRun)]
    assert (sub.call_id, sub.run.agent, sub.run.answer) == ("t1", "seeker", "330 m")
    assert sub.run.model_calls[0].thought == "hm"
    (report,) = [event for event in run.root.events if isinstance(event, ToolResult)]
    assert report.report_of == (sub.run.id,)
    inferred = run.meta["inferred"]
    assert isinstance(inferred, dict) and (inferred["links"], inferred["of_links"]) == (1, 1)


def test_the_blocks_of_one_reply_are_one_model_call_whose_tokens_count_once(tmp_path: Path) -> None:
    usage = {"input_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 5, "output_tokens": 2}
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Now."}]
    rows = [CLAUDE[0]]
    for number, block in enumerate(blocks):
        message = {"role": "assistant", "id": "m", "content": [block], "usage": usage}
        rows.append({**CLAUDE[5], "uuid": f"b{number}", "message": message})
    run = run_in(tmp_path / "s.jsonl", lines(*rows))
    assert (run.usage.model_calls, run.usage.prompt_tokens, run.usage.cached_tokens) == (1, 12, 4)
    assert (run.root.model_calls[0].thought, run.root.model_calls[0].text) == ("hm", "Now.")


def test_a_turn_that_the_user_took_back_is_left_out_and_listed(tmp_path: Path) -> None:
    asked = {**CLAUDE[0], "uuid": "x", "parentUuid": "u6", "message": {"role": "user", "content": "How wide?"}}
    replied = {
        **CLAUDE[5],
        "uuid": "y",
        "parentUuid": "x",
        "message": {"role": "assistant", "id": "w", "content": "9 m"},
    }
    again = {**asked, "uuid": "z", "message": {"role": "user", "content": "How deep?"}}
    run = run_in(tmp_path / "s.jsonl", lines(*CLAUDE, asked, replied, again))
    notes = [event.text for event in run.root.events if isinstance(event, Note)]
    assert notes == ["How deep?"] and [item.what for item in run.left_out] == ["a turn"]


def test_the_file_of_a_sub_agent_is_read_with_its_session_and_alone_without_it(tmp_path: Path) -> None:
    below = tmp_path / "s" / "subagents"
    below.mkdir(parents=True)
    (below / "agent-x.jsonl").write_bytes(lines(*({**row, "agentId": "x"} for row in CLAUDE[2:4])))
    (below / "agent-x.meta.json").write_text(json.dumps({"agentType": "scout", "toolUseId": "t1"}))
    (alone,) = [run for run in read_traces(tmp_path) if isinstance(run, TeamRun)]
    assert alone.task.question == "Look"
    (tmp_path / "s.jsonl").write_bytes(lines(*CLAUDE[:2], *CLAUDE[4:]))
    (run,) = read_traces(tmp_path)
    assert isinstance(run, TeamRun) and [one.agent for one in run.root.walk()] == ["claude", "scout"]
    assert "inferred" not in run.meta


def test_a_sub_agent_that_nobody_called_is_listed(tmp_path: Path) -> None:
    run = run_in(tmp_path / "s.jsonl", lines(CLAUDE[0], *CLAUDE[2:4], {**CLAUDE[5], "parentUuid": "u1"}))
    assert [item.reason for item in run.left_out] == ["no call started it"]


def test_the_stream_of_claude_code_is_refused_with_the_reason(tmp_path: Path) -> None:
    row = {"type": "system", "subtype": "init", "session_id": "s", "uuid": "u"}
    (tmp_path / "s.jsonl").write_bytes(lines(row))
    (found,) = read_traces(tmp_path)
    assert isinstance(found, Skipped) and "~/.claude/projects" in found.reason


def test_attachments_and_pooled_messages_of_inspect_are_put_in_place(tmp_path: Path) -> None:
    run = run_in(tmp_path / "a.json", lines(INSPECT))
    (result,) = [event for event in run.root.events if isinstance(event, ToolResult)]
    assert result.text == "330 m" and run.root.request == "How tall?"
    assert (run.task.id, run.task.answer, run.root.agent) == ("towers", ("330 m",), "boss")


def test_a_sample_of_inspect_that_failed_or_met_a_limit_says_so(tmp_path: Path) -> None:
    failed = run_in(tmp_path / "a.json", lines({**INSPECT, "error": {"message": "no sandbox"}}))
    assert failed.stop is Stop.FAILED and failed.failure is not None and failed.failure.message == "no sandbox"
    assert run_in(tmp_path / "b.json", lines({**INSPECT, "limit": {"type": "message"}})).stop is Stop.STEPS


def test_what_the_scorer_of_inspect_asked_a_model_is_no_part_of_the_run(tmp_path: Path) -> None:
    grading = [
        {"event": "span_begin", "id": "s", "span_id": "s", "type": "scorers", "name": "scorers"},
        {"event": "span_begin", "id": "t", "span_id": "t", "parent_id": "s", "type": "scorer", "name": "graded"},
        {**INSPECT["events"][3], "span_id": "t"},
    ]
    run = run_in(tmp_path / "a.json", lines({**INSPECT, "events": [*INSPECT["events"], *grading]}))
    assert run.usage.model_calls == 2


def test_a_header_of_inspect_gives_its_reason(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(lines({"version": 2, "status": "success", "eval": {}}))
    (found,) = read_traces(tmp_path)
    assert isinstance(found, Skipped) and "without samples" in found.reason


def test_an_archive_may_be_deflated_and_hold_samples_in_chunks(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", "{}")
        archive.writestr("samples/towers_epoch_1.json", json.dumps(INSPECT))
        archive.writestr("samples/big_epoch_1/sample.json", "{}")
    run, skipped = read_traces(tmp_path)
    assert isinstance(run, TeamRun) and run.answer == "330 m"
    assert isinstance(skipped, Skipped) and "chunks" in skipped.reason


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_a_damaged_archive_is_never_an_exception(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    damaged = bytearray(ARCHIVE[: data.draw(st.integers(0, len(ARCHIVE)))])
    for _ in range(data.draw(st.integers(0, 4))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("archives") / "a.eval"
    path.write_bytes(bytes(damaged))
    assert list(read_traces(path))


def test_rows_of_a_search_in_mlflow_and_a_trace_of_version_2_are_read(tmp_path: Path) -> None:
    trace = json.loads(SAMPLES["mlflow.json"])
    assert run_in(tmp_path / "a.jsonl", lines({"trace_id": "tr-1", "trace": json.dumps(trace)})).answer == "330 m"
    for span in trace["data"]["spans"]:
        span["context"] = {"span_id": span.pop("span_id"), "trace_id": "1"}
        span["parent_id"], span["start_time"] = span.pop("parent_span_id"), span.pop("start_time_unix_nano")
    assert run_in(tmp_path / "b.json", lines(trace)).answer == "330 m"


def test_a_trace_of_langfuse_with_its_observations_is_read_with_tokens_and_cost(tmp_path: Path) -> None:
    observations = json.loads(SAMPLES["langfuse.json"])["data"]
    run = run_in(tmp_path / "a.json", lines({"id": "t", "observations": observations}))
    assert (run.usage.prompt_tokens, run.usage.cached_tokens, run.usage.cost) == (5, 1, 0.5)


def test_a_thought_that_only_the_next_request_repeats_is_recalled(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    reply = {"role": "assistant", "content": None, "tool_calls": [call]}
    first, second = json.loads(SAMPLES["langfuse.json"])["data"]
    heard = [
        *second["input"],
        {**reply, "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": "x"},
    ]
    later = {**second, "id": "3", "startTime": "2026-01-01T00:00:02Z", "input": heard}
    run = run_in(tmp_path / "a.json", lines({"data": [first, {**second, "output": reply}, later]}))
    assert [event.thought for event in run.root.events if isinstance(event, ModelCall)] == ["hm", ""]
