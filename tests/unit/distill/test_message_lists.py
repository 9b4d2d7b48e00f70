"""Messages without a frame: a list, one to a line, and LangChain's forms of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from coa.distill.importers.detect import read_traces
from coa.distill.team_run import ModelCall, Skipped, SubRun, TeamRun

CALL = {"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "2 + 3"}'}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You calculate."},
    {"role": "user", "content": "What is 2 + 3?"},
    {"role": "assistant", "content": "I calculate.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "5"},
    {"role": "assistant", "content": "It is 5."},
]


def _runs(path: Path, text: str) -> list[TeamRun]:
    path.write_text(text)
    found = list(read_traces(path))
    assert all(isinstance(item, TeamRun) for item in found), found
    return [item for item in found if isinstance(item, TeamRun)]


@pytest.mark.parametrize("name", ["run.json", "run.jsonl"])
def test_messages_without_a_frame_are_one_run(tmp_path: Path, name: str) -> None:
    text = json.dumps(MESSAGES, indent=1) if name == "run.json" else "\n".join(map(json.dumps, MESSAGES))
    (run,) = _runs(tmp_path / name, text)
    assert (run.task.question, run.answer, run.root.system) == ("What is 2 + 3?", "It is 5.", "You calculate.")
    assert len(run.root.model_calls) == 2


def test_a_list_of_lists_is_one_run_each(tmp_path: Path) -> None:
    assert [run.answer for run in _runs(tmp_path / "runs.json", json.dumps([MESSAGES, MESSAGES]))] == ["It is 5."] * 2


def test_messages_of_several_sessions_in_one_list_stay_apart(tmp_path: Path) -> None:
    rows = [{**message, "session_id": session} for session in ("a", "b") for message in MESSAGES]
    assert len(_runs(tmp_path / "runs.json", json.dumps(rows))) == 2


def _constructed(kind: str, message: dict[str, Any]) -> dict[str, Any]:
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", kind], "kwargs": message}


HUMAN: dict[str, Any] = {"type": "human", "content": "What is 2 + 3?"}
AI: dict[str, Any] = {
    "type": "ai",
    "name": "analyst",
    "content": [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "One sum."}]},
        {"type": "text", "text": "I calculate."},
        {"type": "function_call", "name": "calculator", "call_id": "c1", "arguments": '{"expression": "2 + 3"}'},
    ],
    "tool_calls": [{"type": "tool_call", "id": "c1", "name": "calculator", "args": {"expression": "2 + 3"}}],
    "usage_metadata": {"input_tokens": 7, "output_tokens": 4, "total_tokens": 11},
    "response_metadata": {"model_name": "gpt"},
}
TOOL: dict[str, Any] = {"type": "tool", "tool_call_id": "c1", "content": "5", "status": "success"}
LANGCHAIN = {
    "model_dump": [HUMAN, AI, TOOL],
    "messages_to_dict": [{"type": row["type"], "data": row} for row in (HUMAN, AI, TOOL)],
    "dumpd": [_constructed("HumanMessage", HUMAN), _constructed("AIMessage", AI), _constructed("ToolMessage", TOOL)],
}


@pytest.mark.parametrize("form", LANGCHAIN)
def test_every_dump_of_langchain_messages_is_read(tmp_path: Path, form: str) -> None:
    (run,) = _runs(tmp_path / "state.json", json.dumps({"messages": LANGCHAIN[form]}))
    (call,) = run.root.model_calls
    assert (call.thought, call.text, call.model) == ("One sum.", "I calculate.", "gpt")
    assert [(item.name, dict(item.arguments)) for item in call.calls] == [("calculator", {"expression": "2 + 3"})]
    assert run.usage.prompt_tokens == 7 and run.root.agent == "analyst"


def test_what_a_library_wrote_to_give_control_back_is_no_turn_of_the_agent(tmp_path: Path) -> None:
    back = {"id": "b1", "type": "function", "function": {"name": "transfer_back_to_manager", "arguments": "{}"}}
    rows: list[dict[str, Any]] = [
        {"role": "user", "content": "What is 2 + 3?"},
        {"role": "assistant", "name": "manager", "content": "I ask the analyst."},
        {"role": "assistant", "name": "analyst", "content": "The sum is 5."},
        {"role": "assistant", "name": "analyst", "content": "Transferring back to manager", "tool_calls": [back]},
        {"role": "tool", "tool_call_id": "b1", "content": "Successfully transferred back to manager"},
        {"role": "assistant", "name": "manager", "content": "5"},
    ]
    (run,) = _runs(tmp_path / "state.json", json.dumps(rows))
    (analyst,) = [event.run for event in run.root.events if isinstance(event, SubRun)]
    assert [event.text for event in analyst.events if isinstance(event, ModelCall)] == ["The sum is 5."]


def test_compressed_traces_are_read(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, MESSAGES)).encode()))
    (run,) = read_traces(tmp_path)
    assert isinstance(run, TeamRun) and run.answer == "It is 5."


def test_damaged_compression_is_reported(tmp_path: Path) -> None:
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(json.dumps(MESSAGES).encode())[:-20])
    (found,) = read_traces(tmp_path)
    assert isinstance(found, Skipped) and "gzip" in found.reason
