"""An agent's run while it goes on: what happened since its last step, and the events of the steps so far.

smolagents reports a step only when it has ended. What happened inside the step (calls of models and tools, runs of
sub-agents) was observed live and waits here in the order in which it began. `OpenRun.step` then brings the two
together: the report says which observed model call was the step's main one and what that call meant, and each observed
tool call is matched with a call that the model wrote, by name and arguments. What matches nothing is kept as it was
observed, so that its cost is counted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from smolagents.memory import ActionStep, PlanningStep
from smolagents.models import get_tool_json_schema

from coa.distill.importers.content import FINISHING, as_text, plain
from coa.distill.importers.smolagents_steps import CODE_TOOL, action_call, plan_event
from coa.distill.team_run import (
    AgentRun,
    ChatMessage,
    CodeCall,
    Event,
    LeftOut,
    ModelCall,
    Purpose,
    SubRun,
    ToolCall,
    ToolResult,
)
from coa.trajectory.types import Usage

UNDER_WAY: Final = "it was still under way when the recording ended"


@dataclass(eq=False)
class SeenModel:
    """A call of a model, by an agent itself or from within a tool."""

    model: str | None
    messages: list[ChatMessage]
    inside_tool: bool
    started: float = field(default_factory=time.time)
    message: Any = None
    text: str = ""
    thought: str = ""
    usage: Usage | None = None
    error: str | None = None
    done: bool = False


@dataclass(eq=False)
class SeenTool:
    """A call of a tool or of a member of the team."""

    name: str
    arguments: dict[str, Any]
    in_code: bool
    member: bool
    started: float = field(default_factory=time.time)
    text: str = ""
    ok: bool = True
    done: bool = False
    runs: list[OpenRun] = field(default_factory=list)


@dataclass(eq=False)
class OpenRun:
    id: str
    agent: Any
    name: str
    request: str
    system: str
    seen: list[SeenModel | SeenTool] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    answer: str | None = None
    error: str | None = None
    limited: bool = False
    """It reached its limit of steps."""
    closed: bool = False
    _read: set[ChatMessage] = field(default_factory=set)
    _longest: int = 0
    _ids: dict[str, int] = field(default_factory=dict)

    def step(self, step: Any) -> None:
        """Turn what was observed since the last step into events, with the help of the step's report."""
        seen, self.seen = self.seen, []
        if isinstance(step, PlanningStep):
            own = next((item for item in reversed(seen) if isinstance(item, SeenModel) and not item.inside_tool), None)
            for item in seen:
                if item is own:
                    output = {"content": step.model_output_message.content}
                    timing = {"start_time": step.timing.start_time}
                    row = {"plan": step.plan, "model_output_message": output, "timing": timing}
                    event = plan_event(row, item.usage, **self._details(item, aside=True))
                    self.events.append(event.model_copy(update={"thought": item.thought or event.thought}))
                else:
                    self._loose(item)
        elif isinstance(step, ActionStep):
            self._action(step, seen)
        else:
            self.seen = seen

    def finish(self) -> AgentRun:
        """The run so far. What no step's report explains is kept as it was observed."""
        for item in self.seen:
            self._loose(item)
        self.seen = []
        agent = self.agent
        tools = (name for name in [*agent.tools, *agent.managed_agents] if name not in FINISHING)
        schemas = {
            name: plain(get_tool_json_schema(tool)["function"]["parameters"])
            for name, tool in agent.tools.items()
            if name not in FINISHING
        }
        meta = {"max_steps": True} if self.limited else {}
        return AgentRun(
            id=self.id, agent=self.name, type=type(agent).__name__, description=str(agent.description or ""),
            tools=tuple(tools), system=self.system, request=self.request, events=tuple(self.events),
            answer=self.answer, error=self.error, meta={**meta, **({"tool_definitions": schemas} if schemas else {})},
        )  # fmt: skip

    def _action(self, step: Any, seen: list[SeenModel | SeenTool]) -> None:
        own = [item for item in seen if isinstance(item, SeenModel) and not item.inside_tool]
        main = next((item for item in own if item.message is step.model_output_message is not None), None)
        main = main or (own[-1] if own else None)
        rest = [item for item in seen if item is not main]
        row = _acted(step)
        self.limited = self.limited or row["error_type"] == "AgentMaxStepsError"
        call = self._main_call(row, main)
        before = [item for item in rest if main is not None and item.started < main.started]
        for item in before:
            self._loose(item)
        self.events += [call] if call is not None else []
        after = [item for item in rest if item not in before]
        calls = call.calls if call is not None else ()
        if calls and calls[0].name == CODE_TOOL and step.code_action is not None:
            self._code_results(step, row, calls[0], after)
        else:
            self._call_results(step, row, calls, after)
        if step.observations_images:
            self.left_out.append(LeftOut(what=f"images of step {step.step_number}", reason="text only", place=self.id))

    def _main_call(self, row: dict[str, Any], main: SeenModel | None) -> ModelCall | None:
        if main is not None and main.error is not None:
            return ModelCall(error=main.error, usage=main.usage, **self._details(main))
        tags = getattr(self.agent, "code_block_tags", None)
        usage, details = (main.usage, self._details(main)) if main is not None else (None, {})
        call = action_call(row, tuple(self.agent.managed_agents), tags, usage, **details)
        if call is None:
            return None
        thought = main.thought if main is not None and main.thought else call.thought
        return call.model_copy(update={"thought": thought, "calls": self._with_own_ids(call.calls)})

    def _with_own_ids(self, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        """Some servers number the calls of each message anew; within a run an id is used once."""
        named = []
        for call in calls:
            number = self._ids[call.id] = self._ids.get(call.id, 0) + 1
            named.append(call if number == 1 else call.model_copy(update={"id": f"{call.id}#{number}"}))
        return tuple(named)

    def _call_results(
        self, step: Any, row: dict[str, Any], calls: Sequence[ToolCall], seen: list[SeenModel | SeenTool]
    ) -> None:
        tools = [item for item in seen if isinstance(item, SeenTool)]
        matched = _matched(tools, calls)
        order = {call.id: index for index, call in enumerate(calls)}
        for other in seen:
            if isinstance(other, SeenModel):
                self._loose(other)
        failed = row["error"] is not None
        for item in sorted(tools, key=lambda item: order.get(matched.get(id(item), ""), len(order))):
            if step.is_final_answer and item.name in FINISHING:
                continue
            identity = matched.get(id(item))
            if identity is None:
                self._loose(item)
                continue
            self._sub_runs(item, identity)
            # When one of several calls fails, smolagents shows the model that error alone.
            unseen = {"unseen": True} if failed and item.ok and item.name not in FINISHING else {}
            rejected = failed and item.ok and item.name in FINISHING
            text = row["error"]["message"] if rejected else item.text if item.done else UNDER_WAY
            ok, reports = item.ok and item.done and not rejected, tuple(run.id for run in item.runs)
            started = round(item.started, 6)
            self.events.append(
                ToolResult(time=started, call_ids=(identity,), text=text, ok=ok, report_of=reports, meta=unseen)
            )

    def _code_results(self, step: Any, row: dict[str, Any], code: ToolCall, seen: list[SeenModel | SeenTool]) -> None:
        reports: list[str] = []
        for item in seen:
            if isinstance(item, SeenTool) and item.runs:
                self._sub_runs(item, code.id)
                reports += [run.id for run in item.runs]
                if not item.ok:
                    self._loose(item, code.id, known=True)
            else:
                self._loose(item, code.id)
        error = row["error"]["message"] if row["error"] else ""
        text = "\n".join(filter(None, (as_text(step.observations), error)))
        self.events.append(ToolResult(call_ids=(code.id,), text=text, ok=not error, report_of=tuple(reports)))

    def _loose(self, item: SeenModel | SeenTool, within: str | None = None, *, known: bool = False) -> None:
        """An observed call that is not in the step's message: of a tool in code, or of a model in a tool."""
        if isinstance(item, SeenModel):
            wrote = {"text": item.text, "thought": item.thought, "usage": item.usage}
            purpose = Purpose.TOOL if item.inside_tool else Purpose.ACT
            error = item.error or (None if item.done else UNDER_WAY)
            self.events.append(ModelCall(purpose=purpose, error=error, **wrote, **self._details(item)))
            return
        if not known:
            self._sub_runs(item, within)
        identity, time = f"{within or self.id}.{len(self.events)}", round(item.started, 6)
        call = ToolCall(id=identity, name=item.name, arguments=item.arguments, agent=item.member)
        text, ok = item.text if item.done else UNDER_WAY, item.ok and item.done
        self.events.append(CodeCall(time=time, within=within, call=call, text=text, ok=ok))

    def _sub_runs(self, item: SeenTool, call_id: str | None) -> None:
        for run in item.runs:
            self.events.append(SubRun(time=round(item.started, 6), call_id=call_id, run=run.finish()))
            self.left_out += run.left_out

    def _details(self, item: SeenModel, *, aside: bool = False) -> dict[str, Any]:
        """What the call read that no call before it had read, and whether its context was rewritten (is shorter).

        A plan is made `aside`, from a conversation that is put together for it alone and rewrites nothing.
        """
        new = tuple(message for message in item.messages if message not in self._read)
        aside = aside or item.inside_tool
        rewritten = not aside and len(item.messages) < self._longest
        if not aside:
            self._longest = max(self._longest, len(item.messages))
        self._read.update(new)
        kept = tuple(message for message in new if not (message.role == "system" and message.text == self.system))
        return {"time": round(item.started, 6), "model": item.model, "messages": kept, "rewritten": rewritten}


def _matched(tools: list[SeenTool], calls: Sequence[ToolCall]) -> dict[int, str]:
    """Which call each execution was of: by name and arguments, then by name alone."""
    free = list(calls)
    found: dict[int, str] = {}
    for exact in (True, False):
        for item in tools:
            if id(item) in found:
                continue
            named = (call for call in free if call.name == item.name)
            call = next((call for call in named if not exact or dict(call.arguments) == item.arguments), None)
            if call is not None:
                free.remove(call)
                found[id(item)] = call.id
    return found


def _acted(step: Any) -> dict[str, Any]:
    """An action step as a dict, without its images and without the whole conversation it read."""
    message = step.model_output_message
    error = {"type": type(step.error).__name__, "message": str(step.error.message)} if step.error else None
    written = [
        {"id": call.id, "name": call.function.name, "arguments": plain(call.function.arguments)}
        for call in (message.tool_calls if message is not None else None) or ()
    ]
    made = [{"id": call.id, "name": call.name, "arguments": plain(call.arguments)} for call in step.tool_calls or ()]
    return {
        "step_number": step.step_number,
        "timing": {"start_time": step.timing.start_time},
        "model_output": step.model_output,
        "model_output_message": None if message is None else {"content": message.content, "tool_calls": written},
        "tool_calls": made,
        "code_action": step.code_action,
        "error": error,
        "error_type": error["type"] if error else "",
        "action_output": plain(step.action_output),
        "is_final_answer": step.is_final_answer,
    }
