"""`POST /v1/chat/completions`, for clients that speak the older of the two APIs.

`chat_request.py` has what a client may send, `chat_render.py` what it gets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from coa.serve.api_error import ApiError
from coa.serve.bodies import json_response, read_body
from coa.serve.caller import Caller, request_caller
from coa.serve.chat_render import (
    Chunks,
    Delta,
    Deltas,
    cited_urls,
    completion,
    error_event,
    failure_of,
    finish_reason,
    message_of,
    tool_calls,
)
from coa.serve.chat_request import ChatBody, ChatTurn, FunctionTool, read_messages
from coa.serve.events import ItemText, RunEnded, RunEvent
from coa.serve.request import ClientFunction, RunRequest, Suspended, setting_for
from coa.serve.responses.attachments import check_readable
from coa.serve.run import Run
from coa.serve.service import Service
from coa.serve.streams import HEARTBEAT, EventStream, finished
from coa.serve.usage import TokenCount, tokens_of
from coa.tools import Observation
from coa.trajectory import Step, Stop, Task, Trajectory, Usage, observation
from coa.trajectory.citations import citations
from coa.trajectory.shapes import write


def routes(service: Service) -> list[BaseRoute]:
    async def complete(request: Request) -> Response | ASGIApp:
        body = read_body(ChatBody, await request.body())
        body.check()
        caller = request_caller(request)
        run = await service.start(_run_request(body, caller, service), caller)
        reply = _Reply(body, run, service)
        if body.stream:
            return EventStream(reply.stream())
        await finished(request, run, service)
        return json_response(await reply.whole())

    return [Route("/v1/chat/completions", complete, methods=["POST"])]


class _Reply:
    """The answer to one request."""

    def __init__(self, body: ChatBody, run: Run, service: Service) -> None:
        self._body, self._run, self._service = body, run, service
        self._head = {"id": f"chatcmpl-{run.id}", "created": int(run.created), "model": body.model}
        self._deltas = Deltas(service.agent(body.model).setting.profile, body.stops)

    async def whole(self) -> dict[str, Any]:
        """ApiError if the run failed."""
        trajectory = await self._run.wait()
        if (error := failure_of(trajectory)) is not None:
            raise error
        deltas = [*self._deltas.of(self._run.events), *self._ending(trajectory)]
        return completion(self._head, message_of(deltas), finish_reason(trajectory), self._count(trajectory))

    async def stream(self) -> AsyncIterator[bytes]:
        """A run that fails before anything was sent raises its error, so that the client gets its status."""
        options = self._body.stream_options
        chunks = Chunks(self._head, include_usage=options is not None and options.include_usage is True)
        first = chunks.first()
        try:
            async with self._service.streaming(self._run), aclosing(self._run.follow()) as batches:
                async for batch in batches:
                    yield first + (self._written(batch, chunks) or HEARTBEAT)
                    first = b""
        except TimeoutError:
            error = ApiError(504, "The run took longer than the server allows.", code="timeout")
        except ApiError as raised:
            error = raised
        else:
            return
        if first:
            raise error
        yield error_event(error)

    def _written(self, batch: Sequence[RunEvent], chunks: Chunks) -> bytes:
        """The chunks of some events; ApiError if the last one is the end of a run that failed."""
        if len(batch) == 1 and isinstance(batch[0], ItemText):  # nearly always
            return chunks.delta(delta) if (delta := self._deltas.text(batch[0])) else b""
        ended = batch[-1].trajectory if batch and isinstance(batch[-1], RunEnded) else None
        if ended is not None and (error := failure_of(ended)) is not None:
            raise error
        written = [chunks.delta(delta) for delta in self._deltas.of(batch) if delta]
        if ended is not None:
            written += [chunks.delta(delta) for delta in self._ending(ended)]
            written.append(chunks.last(finish_reason(ended), self._count(ended)))
        return b"".join(written)

    def _ending(self, trajectory: Trajectory) -> list[Delta]:
        """What is known when the run is over: the call that the client has to make, or the sources of the answer."""
        if self._run.call is not None:
            return [{"tool_calls": tool_calls(self._run.call)}]
        cited = citations(self._deltas.content, trajectory.steps)
        return [{"annotations": cited_urls(cited)}] if cited else []

    def _count(self, trajectory: Trajectory) -> TokenCount:
        resumed = self._run.request.resume
        return tokens_of(trajectory, resumed.trajectory.usage if resumed is not None else None)


def _run_request(body: ChatBody, caller: Caller, service: Service) -> RunRequest:
    agent, asked = service.agent(body.model), read_messages(body.messages)
    check_readable(asked.files, agent.setting.tools, body.model, "messages")
    functions = () if body.tool_choice == "none" else tuple(map(_function, body.tools or ()))
    request = RunRequest(
        body.model,
        Task(id="chat", question=asked.question, conversation=asked.conversation, files=tuple(asked.files)),
        functions,
        temperature=body.temperature,
        top_p=body.top_p,
        max_output_tokens=body.max_output_tokens,
        effort=body.reasoning_effort,
        protocol="chat",
        store=body.store is True,
        metadata=body.metadata or {},
        attachments=asked.files,
    )
    return _continued(request, asked, caller, service) if asked.exchanges else request


def _continued(request: RunRequest, asked: ChatTurn, caller: Caller, service: Service) -> RunRequest:
    """With the run that waits for the result of the last call. If the server has forgotten it, the messages decide."""
    last = asked.exchanges[-1]
    known = service.suspended(last.call_id, caller)
    if last.name not in [function.name for function in request.functions]:
        message = f"`tools` does not offer the function {last.name!r}, whose result the messages bring."
        raise ApiError(400, message, code="invalid_value", param="tools")
    if known is None or known.agent != request.agent:
        known = _rebuilt(request, asked, service)
    return replace(request, task=known.trajectory.task, resume=known, result=Observation(last.result))


def _rebuilt(request: RunRequest, asked: ChatTurn, service: Service) -> Suspended:
    """The run up to the last call, as the messages have it."""
    setting, names = setting_for(request, service.agent(request.agent).setting)
    tags = {name: tag for tag, name in names.items()}
    profile, steps = setting.profile, list[Step]()
    for exchange in asked.exchanges:
        tag = tags.get(exchange.name)
        if tag is None:
            message = f"`tools` does not have the function {exchange.name!r}, which the messages call."
            raise ApiError(400, message, code="invalid_value", param="tools")
        if exchange.thought and profile.thought is not None:
            steps.append(Step(agent=profile.thought, text=exchange.thought))
        steps.append(Step(agent=tag, text=write(setting.tools[tag].shape, exchange.arguments)))
        steps.append(observation(exchange.result, meta={"ok": True}))
    trajectory = Trajectory(
        task=request.task,
        profile=profile.name,
        profile_hash=profile.hash,
        steps=tuple(steps[:-1]),
        stop=Stop.WAITING,
        usage=Usage(tool_calls=len(asked.exchanges)),
    )
    return Suspended(asked.exchanges[-1].call_id, "", request.agent, trajectory, "")


def _function(tool: FunctionTool) -> ClientFunction:
    function = tool.function
    return ClientFunction(function.name, function.description or "", function.parameters or {})
