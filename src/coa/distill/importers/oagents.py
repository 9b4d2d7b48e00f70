"""OAgents' JSONL, the results file of the paper's teacher.

It saves less than happened: thoughts and failed calls of sub-agents are never in it, and with best-of-N or beam search
the saved steps and the `prediction` may come from different attempts, so the answer is always to be judged anew. A
sub-task's list of calls may begin with the calls of the one before it; those are cut off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coa.distill.importers.content import as_arguments, as_text, as_time
from coa.distill.importers.smolagents_steps import action_call, merged_results
from coa.distill.importers.trace_format import TraceFormat
from coa.distill.team_run import (
    AgentRun,
    CodeCall,
    EvaluatorVerdict,
    Event,
    LeftOut,
    ModelCall,
    Purpose,
    Source,
    SubRun,
    TeamRun,
    ToolCall,
)
from coa.errors import TraceError
from coa.report import plural
from coa.trajectory.formats.tasks import content_id
from coa.trajectory.types import Failure, FailureSite, Stop, Task

Json = Mapping[str, Any]
_SEARCHER = "search_agent"


def is_oagents(row: object) -> bool:
    return isinstance(row, Mapping) and "intermediate_steps" in row and ("prediction" in row or "question" in row)


def from_oagents(row: Json, file: str = "", place: str = "") -> TeamRun:
    question = as_text(row.get("question"))
    if not question:
        raise TraceError("the row has no question")
    steps = row.get("intermediate_steps")
    if not isinstance(steps, list):
        raise TraceError("its intermediate_steps are no list")
    left_out = [LeftOut(what="thoughts, failed calls and tokens of sub-agents", reason="OAgents never saves them")]
    waiting = _sub_runs(row.get("search_agent_actions"), left_out)
    events: list[Event] = []
    for number, step in enumerate(steps, start=1):
        if isinstance(step, Mapping):
            events += _events(step, waiting)
        else:
            left_out.append(LeftOut(what=f"step {number}", reason=f"it is a {type(step).__name__}, not an object"))
    for run in waiting.values():
        events.append(SubRun(run=run))
        left_out.append(LeftOut(what="the place of a sub-task", reason="no saved step mentions it", place=run.request))
    prediction = row.get("prediction")
    answer = None if prediction in (None, "") else as_text(prediction)
    error = as_text(row.get("agent_error"))
    limited = bool(row.get("iteration_limit_exceeded"))
    gold = row.get("true_answer")
    failure = Failure(site=FailureSite.RUNTIME, message=error) if error and answer is None else None
    stop = (
        Stop.FAILED if failure else Stop.STEPS if limited else Stop.ANSWERED if answer is not None else Stop.UNANSWERED
    )
    return TeamRun(
        task=Task.model_validate(
            {
                "id": as_text(row.get("task_id")) or content_id(question, gold),
                "question": question,
                "answer": gold if isinstance(gold, str | int | float | list) else None,
                "meta": {"level": as_text(row["task"])} if row.get("task") else {},
            }
        ),
        root=AgentRun(id="manager", agent="manager", request=question, events=tuple(events), answer=answer),
        source=Source(format=FORMAT.name, file=file, place=place),
        stop=stop,
        failure=failure,
        left_out=tuple(left_out),
        meta={"judge_again": True, "parsing_error": bool(row.get("parsing_error"))},
    )


def _events(step: Json, waiting: dict[str, AgentRun]) -> list[Event]:
    kind = as_text(step.get("step_type"))
    if kind == "planning" or "plan" in step:
        text = "\n\n".join(filter(None, (as_text(step.get("facts")), as_text(step.get("plan")))))
        return [ModelCall(purpose=Purpose.PLAN, text=text)]
    if kind == "task" or ("model_output" not in step and "tool_calls" not in step):
        return []
    row = {"step_number": 0, **step, "error": _error(step.get("error"))}
    call = action_call(row)
    if call is None:
        return []
    events: list[Event] = [call]
    reports = []
    asked = "\n".join(as_text(dict(item.arguments)) for item in call.calls)
    for request in [request for request in waiting if request and request in asked]:
        run = waiting.pop(request)
        reports.append(run.id)
        events.append(SubRun(call_id=call.calls[0].id, run=run))
    events += merged_results(row, call.calls, reports)
    score, thought = step.get("score"), as_text(step.get("evaluate_thought"))
    if score is not None or thought:
        value = float(score) if isinstance(score, int | float) else None
        events.append(EvaluatorVerdict(judge="reward model", score=value, text=thought))
    return events


def _sub_runs(value: object, left_out: list[LeftOut]) -> dict[str, AgentRun]:
    runs: dict[str, AgentRun] = {}
    before: list[Any] = []
    for number, (request, entry) in enumerate(value.items() if isinstance(value, Mapping) else (), start=1):
        if not isinstance(entry, Mapping):
            left_out.append(LeftOut(what=f"sub-task {number}", reason="it is not an object", place=str(request)))
            continue
        calls = entry.get("tool_calls")
        rows = calls if isinstance(calls, list) else []
        repeated = len(before) if before and rows[: len(before)] == before and len(rows) > len(before) else 0
        if repeated:
            left_out.append(
                LeftOut(
                    what=f"{plural(repeated, 'call')} of sub-task {number}",
                    reason="they are the sub-task's before it, saved again",
                    place=str(request),
                )
            )
        before = rows
        events: list[Event] = []
        for index, row in enumerate(rows[repeated:], start=1):
            if isinstance(row, Mapping):
                call = ToolCall(
                    id=f"{number}.{index}",
                    name=as_text(row.get("name") or row.get("tool_name")) or "tool",
                    arguments=as_arguments(row.get("args", row.get("arguments"))),
                )
                events.append(CodeCall(call=call, text=as_text(row.get("observation")), time=as_time(row.get("time"))))
        answer = entry.get("answer")
        runs[str(request)] = AgentRun(
            id=f"{_SEARCHER}-{number}",
            agent=_SEARCHER,
            request=str(request),
            events=tuple(events),
            answer=None if answer is None else as_text(answer),
        )
    return runs


def _error(value: object) -> object:
    """A dict in newer files, a string in older ones."""
    if value in (None, "", "None"):
        return None
    return value if isinstance(value, Mapping) else {"type": "", "message": as_text(value)}


FORMAT: Final = TraceFormat("oagents", "OAgents JSONL", is_oagents, read=from_oagents)
