"""From the body of a request to the run that answers it: a new question, or the continuation of a run that waits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coa.serve.api_error import ApiError
from coa.serve.caller import Caller
from coa.serve.request import ClientFunction, RunRequest, Suspended, setting_for
from coa.serve.responses import stored
from coa.serve.responses.attachments import check_readable
from coa.serve.responses.body import CreateResponse, FunctionCallItem
from coa.serve.responses.output import Json
from coa.serve.responses.rebuilding import no_such_call, rebuilt
from coa.serve.responses.reply import CONTINUED, KEPT, Reply, settings_of
from coa.serve.responses.stored import StoredResponse
from coa.serve.responses.turn import Turn, output_text, read_turn
from coa.serve.service import Service
from coa.tools import Observation
from coa.trajectory import Message, Task


@dataclass(frozen=True, slots=True)
class Plan:
    request: RunRequest
    reply: Reply


def plan(service: Service, caller: Caller, body: CreateResponse, raw_input: object) -> Plan:
    """Raises `ApiError` for whatever cannot be done. `raw_input` is the input as the client sent it, to be stored."""
    body.check()
    agent = service.agent(body.model)
    before = _previous(service, caller, body.previous_response_id)
    turn = read_turn(
        body.input,
        stored.turn_after(service, caller, before) if before is not None else None,
        lambda item_id: stored.item_by_id(service, caller, item_id),
    )
    settings = settings_of(body, agent)
    request = RunRequest(
        agent=body.model,
        task=_task(turn, body.instructions),
        functions=tuple(
            ClientFunction(tool.name, tool.description or "", tool.parameters or {}) for tool in body.offered()
        ),
        temperature=body.temperature,
        top_p=body.top_p,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        effort=body.reasoning.effort if body.reasoning is not None else None,
        previous=before.run.id if before is not None else None,
        protocol="responses",
        store=body.store is not False,
        background=bool(body.background),
        metadata=body.metadata or {},
        attachments=turn.attachments.files,
    )
    if turn.result is not None:
        request, kept = _continuation(service, caller, request, turn)
        settings |= kept
    check_readable(request.attachments, agent.setting.tools, body.model)
    portable = "reasoning.encrypted_content" in (body.include or [])
    stored_input = raw_input if isinstance(raw_input, list) else [{"role": "user", "content": raw_input}]
    return Plan(request, Reply(settings, stored_input, portable=portable, files=len(turn.attachments.files)))


def _previous(service: Service, caller: Caller, response_id: str | None) -> StoredResponse | None:
    if response_id is None:
        return None
    run_id = stored.run_id_of(response_id)
    run = service.running(run_id, caller) if run_id else None
    if run is not None and run.request.store and not run.status.over:
        message = f"The response {response_id!r} is still in progress."
        raise ApiError(400, message, code="response_in_progress", param="previous_response_id")
    found = stored.find(service, caller, run_id)
    if found is None:
        raise stored.missing(response_id, "previous_response_id")
    return found


def _task(turn: Turn, instructions: str | None) -> Task:
    system = [Message(role="system", content=instructions)] if instructions else []
    return Task(
        id="request",
        question=turn.question or " ",
        conversation=(*system, *turn.conversation),
        files=tuple(turn.attachments.files),
    )


# ---- the continuation of a run


def _continuation(service: Service, caller: Caller, request: RunRequest, turn: Turn) -> tuple[RunRequest, Json]:
    """The request that continues the waiting run, and the settings that the run keeps."""
    output = turn.result
    assert output is not None
    result = Observation(output_text(output))
    waiting = service.suspended(output.call_id, caller) or _answered(service, caller, turn)
    if waiting is None:
        setting, names = setting_for(request, service.agent(request.agent).setting)
        trajectory = rebuilt(request.task, turn.trail, setting, names)
        waiting = Suspended(output.call_id, "", request.agent, trajectory, "")
        return replace(request, resume=waiting, result=result), {}
    if waiting.agent != request.agent:
        message = f"The function call {output.call_id!r} was made by the model {waiting.agent!r}."
        raise ApiError(400, message, code="invalid_value", param="model")
    request = replace(request, resume=waiting, result=result, previous=waiting.run, task=waiting.trajectory.task)
    run, known = service.running(waiting.run, caller), stored.find(service, caller, waiting.run)
    if run is not None:
        begun = {name: getattr(run.request, name) for name in KEPT}
        request = replace(request, **begun, attachments=run.request.attachments)
    elif known is not None:
        request = replace(request, **known.begun, attachments=stored.attachments_of(service, caller, known).files)
    return request, {name: known.response[name] for name in CONTINUED} if known is not None else {}


def _answered(service: Service, caller: Caller, turn: Turn) -> Suspended | None:
    """The run of a call that had a result before: its client tries again, since it did not get to the end."""
    output = turn.result
    assert output is not None
    call = next(
        (item for item in turn.trail if isinstance(item, FunctionCallItem) and item.call_id == output.call_id), None
    )
    if call is None:
        raise no_such_call(output.call_id)
    _, _, rest = (call.id or "").partition("_")
    found = stored.find(service, caller, rest.rpartition("_")[0])
    made = found.call if found is not None else None
    if found is None or made is None or made["call_id"] != output.call_id:
        return None
    return Suspended(output.call_id, found.run.id, found.run.agent, found.run.trajectory, found.run.conversation)
