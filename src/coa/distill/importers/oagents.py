"""OAgents' JSONL, the results file of the paper's teacher.

It saves less than happened: thoughts and failed calls of sub-agents are never in it, and with best-of-N or beam search
the saved steps and the `prediction` may come from different attempts, so the answer must always be judged again. A
sub-task's list of calls may begin with the calls of the one before it; those are cut off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coa.distill.importers.content import as_arguments, as_number, as_task, as_text, as_time, at, mappings, team_run
from coa.distill.importers.smolagents_steps import CODE_TOOL, action_call, merged_results, unfenced
from coa.distill.importers.trace_format import TraceFormat
from coa.distill.importers.wrapped import unwrapped_task
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
            events += _events(step, number, waiting)
        else:
            left_out.append(LeftOut(what=f"step {number}", reason=f"it is a {type(step).__name__}, not an object"))
    for run in waiting.values():
        events.append(SubRun(run=run))
        left_out.append(LeftOut(what="the place of a sub-task", reason="no saved step mentions it", place=run.request))
    prediction = row.get("prediction")
    answer = None if prediction in (None, "") else as_text(prediction)
    level = {"level": as_text(row["task"])} if row.get("task") else {}
    return team_run(
        as_task(question, row.get("true_answer"), as_text(row.get("task_id")) or None, **level),
        AgentRun(id="manager", agent="manager", request=question, events=tuple(events), answer=answer),
        Source(format=FORMAT.name, file=file, place=place),
        left_out,
        error=as_text(row.get("agent_error")),
        limited=bool(row.get("iteration_limit_exceeded")),
        meta={"judge_again": True, "parsing_error": bool(row.get("parsing_error"))},
    )


def _events(step: Json, number: int, waiting: dict[str, AgentRun]) -> list[Event]:
    kind = as_text(step.get("step_type"))
    if kind == "planning" or "plan" in step:
        parts = (unfenced(as_text(step.get(name))) for name in ("facts", "plan"))
        return [ModelCall(purpose=Purpose.PLAN, text="\n\n".join(filter(None, parts)))]
    if kind == "task" or ("model_output" not in step and "tool_calls" not in step):
        return []
    error = step.get("error")  # a dict in newer files, a string in older ones
    if not isinstance(error, Mapping):
        error = None if error in (None, "", "None") else {"type": "", "message": as_text(error)}
    programs = [at(row, "function", "arguments") for row in mappings(step.get("tool_calls")) if _runs_code(row)]
    code = step.get("code_action", "\n".join(map(as_text, programs)) if programs else None)
    final = step.get("action_output") is not None and "final_answer(" in as_text(code)
    row = {"is_final_answer": final, **step, "step_number": number, "error": error, "code_action": code}
    call = action_call(row)
    if call is None:
        return []
    # Each step begins to number its calls anew.
    calls = tuple(item.model_copy(update={"id": f"{item.id}_{number}"}) for item in call.calls)
    call = call.model_copy(update={"calls": calls})
    events: list[Event] = [call]
    reports = []
    asked = "\n".join(as_text(dict(item.arguments)) for item in call.calls)
    for request in [request for request in waiting if request and request in asked]:
        run = waiting.pop(request)
        reports.append(run.id)
        events.append(SubRun(call_id=call.calls[0].id, run=run))
    events += merged_results(row, call.calls, reports)
    score, thought = step.get("score"), as_text(step.get("evaluate_thought"))
    if score or thought:  # 0 where nobody judged
        events.append(EvaluatorVerdict(judge="reward model", score=as_number(score), text=thought))
    return events


def _sub_runs(value: object, left_out: list[LeftOut]) -> dict[str, AgentRun]:
    runs: dict[str, AgentRun] = {}
    before: list[Any] = []
    for number, (request, entry) in enumerate(value.items() if isinstance(value, Mapping) else (), start=1):
        if not isinstance(entry, Mapping):
            left_out.append(LeftOut(what=f"sub-task {number}", reason="it is not an object", place=str(request)))
            continue
        rows = entry["tool_calls"] if isinstance(entry.get("tool_calls"), list) else []
        repeated = len(before) if before and rows[: len(before)] == before and len(rows) > len(before) else 0
        if repeated:
            what, reason = f"{plural(repeated, 'call')} of sub-task {number}", "they repeat the sub-task before it"
            left_out.append(LeftOut(what=what, reason=reason, place=str(request)))
        before = rows
        events: list[Event] = []
        for index, row in enumerate(rows[repeated:], start=1):
            if isinstance(row, Mapping):
                name = as_text(row.get("name") or row.get("tool_name")) or "tool"
                arguments = as_arguments(row.get("args", row.get("arguments")))
                call = ToolCall(id=f"{number}.{index}", name=name, arguments=arguments)
                events.append(CodeCall(call=call, text=as_text(row.get("observation")), time=as_time(row.get("time"))))
        answer = None if entry.get("answer") is None else as_text(entry["answer"])
        identity = f"{_SEARCHER}-{number}"
        asked = unwrapped_task(str(request))
        runs[asked] = AgentRun(id=identity, agent=_SEARCHER, request=asked, events=tuple(events), answer=answer)
    return runs


def _runs_code(row: Json) -> bool:
    return bool(at(row, "function", "name") == CODE_TOOL and isinstance(at(row, "function", "arguments"), str))


FORMAT: Final = TraceFormat("oagents", "OAgents JSONL", is_oagents, read=from_oagents)
