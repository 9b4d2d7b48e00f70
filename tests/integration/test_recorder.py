"""The recorder on real smolagents teams: nothing is lost, whatever smolagents itself forgets."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from smolagents import CodeAgent, ToolCallingAgent
from smolagents.memory import MemoryStep

from coa.distill.atif_writer import to_atif
from coa.distill.importers.atif_reader import from_atif
from coa.distill.recorder import Recorder, record
from coa.distill.team_run import AgentRun, CodeCall, Event, ModelCall, Purpose, SubRun, TeamRun, ToolResult
from coa.errors import RecordingError
from coa.trajectory.types import Stop, Task, Usage
from support.atif_rules import assert_atif
from support.teams import ScriptedTeamModel, VisitPage, WebSearch, searcher, two_agents

TASK = Task(id="t", question="How many feet tall is the tower?", answer="1082")


def all_events(run: AgentRun) -> Iterator[Event]:
    for event in run.events:
        yield event
        if isinstance(event, SubRun):
            yield from all_events(event.run)


def listened(agent: Any, log: list[tuple[str, Any]]) -> None:
    """An event log of its own, by smolagents' callbacks."""
    for member in (agent, *agent.managed_agents.values()):
        member.step_callbacks.register(MemoryStep, lambda step, agent: log.append((agent.name or "manager", step)))


def kept_on_disk(run: TeamRun) -> TeamRun:
    document = orjson.loads(orjson.dumps(to_atif(run)))
    assert_atif(document)
    assert from_atif(document) == run
    return run


def test_what_each_model_call_takes_is_heard_while_the_team_works() -> None:
    agent, models = two_agents()
    heard: list[Usage] = []
    with Recorder(agent, TASK, spending=heard.append) as recorder:
        run = recorder.run()
    assert len(heard) == sum(len(model.log) for model in models) == 14
    total = Usage.sum(heard)
    assert (total.prompt_tokens, total.completion_tokens, total.model_calls) == (
        run.usage.prompt_tokens, run.usage.completion_tokens, run.usage.model_calls,
    )  # fmt: skip


def test_every_call_step_failure_and_token_of_the_event_log_is_in_the_run() -> None:
    agent, models = two_agents()
    log: list[tuple[str, Any]] = []
    listened(agent, log)
    run = kept_on_disk(record(agent, TASK))
    assert run.left_out == ()
    assert (run.answer, run.stop) == ("1082", Stop.ANSWERED)

    events = list(all_events(run.root))
    calls = [event for event in events if isinstance(event, ModelCall)]
    spent = [pair for model in models for pair in model.log]
    assert len(calls) == len(spent) == 14
    assert sorted((c.usage.prompt_tokens, c.usage.completion_tokens) for c in calls if c.usage) == sorted(spent)
    assert run.usage.prompt_tokens == sum(read for read, _ in spent)
    assert run.usage.completion_tokens == sum(written for _, written in spent)

    subs = [event.run for event in run.root.events if isinstance(event, SubRun)]
    assert [sub.request for sub in subs] == ["How tall is the tower?", "Verify the tower is 330 m"]
    assert [sub.answer for sub in subs] == ["330 m", "330 m confirmed"]
    for name, step in log:
        runs = [run.root] if name == "manager" else subs
        texts = "\n".join(e.text for r in runs for e in r.events if isinstance(e, ModelCall | ToolResult))
        if type(step).__name__ == "PlanningStep":
            plans = [c.text for r in runs for c in r.model_calls if c.purpose is Purpose.PLAN]
            assert step.model_output_message.content in plans
        elif type(step).__name__ == "ActionStep":
            assert step.model_output.split("\n")[0].removeprefix("Thought: ") in texts
            assert step.error is None or step.error.message in texts
            asked = {call.function.name for call in step.model_output_message.tool_calls or ()} - {"final_answer"}
            assert asked <= {call.name for r in runs for c in r.model_calls for call in c.calls}

    failed = [event for event in events if isinstance(event, ToolResult) and not event.ok]
    assert [("HTTP 503" in f.text, "undefined_name" in f.text) for f in failed] == [(True, False), (False, True)]


