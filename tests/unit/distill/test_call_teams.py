"""Recorded model calls become teams: who called whom, in the ways that frameworks hand work over."""

from __future__ import annotations

from pathlib import Path

from support.call_records import CallRecords, Json, call, inferred, outline, result, user
from support.call_teams import ANALYST, ASK, MANAGER, RESEARCHER, TASK, agents_as_tools, member, pipeline, transfers
from support.call_teams import TEAM_QUESTION as QUESTION


def test_agents_called_as_tools_are_runs_under_their_calls(tmp_path: Path) -> None:
    (run,) = agents_as_tools(CallRecords()).runs(tmp_path)
    assert outline(run.root) == [
        f"manager <- {QUESTION}",
        '  says I ask for both. | @ask_researcher{"request": "Find the height of the tower."}, '
        '@ask_researcher{"request": "Find the height of the twin."}',
        "  researcher <- Find the height of the tower.",
        '    says search{"q": "tower"}',
        "    result: tower: 330 m",
        "    says The tower has 330 m.",
        "  -> The tower has 330 m.",
        "  report: The tower has 330 m.",
        "  researcher <- Find the height of the twin.",
        '    says search{"q": "twin"}',
        "    result: twin: 300 m",
        "    says The twin has 300 m.",
        "  -> The twin has 300 m.",
        "  report: The twin has 300 m.",
        '  says Now the sum. | @ask_analyst{"request": "Add 330 and 300."}',
        "  analyst <- Add 330 and 300.",
        '    says calculator{"expression": "330+300"}',
        "    result: 630",
        "    says The sum is 630.",
        "  -> The sum is 630.",
        "  report: The sum is 630.",
        "  says 630 m",
        "-> 630 m",
    ]
    assert run.usage.model_calls == 9
    assert inferred(run) == {
        "agents": 3, "of_agents": 3, "links": 3, "of_links": 3, "weak": 0, "ambiguous": 0, "notes": [],
    }  # fmt: skip


def test_a_transfer_of_control_is_a_run_under_its_call_until_control_comes_back(tmp_path: Path) -> None:
    (run,) = transfers(CallRecords()).runs(tmp_path)
    assert outline(run.root) == [
        f"manager <- {QUESTION}",
        "  says @transfer_to_librarian{}",
        "  failed result: Error: there is no transfer_to_librarian.",
        "  says Again. | @transfer_to_researcher{}",
        f"  researcher <- {QUESTION}",
        '    says search{"q": "tower"}',
        "    result: 330 m",
        "    says It has 330 m.",
        "  -> It has 330 m.",
        '  report: {"assistant": "researcher"}',
        "  says 330 m",
        "-> 330 m",
    ]
    assert inferred(run)["links"] == 0  # the history itself shows who handed over


def test_who_keeps_control_gives_the_answer(tmp_path: Path) -> None:
    (run,) = transfers(CallRecords(), comes_back=False).runs(tmp_path)
    assert run.root.agent == "manager"
    assert run.answer == "It has 330 m."


def test_a_hand_over_that_failed_has_no_run(tmp_path: Path) -> None:
    records = CallRecords()
    history = [user(QUESTION)]
    history.append(records.chat(MANAGER, history, "", call("m0", "ask_researcher", request="Find it.")))
    history.append(result("m0", "The researcher is busy."))
    history.append(records.chat(MANAGER, history, "", call("m1", "ask_researcher", request="Find the height.")))
    member(records, RESEARCHER, "Find the height.", call("s", "search", q="x"), "330 m", "It has 330 m.")
    history.append(result("m1", "It has 330 m."))
    records.chat(MANAGER, history, "330 m")
    (run,) = records.runs(tmp_path)
    assert outline(run.root)[1:3] == [
        '  says @ask_researcher{"request": "Find it."}',
        "  failed result: The researcher is busy.",
    ]
    assert sum(event.kind == "sub_run" for event in run.root.events) == 1


