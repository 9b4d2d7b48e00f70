"""The response object of one run, at any moment of it, and the stream of its events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson

from coa.serve.agents import ServedAgent
from coa.serve.events import RunEnded, RunEvent
from coa.serve.responses.body import AllowedTools, CreateResponse, FunctionChoice
from coa.serve.responses.output import Json, Output
from coa.serve.run import Run, RunStatus
from coa.serve.service import Service
from coa.serve.streams import DONE, HEARTBEAT
from coa.serve.usage import tokens_of
from coa.trajectory import Stop, Trajectory

PREFIX = "resp_"


def settings_of(body: CreateResponse, agent: ServedAgent) -> Json:
    """The settings of the request as the response repeats them, with the values that hold where it gave none."""
    sampling, reasoning = agent.setting.sampling, body.reasoning
    choice = body.tool_choice
    return {
        "model": body.model,
        "previous_response_id": body.previous_response_id,
        "instructions": body.instructions,
        "tools": [
            {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters,
             "strict": tool.strict if tool.strict is not None else False}
            for tool in body.tools or []
        ],
        "tool_choice": _choice(choice) if isinstance(choice, FunctionChoice | AllowedTools) else choice or "auto",
        "truncation": body.truncation or "disabled",
        "parallel_tool_calls": body.parallel_tool_calls if body.parallel_tool_calls is not None else True,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "temperature": sampling.temperature if body.temperature is None else body.temperature,
        "top_p": sampling.top_p if body.top_p is None else body.top_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "reasoning": {
            "effort": reasoning.effort if reasoning is not None else None,
            "summary": (reasoning.summary or reasoning.generate_summary) if reasoning is not None else None,
        },
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "store": body.store is not False,
        "background": bool(body.background),
        "service_tier": "default",
        "metadata": body.metadata or {},
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
    }  # fmt: skip


CONTINUED = (
    "instructions", "tools", "tool_choice", "temperature", "top_p", "reasoning", "max_output_tokens", "max_tool_calls",
)  # fmt: skip
"""Settings of a response that are kept when its run is continued with the output of a function call."""
KEPT = ("functions", "temperature", "top_p", "effort", "max_output_tokens", "max_tool_calls")
"""The same in a `RunRequest`."""


def _choice(choice: FunctionChoice | AllowedTools) -> Json:
    if isinstance(choice, FunctionChoice):
        return {"type": "function", "name": choice.name}
    tools = [{"type": "function", "name": tool.name} for tool in choice.tools]
    return {"type": "allowed_tools", "tools": tools, "mode": choice.mode or "auto"}


class Reply:
    """How one request is answered: what of it the response repeats, and what of it is stored with the run."""

    def __init__(self, settings: Json, stored_input: Sequence[Any], *, portable: bool, files: int) -> None:
        self.settings, self.input, self.portable, self.files = settings, stored_input, portable, files
        self._final: Json | None = None

    def stored(self, run: Run) -> bytes:
        """What is kept with the run: the response, and the input for the next turn."""
        return self._record(run, self.response(run))

    def if_lost(self, run: Run) -> bytes:
        """What is kept while the run goes on, for the case that the server dies."""
        error = {"code": "server_error", "message": "The server stopped before the run was over."}
        response = self._resource(run, "failed", []) | {"error": error}
        return self._record(run, response)

    def response(self, run: Run) -> Json:
        """The response as it is now."""
        if self._final is not None:
            return self._final
        output = self._output(run, quiet=True)
        for event in run.events:
            output.feed(event)
        if run.trajectory is None:
            status = "queued" if run.status is RunStatus.QUEUED else "in_progress"
            return self._resource(run, status, output.snapshot())
        if not (run.events and isinstance(run.events[-1], RunEnded)):  # it is being stored
            output.feed(RunEnded(run.trajectory))
        return self._finished(run, run.trajectory, output)

    async def stream(self, service: Service, run: Run, after: int = -1) -> AsyncIterator[bytes]:
        """The events behind number `after`, several in one piece where several have happened."""
        output, number = self._output(run), -1

        def framed(events: Sequence[Json]) -> bytes:
            nonlocal number
            parts = []
            for event in events:
                number += 1
                if number > after:
                    named = event["type"]
                    data = orjson.dumps({"type": named, "sequence_number": number, **event})
                    parts.append(b"event: %b\ndata: %b\n\n" % (named.encode(), data))
            return b"".join(parts)

        def rendered(batch: Sequence[RunEvent]) -> list[Json]:
            events: list[Json] = []
            for event in batch:
                events += output.feed(event)
                if isinstance(event, RunEnded):
                    response = self._finished(run, event.trajectory, output)
                    events.append({"type": _LAST.get(response["status"], "response.completed"), "response": response})
            return events

        begun = self._resource(run, "in_progress", [])
        opening = framed([{"type": f"response.{what}", "response": begun} for what in ("created", "in_progress")])
        seen = 0
        try:
            async with service.streaming(run):
                if opening:
                    yield opening
                async for batch in run.follow():
                    seen += len(batch)
                    chunk = framed(rendered(batch)) if batch else HEARTBEAT
                    if chunk:
                        yield chunk
        except TimeoutError:  # the stream has been open for as long as it may; its run has been stopped
            yield framed(rendered(run.events[seen:]))
        yield DONE

    # ---- parts

    def _record(self, run: Run, response: Json) -> bytes:
        begun = {name: getattr(run.request, name) for name in KEPT}
        return orjson.dumps({"response": response, "input": self.input, "files": self.files, "begun": begun})

    def _output(self, run: Run, *, quiet: bool = False) -> Output:
        resumed = run.request.resume
        earlier = resumed.trajectory.steps if resumed is not None else ()
        return Output(run.id, call=lambda: run.call, portable=self.portable, earlier=earlier, quiet=quiet)

    def _finished(self, run: Run, trajectory: Trajectory, output: Output) -> Json:
        if self._final is None:
            status, reason = _status(trajectory, run)
            self._final = self._resource(run, status, output.items, trajectory, reason)
        return self._final

    def _resource(
        self, run: Run, status: str, items: list[Json], trajectory: Trajectory | None = None, reason: str | None = None
    ) -> Json:
        failure = trajectory.failure if trajectory is not None else None
        found: Json = {
            "id": PREFIX + run.id,
            "object": "response",
            "created_at": int(run.created),
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "incomplete_details": {"reason": reason} if reason is not None else None,
            "error": {"code": "server_error", "message": failure.message} if failure is not None else None,
            "output": items,
            "usage": _usage(run, trajectory) if trajectory is not None else None,
            **self.settings,
        }
        if trajectory is not None:
            spent = trajectory.usage
            found["coa"] = {
                "stop": str(trajectory.stop),
                "seconds": round(spent.seconds, 3),
                "model_calls": spent.model_calls,
                "tool_calls": spent.tool_calls,
                "cost": spent.cost,
            }
        return found


_LAST = {
    "incomplete": "response.incomplete", "cancelled": "response.incomplete", "failed": "response.failed",
}  # fmt: skip
"""The last event of a stream. The standard has none for a run that was cancelled; its response says so."""


def _status(trajectory: Trajectory, run: Run) -> tuple[str, str | None]:
    """The status, and why it is incomplete. A run that came to an answer within the client's own limit is complete,
    also where one of the agent's budgets made it answer; `coa.stop` says which."""
    stop = trajectory.stop
    if stop is Stop.FAILED:
        return "failed", None
    if stop is Stop.INTERRUPTED:
        return "cancelled", "cancelled"
    if stop is Stop.TOKENS and run.request.max_output_tokens is not None:
        return "incomplete", "max_output_tokens"
    if stop is Stop.WAITING or (trajectory.answer or "").strip():
        return "completed", None
    return "incomplete", "max_output_tokens" if stop in (Stop.TOKENS, Stop.CONTEXT) else str(stop)


def _usage(run: Run, trajectory: Trajectory) -> Json:
    resumed = run.request.resume
    tokens = tokens_of(trajectory, resumed.trajectory.usage if resumed is not None else None)
    return {
        "input_tokens": tokens.read,
        "input_tokens_details": {"cached_tokens": tokens.cached},
        "output_tokens": tokens.written,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": tokens.total,
    }