def test_results_of_parallel_calls_are_kept_apart() -> None:
    agent, _ = two_agents()
    run = record(agent, TASK)
    sub = next(event.run for event in run.root.events if isinstance(event, SubRun))
    results = {e.call_ids: e.text for e in sub.events if isinstance(e, ToolResult)}
    assert results["c1",] == "1. Result about tower height (http://ex.org/a)"
    assert results["c2",] == "1. Result about tower height metres (http://ex.org/a)"


def test_a_sub_agent_stands_at_its_call_and_its_report_is_marked_as_told() -> None:
    agent, _ = two_agents()
    run = record(agent, TASK)
    kinds = [event.kind for event in run.root.events]
    # plan, act, sub-agent, result, act, result (failed), act, sub-agent, result, plan, answer, result
    assert kinds == [
        "model_call", "model_call", "sub_run", "tool_result", "model_call", "tool_result", "model_call", "sub_run",
        "tool_result", "model_call", "model_call", "tool_result",
    ]  # fmt: skip
    first, report = run.root.events[2], run.root.events[3]
    assert isinstance(first, SubRun) and isinstance(report, ToolResult)
    assert report.report_of == (first.run.id,) and report.call_ids == (first.call_id,)


def test_the_recorder_lets_go_of_everything() -> None:
    agent, models = two_agents()
    before = [dict(vars(thing)) for thing in (agent, agent.python_executor, *models)]
    callbacks = [len(rows) for rows in agent.step_callbacks._callbacks.values()]
    with Recorder(agent, TASK):
        assert agent.python_executor.timeout_seconds is None
    assert [set(vars(thing)) for thing in (agent, agent.python_executor, *models)] == [set(rows) for rows in before]
    assert agent.python_executor.timeout_seconds == before[1]["timeout_seconds"]
    assert [len(rows) for rows in agent.step_callbacks._callbacks.values() if rows] == callbacks


def tool_manager(model: ScriptedTeamModel, *members: Any, **rest: Any) -> ToolCallingAgent:
    return ToolCallingAgent(tools=[WebSearch()], model=model, managed_agents=list(members), verbosity_level=-1, **rest)


def test_one_managed_agent_called_twice_at_once_is_recorded_as_two_runs() -> None:
    below = ScriptedTeamModel(
        "search",
        [
            ("First.", [("a1", "web_search", {"query": "one"})]),
            ("Done.", [("a2", "final_answer", {"answer": "1"})]),
            ("Second.", [("a3", "web_search", {"query": "two"})]),
            ("Done.", [("a4", "final_answer", {"answer": "2"})]),
        ],
    )
    above = ScriptedTeamModel(
        "manager",
        [
            ("Both.", [("m1", "search_agent", {"task": "left"}), ("m2", "search_agent", {"task": "right"})]),
            ("Done.", [("m3", "final_answer", {"answer": "12"})]),
        ],
    )
    run = kept_on_disk(record(tool_manager(above, searcher(below)), TASK))
    subs = [event for event in run.root.events if isinstance(event, SubRun)]
    assert {(sub.call_id, sub.run.request) for sub in subs} == {("m1", "left"), ("m2", "right")}
    for sub in subs:
        assert [e.kind for e in sub.run.events] == ["model_call", "tool_result", "model_call"]
    reports = {e.call_ids[0]: e.report_of for e in run.root.events if isinstance(e, ToolResult)}
    assert reports == {sub.call_id: (sub.run.id,) for sub in subs}
    assert run.usage.model_calls == 6


