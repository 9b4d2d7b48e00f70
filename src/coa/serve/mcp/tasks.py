"""The Tasks extension of MCP (`io.modelcontextprotocol/tasks`, 2026-07-28), for runs that outlast a request.

A client that declares the extension gets a handle from `tools/call` at once and asks for the state with `tasks/get`.
The run goes on when the client disconnects, and `tasks/cancel` ends it. The `mcp` package carries the messages, but it
has neither the types nor the methods of the extension, so they are here.

The id of a task is the id of its run, and what a finished task returns is made from the stored run: such a task
survives a restart of the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Literal

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    EmptyResult,
    RequestParams,
    Result,
    TaskStatus,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import JsonValue

from coa.serve.caller import Caller
from coa.serve.mcp.asking import progress_line, result_of
from coa.serve.run import Run, RunStatus
from coa.serve.service import Service
from coa.serve.store import StoredRun
from coa.trajectory import Stop, Trajectory

EXTENSION: Final = "io.modelcontextprotocol/tasks"
_POLL_MS: Final = 1000
"""How often a client should ask for the state of a task."""

Context = ServerRequestContext[Any, Any]


class TaskParams(RequestParams):
    """Of `tasks/get` and `tasks/cancel`."""

    task_id: str


class TaskUpdateParams(TaskParams):
    """Of `tasks/update`."""

    input_responses: dict[str, Any]


class TaskHandle(Result):
    task_id: str
    status: TaskStatus
    status_message: str | None = None
    created_at: str
    last_updated_at: str
    ttl_ms: int
    poll_interval_ms: int = _POLL_MS


class CreatedTask(TaskHandle):
    """What `tools/call` returns instead of the tool's result."""

    result_type: Literal["task"] = "task"


class TaskState(TaskHandle):
    """What `tasks/get` returns."""

    result: dict[str, Any] | None = None
    """The tool's, once the task is completed."""
    result_type: Literal["complete"] = "complete"


def takes_tasks(ctx: Context) -> bool:
    """Whether the client of this request declares the extension. Earlier versions of MCP have no extensions."""
    capabilities = ctx.session.client_capabilities
    extensions = capabilities.extensions if capabilities is not None else None
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in (extensions or {})


class Tasks:
    """The methods of the extension over the runs of a service."""

    def __init__(self, opened: asyncio.Future[Service], caller_of: Callable[[Context], Caller]) -> None:
        self._opened, self._caller_of = opened, caller_of

    def serve_on(self, server: Server[Any]) -> None:
        server.extensions[EXTENSION] = {}
        server.add_request_handler("tasks/get", TaskParams, self._get)
        server.add_request_handler("tasks/update", TaskUpdateParams, self._update)
        server.add_request_handler("tasks/cancel", TaskParams, self._cancel)

    def created(self, service: Service, run: Run) -> CreatedTask:
        """The handle for a run that has been started in the background."""
        at = _time(run.created)
        return CreatedTask(task_id=run.id, status="working", created_at=at, last_updated_at=at, ttl_ms=_ttl_ms(service))

    async def _get(self, ctx: Context, params: TaskParams) -> TaskState:
        service, run, stored = await self._find(ctx, params)
        if run is not None and run.trajectory is None:
            return _state(service, run.id, run.created, run.updated, "working", _doing(run))
        if run is not None and run.trajectory is not None:
            return _ended(service, run.id, run.request.agent, run.created, run.trajectory)
        assert stored is not None
        return _ended(service, stored.id, stored.agent, stored.created, stored.trajectory)

    async def _update(self, ctx: Context, params: TaskUpdateParams) -> EmptyResult:
        """A task never asks its client for input, so there is nothing that responses could belong to."""
        await self._find(ctx, params)
        return EmptyResult()

    async def _cancel(self, ctx: Context, params: TaskParams) -> EmptyResult:
        _, run, _ = await self._find(ctx, params)
        if run is not None:
            await run.cancel()
        return EmptyResult()

    async def _find(self, ctx: Context, params: TaskParams) -> tuple[Service, Run | None, StoredRun | None]:
        """The run of a task, in memory or from the store. Raises where there is neither."""
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method)
        if not takes_tasks(ctx):
            needed: JsonValue = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
            raise MCPError(
                MISSING_REQUIRED_CLIENT_CAPABILITY, f"{ctx.method} requires the client capability {EXTENSION}", needed
            )
        service, caller = await asyncio.shield(self._opened), self._caller_of(ctx)
        run = service.running(params.task_id, caller)
        stored = service.store.get(params.task_id, caller.key) if run is None else None
        if run is None and stored is None:
            raise MCPError(INVALID_PARAMS, f"there is no task {params.task_id[:100]!r}; it may have expired")
        return service, run, stored


def _ended(service: Service, run_id: str, agent: str, created: float, trajectory: Trajectory) -> TaskState:
    at = created + trajectory.usage.seconds
    if trajectory.stop is Stop.INTERRUPTED:
        return _state(service, run_id, created, at, "cancelled", "the run was cancelled")
    result = result_of(run_id, agent, trajectory).model_dump(by_alias=True, mode="json", exclude_none=True)
    return _state(service, run_id, created, at, "completed", trajectory.stop.words, result)


def _state(
    service: Service,
    run_id: str,
    created: float,
    updated: float,
    status: TaskStatus,
    message: str,
    result: dict[str, Any] | None = None,
) -> TaskState:
    return TaskState(
        task_id=run_id,
        status=status,
        status_message=message,
        created_at=_time(created),
        last_updated_at=_time(updated),
        ttl_ms=_ttl_ms(service),
        result=result,
    )


def _ttl_ms(service: Service) -> int:
    return round(service.config.store_days * 86_400_000)


def _doing(run: Run) -> str:
    """What a run that is not over does: its last step."""
    if run.status is RunStatus.QUEUED:
        return "waiting for a free place"
    return next((line for event in reversed(run.events) if (line := progress_line(event))), "started")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
