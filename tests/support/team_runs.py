"""Any team run: hypothesis strategies for the tree of agent runs."""

from __future__ import annotations

from hypothesis import strategies as st

from coa.distill.team_run import (
    RECORDED,
    AgentRun,
    ChatMessage,
    CodeCall,
    EvaluatorVerdict,
    Event,
    LeftOut,
    ModelCall,
    Note,
    Purpose,
    Source,
    SubRun,
    TeamRun,
    ToolCall,
    ToolResult,
)
from coa.trajectory.types import Failure, FailureSite, Stop, Task, Usage

TEXT = st.text(max_size=12)
_TIME = st.none() | st.integers(0, 2_000_000_000).map(float) | st.floats(0, 4e9) | st.floats(1e20, 1e30)
_USAGE = st.none() | st.builds(
    Usage,
    prompt_tokens=st.integers(0, 99),
    completion_tokens=st.integers(0, 99),
    cached_tokens=st.integers(0, 9),
    model_calls=st.integers(0, 2),
    tool_calls=st.integers(0, 2),
    seconds=st.floats(0, 9),
    cost=st.none() | st.floats(0, 1),
)
_IDS = st.lists(st.integers(0, 99), max_size=2)
_SAMPLED = st.fixed_dictionaries(
    {}, optional={"prompt_ids": _IDS, "ids": _IDS, "logprobs": st.lists(st.floats(-9, 0), max_size=2)}
)
_META = st.dictionaries(st.sampled_from(["a", "b"]), st.integers(-(2**63), 2**63 - 1) | TEXT, max_size=2)

_SCHEMA = {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]}


@st.composite
def _model_call(draw: st.DrawFn, number: int) -> ModelCall:
    names = draw(st.lists(st.sampled_from(["web_search", "python_interpreter", "helper", "final_answer"]), max_size=3))
    meta = draw(_META) | draw(st.just({}) | st.fixed_dictionaries({"sampled": _SAMPLED | TEXT}))
    calls = [
        ToolCall(id=f"c{number}.{i}", name=name, arguments=draw(_META), agent=name == "helper")
        for i, name in enumerate(names)
    ]
    return ModelCall(
        time=draw(_TIME),
        copied=draw(st.booleans()),
        meta=meta,
        purpose=draw(st.sampled_from(Purpose)),
        messages=tuple(draw(st.lists(st.builds(ChatMessage, role=st.just("user"), text=TEXT), max_size=2))),
        rewritten=draw(st.booleans()),
        thought=draw(TEXT),
        text=draw(TEXT),
        calls=tuple(calls),
        model=draw(st.none() | st.just("m")),
        usage=draw(_USAGE),
        error=draw(st.none() | TEXT),
    )


@st.composite
def agent_runs(draw: st.DrawFn, identity: str = "r", depth: int = 1) -> AgentRun:
    events: list[Event] = []
    for number in range(draw(st.integers(0, 3))):
        call = draw(_model_call(number))
        events.append(call)
        shared = {"copied": draw(st.sampled_from([call.copied, call.copied, not call.copied])), "time": draw(_TIME)}
        for item in call.calls:
            kind = draw(st.sampled_from(["result", "code", "sub", "report", "none"]))
            below = f"{identity}/{item.id}"
            if kind in ("sub", "report") and depth > 0:
                events.append(
                    SubRun(**shared, call_id=item.id, run=draw(agent_runs(below, depth - 1)), meta=draw(_META))
                )
            if kind == "report" and depth > 0:
                ok = draw(st.booleans())
                events.append(ToolResult(**shared, call_ids=(item.id,), text=draw(TEXT), ok=ok, report_of=(below,)))
            if kind == "code":
                made = ToolCall(id=f"{item.id}.x", name="visit", arguments=draw(_META))
                events.append(CodeCall(**shared, within=item.id, call=made, text=draw(TEXT), ok=draw(st.booleans())))
            if kind in ("result", "code"):
                events.append(ToolResult(**shared, call_ids=(item.id,), text=draw(TEXT), meta=draw(_META)))
        if len(call.calls) > 1 and draw(st.booleans()):
            events.append(ToolResult(**shared, call_ids=tuple(item.id for item in call.calls), text=draw(TEXT)))
        if draw(st.booleans()):
            role = draw(st.sampled_from(["user", "system", "critic"]))
            events.append(
                Note(role=role, text=draw(TEXT), time=draw(_TIME), copied=draw(st.booleans()), meta=draw(_META))
            )
        if draw(st.booleans()):
            score = draw(st.none() | st.floats(0, 4))
            events.append(
                EvaluatorVerdict(judge=draw(TEXT), score=score, text=draw(TEXT), label=draw(TEXT), time=draw(_TIME))
            )
        if draw(st.booleans()):
            events.append(
                ToolResult(text=draw(TEXT), ok=draw(st.booleans()), call_ids=("elsewhere",), time=draw(_TIME))
            )
    return AgentRun(
        id=identity,
        agent=draw(st.sampled_from(["manager", "search_agent"])),
        type=draw(st.sampled_from(["", "CodeAgent"])),
        description=draw(TEXT),
        tools=tuple(draw(st.lists(st.sampled_from(["web_search", "visit"]), max_size=2, unique=True))),
        system=draw(TEXT),
        request=draw(TEXT),
        events=tuple(events),
        answer=draw(st.none() | TEXT),
        error=draw(st.none() | TEXT),
        meta=draw(_META) | draw(st.sampled_from([{}, {"tool_definitions": {"visit": _SCHEMA}}])),
    )


@st.composite
def team_runs(draw: st.DrawFn) -> TeamRun:
    stop = draw(st.sampled_from([Stop.ANSWERED, Stop.FAILED, Stop.TIME]))
    return TeamRun(
        task=Task(id="t", question=draw(TEXT), answer=draw(st.lists(TEXT, max_size=2))),
        root=draw(agent_runs()),
        source=Source(format=RECORDED),
        stop=stop,
        failure=Failure(site=FailureSite.MODEL, message="x") if stop is Stop.FAILED else None,
        left_out=tuple(draw(st.lists(st.builds(LeftOut, what=TEXT, reason=TEXT, usage=_USAGE), max_size=2))),
        reported_usage=draw(_USAGE),
        meta=draw(_META),
    )