def test_when_one_of_several_calls_fails_the_others_are_kept_as_unseen() -> None:
    model = ScriptedTeamModel(
        "m",
        [
            ("Both.", [("a", "web_search", {"query": "x"}), ("b", "visit_page", {"url": "http://bad.org"})]),
            ("Done.", [("c", "final_answer", {"answer": "x"})]),
        ],
    )
    run = record(searcher(model), TASK)
    good, bad = (event for event in run.root.events if isinstance(event, ToolResult))
    assert (good.ok, good.meta, good.call_ids) == (True, {"unseen": True}, ("a",))
    assert (bad.ok, bad.call_ids) == (False, ("b",))


def test_call_ids_that_a_server_uses_again_are_told_apart() -> None:
    model = ScriptedTeamModel(
        "m",
        [
            ("One.", [("0", "web_search", {"query": "x"})]),
            ("Two.", [("0", "web_search", {"query": "y"})]),
            ("Done.", [("0", "final_answer", {"answer": "z"})]),
        ],
    )
    run = kept_on_disk(record(searcher(model), TASK))
    assert [call.id for made in run.root.model_calls for call in made.calls] == ["0", "0#2"]
    assert [e.call_ids for e in run.root.events if isinstance(e, ToolResult)] == [("0",), ("0#2",)]


def test_tools_that_code_calls_are_recorded_inside_it() -> None:
    code = "<code>\nhits = web_search('tower')\npage = visit_page(url='http://ex.org/a')\nprint(len(hits))\n</code>"
    model = ScriptedTeamModel("m", [f"Thought: look.\n{code}", "<code>\nfinal_answer('330 m')\n</code>"])
    agent = CodeAgent(tools=[WebSearch(), VisitPage()], model=model, verbosity_level=-1)
    run = kept_on_disk(record(agent, TASK))
    calls = [event for event in run.root.events if isinstance(event, CodeCall)]
    assert [(c.call.name, dict(c.call.arguments), c.ok) for c in calls] == [
        ("web_search", {"query": "tower"}, True),
        ("visit_page", {"url": "http://ex.org/a"}, True),
    ]
    first = run.root.model_calls[0]
    assert first.text == "look." and all(c.within == first.calls[0].id for c in calls)


def test_a_slow_sub_agent_does_not_fail_its_managers_step(monkeypatch: pytest.MonkeyPatch) -> None:
    # The default limit stands at 30 s; a shorter default shows the same in less time.
    monkeypatch.setattr("coa.distill.recorder.recorder.MAX_EXECUTION_TIME_SECONDS", 1)
    manager, _ = slow_team(limit=1)
    run = record(manager, TASK)
    assert run.answer == "1 m"
    assert all(event.ok for event in run.root.events if isinstance(event, ToolResult))


def test_a_step_cut_by_its_own_time_limit_keeps_the_sub_agents_run() -> None:
    manager, _ = slow_team(limit=0.5)
    run = kept_on_disk(record(manager, TASK))
    sub, result = run.root.events[1], run.root.events[2]
    assert isinstance(sub, SubRun) and sub.run.answer == "1 m"
    assert isinstance(result, ToolResult) and not result.ok and "maximum execution time" in result.text


def test_a_sub_agent_that_outlives_its_callers_step_is_refused() -> None:
    release = threading.Event()

    def late() -> Any:
        release.wait(20)
        return ("Late.", [("a", "final_answer", {"answer": "1"})])

    member = searcher(ScriptedTeamModel("search", [late]))
    threads: list[threading.Thread] = []

    class FireAndForget(WebSearch):
        def forward(self, query: str) -> str:
            context = contextvars.copy_context()
            threads.append(threading.Thread(target=context.run, args=(member, query)))
            threads[0].start()
            while not member.memory.steps:
                time.sleep(0.01)
            return "started"

    def done() -> Any:
        release.set()
        threads[0].join(20)
        return ("Done.", [("b", "final_answer", {"answer": "?"})])

    model = ScriptedTeamModel("m", [("Go.", [("a", "web_search", {"query": "x"})]), done])
    agent = ToolCallingAgent(tools=[FireAndForget()], model=model, managed_agents=[member], verbosity_level=-1)
    with pytest.raises(RecordingError, match="still running") as caught:
        record(agent, TASK)
    assert caught.value.hint is not None


