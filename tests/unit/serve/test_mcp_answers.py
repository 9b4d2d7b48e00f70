"""What a client of the MCP server reads: the declared tool, results, and lines of progress."""

from __future__ import annotations

from coa.serve.events import ItemBegan, ItemDone, ItemKind, ToolReturned
from coa.serve.mcp.asking import Answer, AskArguments, ask_tool, progress_line, result_of
from coa.trajectory import Failure, FailureSite, Step, Stop, Task, Trajectory, Usage, observation


def ended(*steps: Step, stop: Stop = Stop.ANSWERED, failure: Failure | None = None) -> Trajectory:
    task = Task(id="t", question="Who?")
    return Trajectory(task=task, profile="web", steps=steps, stop=stop, failure=failure, usage=Usage(model_calls=2))


def test_the_declared_arguments_are_those_that_are_read() -> None:
    schema = ask_tool({"one": "It searches.", "two": "It computes."}).input_schema
    assert set(schema["properties"]) == set(AskArguments.model_fields)
    assert schema["required"] == ["question"] and schema["additionalProperties"] is False
    assert schema["properties"]["agent"]["enum"] == ["one", "two"]
    assert all(part["type"] == "string" and part["description"] for part in schema["properties"].values())


def test_a_single_agent_is_not_an_argument_and_every_agent_is_described() -> None:
    assert "agent" not in ask_tool({"one": "It searches."}).input_schema["properties"]
    assert "It searches." in (ask_tool({"one": "It searches."}).description or "")
    assert "two: It computes." in (ask_tool({"one": "It searches.", "two": "It computes."}).description or "")


def test_an_answer_that_a_budget_forced_is_an_answer_and_says_so() -> None:
    page = observation("text", meta={"pages": [{"url": "https://a.example"}]})
    result = result_of("r1", "one", ended(page, Step(agent="answer", text="Ida"), stop=Stop.STEPS))
    answer = Answer.model_validate(result.structured_content)
    assert not result.is_error and (answer.answer, answer.stop, answer.run_id) == ("Ida", Stop.STEPS, "r1")
    assert [source.url for source in answer.sources] == ["https://a.example"]
    assert result.content[0].text == "Ida"  # type: ignore[union-attr]
    handle = result.content[1]
    assert handle.text == "Sources: https://a.example\nTo ask a follow-up question, call ask with follow_up=r1."  # type: ignore[union-attr]
    assert handle.annotations is not None and handle.annotations.audience == ["assistant"]


def test_a_run_without_an_answer_is_an_error_with_its_reason() -> None:
    failure = Failure(site=FailureSite.MODEL, message="the server is down")
    cases = {
        "error: the run failed: the server is down": ended(stop=Stop.FAILED, failure=failure),
        "error: the run was stopped before it came to an answer": ended(stop=Stop.INTERRUPTED),
        "error: the agent ended without an answer (stopped: out of time)": ended(stop=Stop.TIME),
    }
    for text, run in cases.items():
        result = result_of("r1", "one", run)
        assert result.is_error and result.structured_content is None
        assert result.content[0].text == text  # type: ignore[union-attr]


def test_a_line_of_progress_is_the_agent_and_the_beginning_of_its_words() -> None:
    assert progress_line(ItemBegan(0, "plan", ItemKind.THOUGHT)) is None
    assert progress_line(ItemDone(0, Step(agent="plan", text="1. Look.\n2. Read."))) == "plan: 1. Look. 2. Read."
    line = progress_line(ToolReturned(1, observation("word " * 100)))
    assert line is not None and line.startswith("observation: word word") and line.endswith("…") and len(line) < 180
