"""Recorded model calls become team runs: one agent, in every protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coa.distill import measure_cost, read_traces
from coa.distill.team_run import ModelCall, Skipped, TeamRun, ToolResult
from coa.errors import StoreError
from coa.trajectory.types import Stop, Usage
from support.call_records import CallRecords, call, outline, result, user
from support.call_teams import QUESTION, RESEARCHER, continued_responses, messages, one_agent, responses

OUTLINE = [
    f"researcher <- {QUESTION}",
    '  says (Hm.) | I look it up. | search{"q": "tower"}',
    "  result: 330 m",
    "  says It is 330 m tall.",
    "-> It is 330 m tall.",
]


@pytest.mark.parametrize("made", [one_agent, responses, continued_responses, messages])
def test_one_agent_is_one_run_in_every_protocol(made, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (run,) = made(CallRecords()).runs(tmp_path)
    assert outline(run.root) == OUTLINE
    assert run.task.question == QUESTION
    assert run.answer == "It is 330 m tall."
    assert run.stop is Stop.ANSWERED
    assert (run.usage.prompt_tokens, run.usage.completion_tokens, run.usage.model_calls) == (20, 4, 2)
    assert run.root.meta["tool_definitions"]["search"]["type"] == "object"


@pytest.mark.parametrize("made", [responses, messages])
def test_cached_tokens_are_part_of_the_prompt(made, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (run,) = made(CallRecords()).runs(tmp_path)
    assert run.usage.cached_tokens == 8


def test_a_folder_of_call_records_is_read_beside_other_formats(tmp_path: Path) -> None:
    one_agent(CallRecords()).write(tmp_path / "session.calls.jsonl")
    chat = {"messages": [user("Who?"), {"role": "assistant", "content": "Me."}]}
    (tmp_path / "chat.jsonl").write_text(json.dumps(chat) + "\n", encoding="utf-8")
    found = [item for item in read_traces(tmp_path) if isinstance(item, TeamRun)]
    assert sorted(run.source.format for run in found) == ["calls", "chat"]


def test_a_failed_request_that_is_sent_again_is_one_turn(tmp_path: Path) -> None:
    records = CallRecords()
    refused = records.ask(RESEARCHER, [user(QUESTION)])
    records.respond(refused, {"error": {"message": "slow down"}}, status=429)
    one_agent(records)
    (run,) = records.runs(tmp_path)
    calls = run.root.model_calls
    assert [item.error for item in calls] == ["429: slow down", None, None]
    assert [bool(item.messages) for item in calls] == [True, False, True]
    assert run.usage.model_calls == 3
    assert run.answer == "It is 330 m tall."


def test_a_request_without_a_response_is_kept_as_a_failed_call(tmp_path: Path) -> None:
    records = one_agent(CallRecords())
    records.lines.pop()
    (run,) = records.runs(tmp_path)
    assert "no response was recorded" in (run.root.model_calls[-1].error or "")
    assert run.stop is Stop.FAILED
    assert run.answer is None


def test_a_reply_that_was_cut_off_is_kept_and_marked(tmp_path: Path) -> None:
    records = one_agent(CallRecords())
    records.lines[-1]["complete"] = False
    (run,) = records.runs(tmp_path)
    last = run.root.model_calls[-1]
    assert (last.text, last.error) == ("It is 330 m tall.", "the reply was cut off")
    assert run.answer is None


def test_a_torn_last_line_is_listed_and_the_rest_is_read(tmp_path: Path) -> None:
    path = one_agent(CallRecords()).write(tmp_path / "s.calls.jsonl")
    path.write_bytes(path.read_bytes()[:-20])
    (run,) = read_traces(path)
    assert isinstance(run, TeamRun)
    assert [item.what for item in run.left_out] == ["the last line of the file"]


def test_the_task_and_the_outcome_of_a_run_are_those_of_its_lines(tmp_path: Path) -> None:
    records = CallRecords(run="t7", given_by="path")
    records.line("task", run="t7", task={"id": "t7", "question": "Tower height?", "answer": "330"})
    one_agent(records, "Please answer: Tower height?")
    records.line("outcome", run="t7", answer="330", exit=0, error=None, stdout="330\n")
    (run,) = records.runs(tmp_path)
    assert (run.task.id, run.task.question, run.task.answer, run.answer) == ("t7", "Tower height?", ("330",), "330")


def test_token_ids_and_logprobs_are_kept_as_sampled(tmp_path: Path) -> None:
    records = CallRecords()
    choice = {
        "message": {"content": "Hi"},
        "token_ids": [5, 6],
        "logprobs": {"content": [{"logprob": -1.0}, {"logprob": -2.0}]},
    }
    records.respond(records.ask("", [user("Hi?")]), {"id": "x", "choices": [choice], "prompt_token_ids": [1, 2]})
    (run,) = records.runs(tmp_path)
    assert run.root.model_calls[0].meta["sampled"] == {"prompt_ids": [1, 2], "ids": [5, 6], "logprobs": [-1.0, -2.0]}


def test_calls_that_are_no_turns_are_listed_with_what_they_cost(tmp_path: Path) -> None:
    records = one_agent(CallRecords())
    spent = {"usage": {"prompt_tokens": 7, "total_tokens": 7}}
    records.respond(records.request({"input": "tower"}, "other"), spent)
    (run,) = records.runs(tmp_path)
    assert [item.usage for item in run.left_out] == [Usage(prompt_tokens=7, model_calls=1, seconds=0.5)]
    assert run.usage.prompt_tokens == 27


def test_a_rewritten_history_goes_on_in_the_same_run(tmp_path: Path) -> None:
    records = one_agent(CallRecords())
    records.chat(
        RESEARCHER, [user("Summary: the tower was looked up."), *records.lines[2]["body"]["messages"][2:]], "330 m."
    )
    (run,) = records.runs(tmp_path)
    assert run.answer in ("330 m.", "It is 330 m tall.")
    assert any(item.rewritten for item in run.root.model_calls) or run.left_out


def test_a_picture_is_named_not_copied(tmp_path: Path) -> None:
    records = CallRecords()
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]
    records.chat("", [{"role": "user", "content": parts}], "A tower.")
    (run,) = records.runs(tmp_path)
    assert run.task.question == "What is this?\n[image]"


def test_other_choices_are_listed(tmp_path: Path) -> None:
    records = CallRecords()
    choices = [{"message": {"content": "One"}}, {"message": {"content": "Two"}}]
    records.respond(records.ask("", [user("Count.")]), {"id": "x", "choices": choices})
    records.chat("", [user("Count."), {"role": "assistant", "content": "Two"}, user("Go on.")], "Three")
    (run,) = records.runs(tmp_path)
    assert [item.text for item in run.root.model_calls] == ["Two", "Three"]
    assert [item.what for item in run.left_out] == ["choice 1 of 2"]


def test_a_finishing_tool_hands_in_the_answer(tmp_path: Path) -> None:
    records = CallRecords()
    records.chat("", [user(QUESTION)], "Done.", call("f", "final_answer", answer="330 m"))
    (run,) = records.runs(tmp_path)
    assert run.answer == "330 m"
    (last,) = (event for event in run.root.events if isinstance(event, ModelCall))
    assert last.calls == ()
    assert not any(isinstance(event, ToolResult) for event in run.root.events)


def test_a_title_for_a_conversation_is_listed_and_is_no_run(tmp_path: Path) -> None:
    records = one_agent(CallRecords())
    records.chat("Generate a short title for this conversation.", [user(f"user: {QUESTION}")], "Tower height")
    (run,) = records.runs(tmp_path)
    assert outline(run.root) == OUTLINE
    assert [item.reason for item in run.left_out] == ["it asks for a title or a summary of the conversation"]
    assert run.usage.model_calls == 3


def test_a_task_that_asks_for_a_title_is_a_run(tmp_path: Path) -> None:
    records = one_agent(CallRecords())
    records.chat("", [user("Find a good title for a chat about bridges.")], "Crossing over")
    assert [run.answer for run in records.runs(tmp_path)] == ["It is 330 m tall.", "Crossing over"]


@pytest.mark.parametrize("system", [RESEARCHER, "You sum up conversations."])
def test_an_agent_that_goes_on_from_a_summary_is_one_run_with_a_rewritten_context(system: str, tmp_path: Path) -> None:
    records = CallRecords()
    history = [user(QUESTION)]
    history.append(records.chat(RESEARCHER, history, "I look it up.", call("a", "search", q="tower")))
    history.append(result("a", "330 m"))
    summary = "The tower was looked up. It has 330 m."
    records.chat(system, [*history, user("Summarize the conversation so far.")], summary)
    again = [user(f"{QUESTION}\n\nWhat happened before:\n{summary}")]
    records.chat(RESEARCHER, again, "It is 330 m tall.")
    (run,) = records.runs(tmp_path)
    assert [item.text for item in run.root.model_calls] == ["I look it up.", "It is 330 m tall."]
    assert [item.rewritten for item in run.root.model_calls] == [False, True]
    assert [event.text for event in run.root.events if isinstance(event, ToolResult)] == ["330 m"]
    assert (run.task.question, run.answer, len(run.left_out)) == (QUESTION, "It is 330 m tall.", 1)
    assert run.usage.model_calls == 3


def test_a_recording_without_calls_is_listed(tmp_path: Path) -> None:
    file = tmp_path / "session-1-1.calls.jsonl"
    outcome = {"coa_record": 1, "event": "outcome", "time": 1.0, "run": None, "answer": None, "exit": 1, "error": None}
    file.write_text(json.dumps(outcome) + "\n")
    (found,) = read_traces(tmp_path)
    assert isinstance(found, Skipped) and found.reason == "no call of a model was recorded in it"


def test_recordings_that_share_no_task_point_to_the_file_of_tasks(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.calls.jsonl" for name in ("one", "other")]
    one_agent(CallRecords()).write(paths[0])
    one_agent(CallRecords(), "How wide is the bridge?").write(paths[1])
    with pytest.raises(StoreError, match="that all paths hold") as failed:
        measure_cost(paths, shared=True)
    assert "add --tasks" in str(failed.value.hint)


def test_a_conversation_with_two_questions_is_one_run_and_says_so(tmp_path: Path) -> None:
    records, history = CallRecords(), [user("How tall is the tower?")]
    history.append(records.chat(RESEARCHER, history, "330 m"))
    history.append(user("And its twin?"))
    records.chat(RESEARCHER, history, "300 m")
    (run,) = records.runs(tmp_path)
    inferred: Any = run.meta["inferred"]
    assert inferred["ambiguous"] == 1 and "1 more question of the user" in inferred["notes"][0]