def slow_team(limit: float) -> tuple[CodeAgent, ScriptedTeamModel]:
    def slowly() -> Any:
        time.sleep(1.5)
        return ("Slow.", [("a", "final_answer", {"answer": "1 m"})])

    below = ScriptedTeamModel("search", [slowly])
    above = ScriptedTeamModel(
        "manager",
        ["<code>\nr = search_agent(task='go')\n</code>", "<code>\nfinal_answer('1 m')\n</code>"],
    )
    manager = CodeAgent(
        tools=[],
        model=above,
        managed_agents=[searcher(below)],
        executor_kwargs={"timeout_seconds": limit},
        verbosity_level=-1,
    )
    return manager, below


def test_a_model_that_fails_ends_the_run_as_data() -> None:
    model = ScriptedTeamModel("m", [("Go.", [("a", "web_search", {"query": "x"})]), RuntimeError("503 overloaded")])
    run = kept_on_disk(record(searcher(model), TASK))
    assert run.stop is Stop.FAILED and run.failure is not None and "503 overloaded" in run.failure.message
    last = run.root.events[-1]
    assert isinstance(last, ModelCall) and last.error is not None and "503" in last.error
    assert run.unmetered_calls == 1


def test_a_sub_agent_that_breaks_is_an_error_of_its_call() -> None:
    below = ScriptedTeamModel("search", [RuntimeError("gone")])
    above = ScriptedTeamModel(
        "manager",
        [("Ask.", [("m1", "search_agent", {"task": "x"})]), ("Give up.", [("m2", "final_answer", {"answer": "?"})])],
    )
    run = kept_on_disk(record(tool_manager(above, searcher(below)), TASK))
    sub = next(event for event in run.root.events if isinstance(event, SubRun))
    assert sub.run.error is not None and "gone" in sub.run.error
    report = next(event for event in run.root.events if isinstance(event, ToolResult))
    assert not report.ok and report.report_of == (sub.run.id,)


def test_an_action_that_cannot_be_read_is_kept_with_its_error() -> None:
    model = ScriptedTeamModel("m", ["I just talk.", "<code>\nfinal_answer('x')\n</code>"])
    run = record(CodeAgent(tools=[], model=model, verbosity_level=-1), TASK)
    talk = run.root.model_calls[0]
    assert talk.error is not None and not talk.calls and "I just talk." in talk.text


def test_out_of_steps_is_told_as_such_and_the_forced_answer_is_counted() -> None:
    model = ScriptedTeamModel("m", [("Go.", [("a", "web_search", {"query": "x"})]), "Perhaps 330 m."])
    run = kept_on_disk(record(searcher(model, max_steps=1), TASK))
    assert (run.stop, run.answer) == (Stop.STEPS, "Perhaps 330 m.")
    assert run.root.model_calls[-1].purpose is Purpose.ANSWER
    assert run.usage.prompt_tokens == sum(read for read, _ in model.log)


def test_a_rejected_final_answer_stays_a_call_that_failed() -> None:
    model = ScriptedTeamModel(
        "m",
        [
            ("First.", [("a", "final_answer", {"answer": "bad"})]),
            ("Then.", [("b", "final_answer", {"answer": "good"})]),
        ],
    )
    agent = searcher(model, final_answer_checks=[lambda answer, memory, agent: answer == "good"])
    run = record(agent, TASK)
    assert run.answer == "good"
    rejected = next(event for event in run.root.events if isinstance(event, ToolResult))
    assert not rejected.ok and "failed" in rejected.text