def test_a_member_that_remembers_has_a_run_for_each_call(tmp_path: Path) -> None:
    records = CallRecords()
    history, memory = [user(QUESTION)], []
    for number, what in enumerate(("tower", "twin")):
        request = f"Find the height of the {what}."
        history.append(records.chat(MANAGER, history, "", call(f"m{number}", "ask_researcher", request=request)))
        memory.append(user(request))
        memory.append(records.chat(RESEARCHER, memory, f"The {what} has 300 m."))
        history.append(result(f"m{number}", f"The {what} has 300 m."))
    records.chat(MANAGER, history, "600 m")
    (run,) = records.runs(tmp_path)
    subs = [event.run for event in run.root.events if event.kind == "sub_run"]
    assert [(sub.agent, sub.request, sub.answer) for sub in subs] == [
        ("researcher", "Find the height of the tower.", "The tower has 300 m."),
        ("researcher", "Find the height of the twin.", "The twin has 300 m."),
    ]


def test_a_pipeline_is_one_run_of_its_members(tmp_path: Path) -> None:
    (run,) = pipeline(CallRecords()).runs(tmp_path)
    assert outline(run.root) == [
        "team <- Describe the town of Ostrel.",
        "  Town Researcher <- Describe the town of Ostrel.",
        "    says It has 279,500 inhabitants and a tower.",
        "  -> It has 279,500 inhabitants and a tower.",
        f"  Writer <- {TASK}",
        "    says Ostrel: 279,500.",
        "  -> Ostrel: 279,500.",
        "-> Ostrel: 279,500.",
    ]


def test_threads_that_have_nothing_to_do_with_each_other_are_runs_of_their_own(tmp_path: Path) -> None:
    records = CallRecords()
    for question in ("How high is the tower?", "How old is the bridge?"):
        records.chat(RESEARCHER, [user(question)], "I do not know.")
    assert [run.task.question for run in records.runs(tmp_path)] == ["How high is the tower?", "How old is the bridge?"]


def test_a_user_who_goes_on_stays_in_the_same_run(tmp_path: Path) -> None:
    records = CallRecords()
    history = [user("How high is the tower?")]
    history.append(records.chat(RESEARCHER, history, "330 m."))
    history.append(user("And the twin?"))
    records.chat(RESEARCHER, history, "300 m.")
    (run,) = records.runs(tmp_path)
    assert outline(run.root) == [
        "researcher <- How high is the tower?", "  says 330 m.", "  user: And the twin?", "  says 300 m.", "-> 300 m.",
    ]  # fmt: skip


def test_runs_and_agents_that_were_given_are_not_inferred(tmp_path: Path) -> None:
    records = CallRecords(run="r1", given_by="path")
    history = [user(QUESTION)]
    history.append(records.chat("", history, "", call("m1", "look_up", request="Find the height."), agent="boss"))
    records.chat("", [user("Find the height.")], "It has 330 m.", agent="scout")
    history.append(result("m1", "It has 330 m."))
    records.chat("", history, "330 m", agent="boss")
    (run,) = records.runs(tmp_path)
    assert [item.agent for item in run.root.walk()] == ["boss", "scout"]
    assert run.task.id == "r1"
    assert (inferred(run)["agents"], inferred(run)["of_agents"]) == (0, 2)


def test_calls_of_one_trace_are_one_run(tmp_path: Path) -> None:
    records = CallRecords()
    trace = {"trace": {"trace_id": "ab", "span_id": "1"}, "given_by": "traceparent", "run": "ab"}
    records.chat(RESEARCHER, [user("How high is the tower?")], "330 m.", **trace)
    records.chat(ANALYST, [user("Double it.")], "660 m.", **trace)
    records.chat(ANALYST, [user("Something else.")], "No.", trace={"trace_id": "cd", "span_id": "2"})
    first, second = records.runs(tmp_path)
    assert [item.agent for item in first.root.walk()] == ["team", "researcher", "analyst"]
    assert second.task.question == "Something else."


