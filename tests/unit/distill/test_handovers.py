"""Calls of members, however a framework writes them, are brought into one form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coa.distill.atif_writer import to_atif
from coa.distill.handovers import Handover, HandoverOutcome, handovers_of, with_handovers
from coa.distill.importers.detect import read_traces
from coa.distill.member_names import ERROR
from coa.distill.team_run import AgentRun, CodeCall, Event, ModelCall, SubRun, TeamRun, ToolCall, ToolResult
from support.told_teams import agent, asks, called, member, result, team, thinks, tower


def specialist(name: str = "Researcher", *, request: str = "Find the height", identity: str = "r1") -> AgentRun:
    return agent(
        name,
        thinks("I search.", asks("s1", "web_search", query="tower")),
        result("s1", "330 m"),
        answer="The tower is 330 m tall.",
        request=request,
    ).model_copy(update={"id": identity})


def listed(run: TeamRun) -> list[tuple[str, str, HandoverOutcome]]:
    return [(item.by, item.to, item.outcome) for item in handovers_of(run.root)]


def test_a_run_in_the_one_form_stays_as_it_is() -> None:
    run = tower()
    assert with_handovers(run) is run
    assert listed(run) == [
        ("manager", "search_agent", HandoverOutcome.DONE),
        ("manager", "checker", HandoverOutcome.DONE),
    ]


def test_a_tool_call_that_encloses_a_run_is_the_delegation() -> None:
    run = with_handovers(
        team(
            thinks("I ask.", asks("c1", "look_it_up", topic="height")),
            called("c1", specialist()),
            result("c1", "The tower is 330 m tall."),
        )
    )
    asked, sub, report = run.root.events
    assert isinstance(asked, ModelCall) and asked.calls[0].agent
    assert isinstance(sub, SubRun) and isinstance(report, ToolResult) and report.report_of == ("r1",)
    inner = sub.run.events[0]
    assert isinstance(inner, ModelCall) and not inner.calls[0].agent  # its search stays a search
    assert "inferred" not in run.meta


def test_a_call_of_the_same_name_elsewhere_is_a_handover_too_and_this_one_failed() -> None:
    run = with_handovers(
        team(
            thinks("I ask.", asks("c1", "look_it_up", topic="height")),
            result("c1", "Error: the service is overloaded"),
            thinks("Once more.", asks("c2", "look_it_up", topic="height")),
            called("c2", specialist()),
            result("c2", "330 m"),
        )
    )
    assert listed(run) == [
        ("manager", "Researcher", HandoverOutcome.FAILED),
        ("manager", "Researcher", HandoverOutcome.DONE),
    ]
    failed = run.root.events[1]
    assert isinstance(failed, ToolResult) and not failed.ok and not failed.report_of


def test_a_call_made_again_word_for_word_came_to_nothing_the_first_time() -> None:
    run = with_handovers(
        team(
            thinks("I ask.", asks("c1", "ask_researcher", topic="height")),
            result("c1", "Please come back later."),
            thinks("Once more.", asks("c2", "ask_researcher", topic="height")),
            called("c2", specialist()),
            result("c2", "330 m"),
        )
    )
    assert [outcome for _, _, outcome in listed(run)] == [HandoverOutcome.FAILED, HandoverOutcome.DONE]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (asks("c1", "transfer_to_researcher"), ""),
        (asks("c1", "Ask Researcher", question="x"), ""),
        (asks("c1", "handoff_to_Researcher"), ""),
        (asks("c1", "researcher_tool", input="x"), ""),
        (asks("c1", "delegate_work_to_coworker", coworker="Researcher", task="x"), ""),
        (asks("c1", "transfer_to_agent", agent_name="researcher"), ""),
        (asks("c1", "Task", subagent_type="researcher", prompt="x"), ""),
        (asks("c1", "look_it_up", topic="Find the height"), "request"),
        (asks("c1", "look_it_up", topic="height"), "report"),
    ],
)
@pytest.mark.parametrize("first", ["run", "result"])
def test_a_run_beside_its_call_is_given_to_it(call: ToolCall, why: str, first: str) -> None:
    sub, report = SubRun(run=specialist()), result("c1", "The tower is 330 m tall.")
    events: list[Event] = [sub, report] if first == "run" else [report, sub]
    run = with_handovers(team(thinks("I ask.", call), *events, thinks("Good.")))
    asked, moved, told, _ = run.root.events
    assert isinstance(asked, ModelCall) and asked.calls[0].agent
    assert isinstance(moved, SubRun) and moved.call_id == "c1"
    assert isinstance(told, ToolResult) and told.report_of == ("r1",)
    inferred = run.meta.get("inferred")
    if not why:
        assert inferred is None  # the trace states it
        return
    assert isinstance(inferred, dict) and (inferred["links"], inferred["of_links"]) == (1, 1)
    assert why in str(inferred["notes"])


def test_a_tool_that_has_nothing_to_do_with_a_run_stays_a_tool() -> None:
    run = team(thinks("I look.", asks("c1", "web_search", q="x")), result("c1", "hit"), SubRun(run=specialist()))
    assert with_handovers(run) is run


def test_an_agents_own_tool_of_the_same_name_is_no_handover() -> None:
    inner = agent("calculator", thinks("I add.", asks("k", "calculator", text="1+1")), result("k", "2"), answer="two")
    run = with_handovers(
        team(thinks("Add.", asks("c1", "calculator", text="add")), called("c1", inner), result("c1", "2"))
    )
    assert listed(run) == [("manager", "calculator", HandoverOutcome.DONE)]


def test_a_member_that_is_not_in_the_run_can_only_be_asked_in_vain() -> None:
    bad = asks("c1", "delegate_work_to_coworker", coworker="Historian", task="x")
    run = with_handovers(
        team(thinks("I ask.", bad), result("c1", "Error: coworker mentioned not found"), thinks("Then not."))
    )
    assert listed(run) == [("manager", "Historian", HandoverOutcome.FAILED)]
    human = team(thinks("I ask.", asks("c1", "transfer_to_human")), result("c1", "ticket 7 opened"))
    assert with_handovers(human) is human


def test_control_that_is_handed_over_and_comes_back_is_a_tree() -> None:
    first = agent("triage", thinks("For the researcher.", asks("t1", "transfer_to_researcher")), result("t1", "done"))
    searches = agent(
        "researcher", thinks("I search.", asks("t1", "web_search", q="x")), result("t1", "330 m"),
        thinks("Back.", asks("t2", "transfer_to_triage")), result("t2", "done"),
    )  # fmt: skip
    second = agent(
        "triage", thinks("Compute.", asks("t1", "calculator", text="330*2")), result("t1", "660"), answer="660"
    )
    runs = [first, searches, second.model_copy(update={"id": "triage-2"})]
    flow = team(*(SubRun(run=run) for run in runs), answer="660")
    run = with_handovers(flow)
    assert run.root.agent == "triage" and run.answer == "660" and run.root.request == flow.root.request
    assert [type(event).__name__ for event in run.root.events] == [
        "ModelCall", "SubRun", "ToolResult", "ModelCall", "ToolResult",
    ]  # fmt: skip
    assert listed(run) == [
        ("triage", "researcher", HandoverOutcome.DONE),
        ("researcher", "triage", HandoverOutcome.RETURNED),
    ]
    ids = [call.id for event in run.root.events if isinstance(event, ModelCall) for call in event.calls]
    assert ids == ["t1", "t1#2"]  # two runs of one agent are one now, and ids stay unique
    below = run.root.events[1]
    assert isinstance(below, SubRun) and below.run.answer == "Back."  # what it says as it gives control back


def test_a_second_record_of_one_run_is_left_out_by_name() -> None:
    twice = with_handovers(
        team(
            thinks("I ask.", asks("c1", "ask_researcher", q="x")),
            called("c1", specialist()),
            result("c1", "330 m"),
            SubRun(run=specialist(identity="r2")),
        )
    )
    assert [run.id for run in twice.root.walk()] == ["manager", "r1"]
    assert [item.place for item in twice.left_out] == ["r2"]
    around = agent("researcher", SubRun(run=specialist()), answer="330 m", request="Find the height")
    once = with_handovers(
        team(thinks("I ask.", asks("c1", "ask_researcher", q="x")), called("c1", around), result("c1", "330 m"))
    )
    assert [(run.id, run.answer) for run in once.root.walk()] == [("manager", "330 m"), ("r1", "330 m")]


def test_a_member_asked_twice_has_two_runs() -> None:
    run = with_handovers(
        team(
            thinks("Both.", asks("c1", "ask_researcher", q="x"), asks("c2", "ask_researcher", q="x")),
            called("c1", specialist()),
            called("c2", specialist(identity="r2")),
            result("c1", "a"),
            result("c2", "b"),
        )
    )
    assert [one.id for one in run.root.walk()] == ["manager", "r1", "r2"]
    kinds = [event.call_ids[0] if isinstance(event, ToolResult) else type(event).__name__ for event in run.root.events]
    assert kinds == ["ModelCall", "SubRun", "SubRun", "c1", "c2"]


def test_a_call_of_a_member_from_code_is_one_too() -> None:
    calls = CodeCall(
        call=ToolCall(id="k", name="ask_researcher", arguments={"q": "x"}), text="Error: timeout", ok=False
    )
    run = with_handovers(team(calls, called("c1", specialist()), thinks("Good.")))
    assert listed(run)[0] == ("manager", "Researcher", HandoverOutcome.FAILED)


def test_every_run_that_is_read_is_in_the_one_form(tmp_path: Path) -> None:
    raw = team(thinks("I ask.", asks("c1", "look_it_up", topic="x")), called("c1", specialist()), result("c1", "330 m"))
    (tmp_path / "a.json").write_text(json.dumps(to_atif(raw)))
    (run,) = read_traces(tmp_path)
    assert isinstance(run, TeamRun) and listed(run) == [("manager", "Researcher", HandoverOutcome.DONE)]


def test_a_handover_says_who_asked_whom_and_what_went_wrong() -> None:
    run = team(thinks("I ask.", member("c1", "ask_historian", q="x")), result("c1", "Error: down\nat line 3", ok=False))
    (found,) = handovers_of(run.root)
    assert found == Handover(
        "manager", "historian", "ask_historian", HandoverOutcome.FAILED, "x", "Error: down\nat line 3", "manager", "c1"
    )
    assert str(found) == "manager asked historian by ask_historian: failed: Error: down"


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("Error executing tool: busy", True),
        ("An error occurred while running the tool.", True),
        ("ValueError: wrong arguments", True),
        ("Tool 'librarian' not found", True),
        ("The agent librarian does not exist.", True),
        ("No error.", False),
        ("The failure rate is 3 %.", False),
        ("The tower is 330 m tall; the first measurement failed.", False),
    ],
)
def test_a_result_is_an_error_only_if_it_begins_like_one(text: str, failed: bool) -> None:
    assert (ERROR.search(text) is not None) is failed