def test_a_model_that_a_tool_uses_is_counted_apart() -> None:
    inner = ScriptedTeamModel("summary", ["short"])

    class Summing(WebSearch):
        def __init__(self) -> None:
            super().__init__()
            self.model = inner

        def forward(self, query: str) -> str:
            return str(self.model.generate([{"role": "user", "content": query}]).content)

    model = ScriptedTeamModel(
        "m", [("Go.", [("a", "web_search", {"query": "x"})]), ("Done.", [("b", "final_answer", {"answer": "y"})])]
    )
    run = record(ToolCallingAgent(tools=[Summing()], model=model, verbosity_level=-1), TASK)
    inside = [call for call in run.root.model_calls if call.purpose is Purpose.TOOL]
    assert [(call.text, call.model) for call in inside] == [("short", "scripted/summary")]
    assert run.usage.model_calls == 3


def test_a_model_call_from_a_thread_of_its_own_is_left_out_but_paid_for() -> None:
    inner = ScriptedTeamModel("stray", ["hm"])

    class Stray(WebSearch):
        def __init__(self) -> None:
            super().__init__()
            self.model = inner

        def forward(self, query: str) -> str:
            thread = threading.Thread(target=self.model.generate, args=([{"role": "user", "content": query}],))
            thread.start()
            thread.join()
            return "ok"

    model = ScriptedTeamModel(
        "m", [("Go.", [("a", "web_search", {"query": "x"})]), ("Done.", [("b", "final_answer", {"answer": "y"})])]
    )
    run = record(ToolCallingAgent(tools=[Stray()], model=model, verbosity_level=-1), TASK)
    assert len(run.left_out) == 1
    assert run.usage.prompt_tokens == sum(read for read, _ in model.log + inner.log)


def test_an_agent_of_two_running_teams_is_refused() -> None:
    agent, _ = two_agents()
    with Recorder(agent, TASK), pytest.raises(RecordingError, match="two running teams"), Recorder(agent, TASK):
        pass
    assert record(agent, TASK).answer == "1082"


def test_a_team_that_contains_itself_is_refused() -> None:
    agent, _ = two_agents()
    agent.managed_agents["search_agent"].managed_agents = {"again": agent}
    with pytest.raises(RecordingError, match="manages itself"):
        Recorder(agent, TASK)


def test_teams_that_share_a_model_are_told_apart() -> None:
    barrier = threading.Barrier(2, timeout=20)

    def reply(text: str) -> Any:
        def wait() -> Any:
            barrier.wait()
            return text

        return wait

    shared = ScriptedTeamModel("shared", [reply(f"<code>\nfinal_answer('{i}')\n</code>") for i in range(2)])
    runs: list[TeamRun] = []

    def go(number: int) -> None:
        agent = CodeAgent(tools=[], model=shared, verbosity_level=-1)
        runs.append(record(agent, Task(id=str(number), question=f"Question {number}?")))

    threads = [threading.Thread(target=go, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(run.answer or "" for run in runs) == ["0", "1"]
    for run in runs:
        assert len(run.root.model_calls) == 1 and run.left_out == ()
        assert f"Question {run.task.id}?" in "".join(m.text for m in run.root.model_calls[0].messages)


def test_a_snapshot_tells_what_there_is_so_far() -> None:
    reached, go_on = threading.Event(), threading.Event()

    def wait() -> Any:
        reached.set()
        go_on.wait(20)
        return ("Done.", [("b", "final_answer", {"answer": "y"})])

    model = ScriptedTeamModel("m", [("Go.", [("a", "web_search", {"query": "x"})]), wait])
    with Recorder(searcher(model), TASK) as recorder:
        thread = threading.Thread(target=recorder.run)
        thread.start()
        assert reached.wait(20)
        run = recorder.snapshot(Stop.TIME)
        go_on.set()
        thread.join(20)
    assert run.stop is Stop.TIME and run.answer is None
    assert [event.kind for event in run.root.events] == ["model_call", "tool_result", "model_call"]
    under_way = run.root.model_calls[-1]
    assert under_way.usage is None and under_way.error is not None