def test_actions_that_are_written_as_text_are_calls(tmp_path: Path) -> None:
    records = CallRecords()
    manager = "You are Crew Manager. You lead.\nUse the format Action: / Action Input: / Observation:"
    history = [
        user("\nCurrent Task: How tall is the tower?\n\nThis is the expected criteria for your final answer: a number")
    ]
    asking = (
        "Thought: The researcher knows.\nAction: Delegate work to coworker\n"
        'Action Input: {"task": "Find the height of the tower.", "context": "none", "coworker": "Researcher"}'
    )
    records.chat(manager, history, asking)
    task = "\nCurrent Task: Find the height of the tower.\n\nThis is the expected criteria for your final answer: it"
    records.chat("You are Researcher. You look up.", [user(task)], "Thought: I know it.\nFinal Answer: It has 330 m.")
    history.append({"role": "assistant", "content": f"{asking}\nObservation: It has 330 m."})
    records.chat(manager, history, "Thought: Done.\nFinal Answer: 330 m")
    (run,) = records.runs(tmp_path)
    assert outline(run.root) == [
        "Crew Manager <- How tall is the tower?",
        '  says Thought: The researcher knows. | @Delegate work to coworker{"task": "Find the height of the tower.", '
        '"context": "none", "coworker": "Researcher"}',
        "  Researcher <- Find the height of the tower.",
        "    says Thought: I know it.",
        "  -> It has 330 m.",
        "  report: It has 330 m.",
        "  says Thought: Done.",
        "-> 330 m",
    ]


def test_code_that_calls_a_member_starts_its_run(tmp_path: Path) -> None:
    records = CallRecords()
    manager = "You are an expert assistant who writes code in <code> blocks and calls final_answer()."
    history = [user("New task:\nHow tall is the tower?")]
    code = "Thought: I ask.\n<code>\nprint(scout(task='Find the height of the tower.'))\n"
    records.chat(manager, history, code)
    task = (
        "New task:\nYou're a helpful agent named 'scout'.\nYou have been submitted this task by your manager.\n---\n"
        "Task:\nFind the height of the tower.\n---\nYou're helping your manager solve a wider task."
    )
    records.chat(
        "You are an expert assistant with tools.", [user(task)], "", call("f", "final_answer", answer="It has 330 m.")
    )
    made = [{"id": "call_1", "type": "function", "function": {"name": "python_interpreter", "arguments": "print(1)"}}]
    history += [
        {"role": "assistant", "content": f"{code}</code>\nCalling tools:\n{made}"},
        user("Observation:\nExecution logs:\nIt has 330 m."),
    ]
    records.chat(manager, history, "Thought: Done.\n<code>\nfinal_answer('330 m')\n")
    (run,) = records.runs(tmp_path)
    assert [item.agent for item in run.root.walk()][1:] == ["scout"]
    assert run.answer == "330 m"
    assert [event.kind for event in run.root.events] == ["model_call", "sub_run", "tool_result", "model_call"]
    assert not any(item.rewritten for item in run.root.model_calls)


def test_two_runs_with_the_same_words_are_kept_apart_by_the_ids_of_their_calls(tmp_path: Path) -> None:
    records, histories = CallRecords(), {}
    for run in "ab":
        histories[run] = [user(QUESTION)]
        histories[run].append(records.chat(RESEARCHER, histories[run], "", call(f"{run}1", "search", q="tower")))
    for run in "ba":
        histories[run].append(result(f"{run}1", f"330 m in {run}"))
        records.chat(RESEARCHER, histories[run], f"330 m, says {run}.")
    first, second = records.runs(tmp_path)
    assert [first.answer, second.answer] == ["330 m, says a.", "330 m, says b."]
    assert inferred(first)["ambiguous"] == 0


def test_the_result_of_a_member_that_returns_its_tools_output_is_what_its_caller_got(tmp_path: Path) -> None:
    records, looked = CallRecords(), call("s1", "search", q="tower")
    asked = call("m1", "ask_researcher", request="Find the height of the tower.")
    history = [user(QUESTION)]
    history.append(records.chat(MANAGER, history, "I ask.", asked, tools=ASK))
    records.chat(RESEARCHER, [user("Find the height of the tower.")], "I search.", looked)
    history.append(result("m1", "The tower has 330 m."))
    records.chat(MANAGER, history, "330 m", tools=ASK)
    (run,) = records.runs(tmp_path)
    assert outline(run.root)[2:6] == [
        "  researcher <- Find the height of the tower.",
        '    says I search. | search{"q": "tower"}',
        "    result: The tower has 330 m.",
        "  -> The tower has 330 m.",
    ]


