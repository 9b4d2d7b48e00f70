"""Recorded runs of agents and teams, made by hand: in each protocol, and in the ways that frameworks hand work over."""

from __future__ import annotations

from typing import Any

from support.call_records import CallRecords, Json, call, function, result, user

RESEARCHER = "You are the researcher. Use the tools."
QUESTION = "How tall is the tower?"


def one_agent(records: CallRecords, question: str = QUESTION) -> CallRecords:
    history = [user(question)]
    tools = [function("search", "q")]
    looked = call("a", "search", q="tower")
    history.append(records.chat(RESEARCHER, history, "I look it up.", looked, thought="Hm.", tools=tools))
    history.append(result("a", "330 m"))
    records.chat(RESEARCHER, history, "It is 330 m tall.", tools=tools)
    return records


def responses(records: CallRecords) -> CallRecords:
    called = {"type": "function_call", "id": "f", "call_id": "a", "name": "search", "arguments": '{"q":"tower"}'}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look it up."}]}
    thought = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Hm."}]}
    usage = {"input_tokens": 10, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}}
    tools = [{"type": "function", "name": "search", "parameters": {"type": "object"}}]
    body = {"model": "m", "instructions": RESEARCHER, "input": QUESTION, "tools": tools}
    records.respond(records.request(body, "responses"), {"id": "r1", "output": [thought, said, called], "usage": usage})
    output = {"type": "function_call_output", "call_id": "a", "output": "330 m"}
    body |= {"input": [user(QUESTION), thought, said, called, output]}
    final = {"type": "message", "content": [{"type": "output_text", "text": "It is 330 m tall."}]}
    records.respond(records.request(body, "responses"), {"id": "r2", "output": [final], "usage": usage})
    return records


def continued_responses(records: CallRecords) -> CallRecords:
    """The second request names the first response instead of repeating it."""
    responses(records)
    body = records.lines[2]["body"]
    body["input"], body["previous_response_id"] = body["input"][-1:], "r1"
    return records


def messages(records: CallRecords) -> CallRecords:
    said = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "text", "text": "I look it up."},
        {"type": "tool_use", "id": "a", "name": "search", "input": {"q": "tower"}},
    ]
    usage = {"input_tokens": 6, "cache_read_input_tokens": 4, "output_tokens": 2}
    tools = [{"name": "search", "input_schema": {"type": "object"}}]
    body = {
        "model": "m",
        "system": [{"type": "text", "text": RESEARCHER}],
        "messages": [user(QUESTION)],
        "tools": tools,
    }
    records.respond(records.request(body, "messages"), {"id": "m1", "content": said, "usage": usage})
    heard = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "330 m"}]}
    body |= {"messages": [user(QUESTION), {"role": "assistant", "content": said}, heard]}
    final = [{"type": "text", "text": "It is 330 m tall."}]
    records.respond(records.request(body, "messages"), {"id": "m2", "content": final, "usage": usage})
    return records


MANAGER = "You are the manager. Today is Wednesday, 18 November 2026. Hand the work over."
ANALYST = "You are the analyst. Calculate."
TEAM_QUESTION = "How tall are the tower and its twin together?"
ASK = [function("ask_researcher", "request"), function("ask_analyst", "request")]


def member(records: CallRecords, system: str, request: str, tool: Json, found: str, answer: str, **given: Any) -> None:
    """A member's whole conversation: one call of a tool, then the report."""
    history = [user(request)]
    history.append(records.chat(system, history, "", tool, **given))
    history.append(result(tool["id"], found))
    records.chat(system, history, answer, **given)


def agents_as_tools(records: CallRecords, mark: str = "") -> CallRecords:
    """A manager asks for two things at once, and then for their sum."""
    history = [user(f"{mark}{TEAM_QUESTION}")]
    tower = call(f"{mark}m1", "ask_researcher", request=f"{mark}Find the height of the tower.")
    twin = call(f"{mark}m2", "ask_researcher", request=f"{mark}Find the height of the twin.")
    history.append(records.chat(MANAGER, history, "I ask for both.", tower, twin, tools=ASK))
    for one, height in (("twin", "300 m"), ("tower", "330 m")):
        looked = call(f"{mark}s-{one}", "search", q=one)
        request = f"{mark}Find the height of the {one}."
        member(records, RESEARCHER, request, looked, f"{one}: {height}", f"{mark}The {one} has {height}.")
    history += [result(f"{mark}m1", f"{mark}The tower has 330 m."), result(f"{mark}m2", f"{mark}The twin has 300 m.")]
    both = call(f"{mark}m3", "ask_analyst", request=f"{mark}Add 330 and 300.")
    history.append(records.chat(MANAGER, history, "Now the sum.", both, tools=ASK))
    counted = call(f"{mark}s-sum", "calculator", expression="330+300")
    member(records, ANALYST, f"{mark}Add 330 and 300.", counted, "630", f"{mark}The sum is 630.")
    history.append(result(f"{mark}m3", f"{mark}The sum is 630."))
    records.chat(MANAGER, history, f"{mark}630 m", tools=ASK)
    return records


def transfers(records: CallRecords, *, comes_back: bool = True) -> CallRecords:
    """Control goes to the researcher, in one shared history, and comes back."""
    history = [user(TEAM_QUESTION)]
    history.append(
        records.chat(
            MANAGER, history, "", call("t0", "transfer_to_librarian"), tools=[function("transfer_to_researcher")]
        )
    )
    history.append(result("t0", "Error: there is no transfer_to_librarian."))
    history.append(
        records.chat(
            MANAGER, history, "Again.", call("t1", "transfer_to_researcher"), tools=[function("transfer_to_researcher")]
        )
    )
    history.append(result("t1", '{"assistant": "researcher"}'))
    history.append(records.chat(RESEARCHER, history, "", call("s1", "search", q="tower")))
    history.append(result("s1", "330 m"))
    if not comes_back:
        records.chat(RESEARCHER, history, "It has 330 m.")
        return records
    history.append(records.chat(RESEARCHER, history, "It has 330 m.", call("t2", "transfer_to_manager")))
    history.append(result("t2", '{"assistant": "manager"}'))
    records.chat(MANAGER, history, "330 m")
    return records


TASK = "Write one line.\n\nThis is the context:\nIt has 279,500 inhabitants and a tower."


def pipeline(records: CallRecords) -> CallRecords:
    """A program sends the answer of one agent to the next."""
    system, question = "You are Town Researcher. You know towns.", "Describe the town of Ostrel."
    records.chat(system, [user(question)], "It has 279,500 inhabitants and a tower.")
    records.chat("You are Writer. You write well.", [user(TASK)], "Ostrel: 279,500.")
    return records
