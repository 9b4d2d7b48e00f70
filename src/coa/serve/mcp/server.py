"""The agent as an MCP server: the tool `ask` over a `Service`, on stdio or streamable HTTP.

The `mcp` package speaks the protocol, that of 2026-07-28 and the earlier ones with a handshake; here a call of `ask`
becomes a run. While the run goes on, the client gets a progress notification for each step. A client that cancels its
request or goes away takes the run with it. One that declares the Tasks extension gets a task instead (`tasks.py`).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
)

from coa.runtime.opening import task_of
from coa.serve.agents import configs_of
from coa.serve.api_error import ApiError
from coa.serve.caller import Caller
from coa.serve.config import ServeConfig
from coa.serve.mcp.asking import NAME, AskArguments, ask_tool, progress_line, read_arguments, result_of, tool_error
from coa.serve.mcp.tasks import CreatedTask, Tasks, takes_tasks
from coa.serve.request import RunRequest
from coa.serve.run import Run, RunStatus
from coa.serve.service import Service
from coa.trajectory import Task
from coa.version import __version__

_LOCAL: Final = Caller("")
"""Who calls over stdio: the process that started the server."""

Context = ServerRequestContext[Any, Any]


def mcp_server(config: ServeConfig, opened: asyncio.Future[Service]) -> Server[Any]:
    """An MCP server that asks the agents of a service, which may still be loading their models. It serves any number of
    connections."""
    tool = ask_tool({name: run.loaded_profile().about for name, run in configs_of(config).items()})
    asking = _Asking(config, opened)
    server: Server[Any] = Server(
        "coa",
        version=__version__,
        title="Chain of Agents",
        instructions=f"Call {NAME} with a whole question. To ask on, pass the run_id of the answer as follow_up.",
        get_tool_input_schema=lambda name: tool.input_schema if name == NAME else None,
    )

    async def list_tools(ctx: Context, params: PaginatedRequestParams) -> ListToolsResult:
        return ListToolsResult(tools=[tool])

    server.add_request_handler("tools/list", PaginatedRequestParams, list_tools)
    server.add_request_handler("tools/call", CallToolRequestParams, asking.call)
    asking.tasks.serve_on(server)
    return server


class _Asking:
    def __init__(self, config: ServeConfig, opened: asyncio.Future[Service]) -> None:
        self._config, self._opened = config, opened
        self.tasks = Tasks(opened, caller_of)

    async def call(self, ctx: Context, params: CallToolRequestParams) -> CallToolResult | CreatedTask:
        if params.name != NAME:
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name[:100]!r}; the tool of this server is {NAME}")
        as_task, caller, progress = takes_tasks(ctx), caller_of(ctx), _Progress(ctx)
        try:
            asked = read_arguments(params.arguments or {})
            service = await self._service(progress)
            run = await service.start(_request(service, asked, caller, as_task), caller)
        except ApiError as error:
            return tool_error(error.message)
        if as_task:
            return self.tasks.created(service, run)
        leaving = asyncio.create_task(_cancel_after(_left(ctx), run))
        try:
            async with service.streaming(run):
                await progress.follow(run)
        except TimeoutError:
            return tool_error("the run took longer than the server allows")
        finally:
            leaving.cancel()
        assert run.trajectory is not None
        return result_of(run.id, run.request.agent, run.trajectory)

    async def _service(self, progress: _Progress) -> Service:
        while not self._opened.done():
            await asyncio.wait({self._opened}, timeout=self._config.heartbeat_s)
            await progress.idle("opening the model")
        return self._opened.result()


class _Progress:
    """What the client of one call hears: the number of steps so far, and the last of them in words.

    A client that hears nothing for long gives up, so it hears something while a model thinks, too. The number has to
    grow with every notification: between two steps it gets closer to that of the next.
    """

    def __init__(self, ctx: Context) -> None:
        self._session, self._steps, self._silent = ctx.session, 0, 0

    async def follow(self, run: Run) -> None:
        """Until the run is over."""
        async for batch in run.follow():
            for line in filter(None, map(progress_line, batch)):
                self._steps, self._silent = self._steps + 1, 0
                await self._session.report_progress(self._steps, message=line)
            if not batch:
                await self.idle("waiting for a free place" if run.status is RunStatus.QUEUED else "working")

    async def idle(self, doing: str) -> None:
        self._silent += 1
        await self._session.report_progress(self._steps + self._silent / (self._silent + 1), message=doing)


def _request(service: Service, asked: AskArguments, caller: Caller, background: bool) -> RunRequest:
    if not asked.question.strip():
        raise ApiError(400, "`question` is empty", param="question")
    task, agent = task_of(asked.question), asked.agent
    if agent is not None and agent not in service.agents:
        names = ", ".join(service.agents)
        raise ApiError(404, f"there is no agent {agent[:100]!r}; the agents are: {names}", param="agent")
    if asked.follow_up is not None:
        task, before = _follow_up(service, asked.follow_up, asked.question, caller)
        agent = agent or before
    return RunRequest(
        agent=agent or next(iter(service.agents)),
        task=task,
        effort=asked.effort,
        previous=asked.follow_up,
        protocol="mcp",
        background=background,
    )


def _follow_up(service: Service, run_id: str, question: str, caller: Caller) -> tuple[Task, str]:
    """The task that continues a conversation, and the agent that it was with."""
    run = service.running(run_id, caller)
    if run is not None:
        if run.trajectory is None:
            raise ApiError(400, f"the run {run_id} has not ended yet; wait for its answer", param="follow_up")
        return run.trajectory.follow_up(question), run.request.agent
    stored = service.store.get(run_id, caller.key)
    if stored is None:
        raise ApiError(404, f"there is no run {run_id[:100]!r} to follow up; ask without follow_up", param="follow_up")
    return stored.trajectory.follow_up(question), stored.agent


async def _cancel_after(left: asyncio.Event, run: Run) -> None:
    await left.wait()
    await run.cancel()


def caller_of(ctx: Context) -> Caller:
    return _LOCAL if ctx.request is None else ctx.request.state.caller


def _left(ctx: Context) -> asyncio.Event:
    """Set when the connection of the request is gone. The `mcp` package lets the calls of clients with a handshake go
    on then, though nobody can get the result."""
    return asyncio.Event() if ctx.request is None else ctx.request.state.left