def test_what_could_have_been_decided_otherwise_is_named(tmp_path: Path) -> None:
    records = CallRecords()
    histories: dict[str, list[Json]] = {}
    for one in "ab":  # two managers ask for the same at the same time
        histories[one] = [user(f"{one}: {QUESTION}")]
        asked = call(f"{one}1", "ask_researcher", request="Find the height of the tower.")
        histories[one].append(records.chat(MANAGER, histories[one], "", asked))
    for _ in "ab":
        records.chat(RESEARCHER, [user("Find the height of the tower.")], "It has 330 m.")
    for one in "ab":
        histories[one].append(result(f"{one}1", "It has 330 m."))
        records.chat(MANAGER, histories[one], "330 m")
    first, second = records.runs(tmp_path)
    assert [len(list(run.root.walk())) for run in (first, second)] == [2, 2]
    assert inferred(first)["ambiguous"] == 1
    assert inferred(first)["notes"] == [
        "researcher: 2 candidates for what started it; the first was taken",
    ]
    assert inferred(second)["ambiguous"] == 1


def test_agents_that_share_one_history_without_calls_are_members_of_a_pipeline(tmp_path: Path) -> None:
    records = CallRecords()
    history = [user(QUESTION)]
    history.append(records.chat(RESEARCHER, history, "They have 330 m and 300 m."))
    records.chat(ANALYST, history, "630 m")
    (run,) = records.runs(tmp_path)
    assert [item.agent for item in run.root.walk()] == ["team", "researcher", "analyst"]
    assert (run.task.question, run.answer) == (QUESTION, "630 m")
    assert (inferred(run)["links"], inferred(run)["of_links"]) == (0, 1)


def test_a_link_that_rests_on_one_sign_is_named(tmp_path: Path) -> None:
    (run,) = pipeline(CallRecords()).runs(tmp_path)
    assert inferred(run)["weak"] == 1
    assert inferred(run)["notes"] == [
        "Writer was linked by one sign alone: its request quotes the answer of an earlier agent"
    ]


def test_an_agent_without_a_name_is_called_after_its_tool_or_numbered(tmp_path: Path) -> None:
    records = CallRecords()
    history = [user(QUESTION)]
    history.append(records.chat("Answer.", history, "", call("m1", "ask_scout", request="Find the height.")))
    records.chat("Look things up.", [user("Find the height.")], "It has 330 m.")
    history.append(result("m1", "It has 330 m."))
    records.chat("Answer.", history, "330 m")
    (run,) = records.runs(tmp_path)
    assert [item.agent for item in run.root.walk()] == ["agent_1", "scout"]


def test_of_calls_that_ask_for_the_same_the_one_in_the_same_trace_is_taken(tmp_path: Path) -> None:
    records = CallRecords()
    traces = {one: {"trace": {"trace_id": one, "span_id": "1"}, "given_by": "traceparent"} for one in "ab"}
    histories: dict[str, list[Json]] = {}
    for one in "ab":
        histories[one] = [user(f"{one}: {QUESTION}")]
        asked = call(f"{one}1", "ask_researcher", request="Find the height of the tower.")
        histories[one].append(records.chat(MANAGER, histories[one], "", asked, **traces[one]))
    for one in "ba":
        looked = call(f"s{one}", "search", q=one)
        member(records, RESEARCHER, "Find the height of the tower.", looked, "330 m", "It has 330 m.", **traces[one])
    for one in "ab":
        histories[one].append(result(f"{one}1", "It has 330 m."))
        records.chat(MANAGER, histories[one], "330 m", **traces[one])
    found = [(run.task.question[0], outline(run.root)[3]) for run in records.runs(tmp_path)]
    assert found == [("a", '    says search{"q": "a"}'), ("b", '    says search{"q": "b"}')]
