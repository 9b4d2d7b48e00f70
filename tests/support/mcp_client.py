"""The client's side of the Tasks extension, which the `mcp` package leaves to extensions; and models to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.session import ClientSession
from mcp_types import CallToolResult, EmptyResult, Request, RequestParams, Result

from coa.models.base import Context, Finish, Generation, OnText, Sampling
from coa.trajectory import Usage

EXTENSION = "io.modelcontextprotocol/tasks"


class TaskParams(RequestParams):
    task_id: str


class UpdateParams(TaskParams):
    input_responses: dict[str, Any]


class GetTask(Request[TaskParams, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    name_param = "taskId"


class CancelTask(Request[TaskParams, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
    name_param = "taskId"


class UpdateTask(Request[UpdateParams, Literal["tasks/update"]]):
    method: Literal["tasks/update"] = "tasks/update"
    name_param = "taskId"


class TaskState(Result):
    task_id: str
    status: str
    status_message: str | None = None
    created_at: str
    last_updated_at: str
    ttl_ms: int | None
    poll_interval_ms: int
    result: dict[str, Any] | None = None


class CreatedTask(TaskState):
    result_type: Literal["task"]


class TaskClient(ClientExtension):
    """Takes tasks, and asks for their state until they are done."""

    identifier = EXTENSION

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=self._resolve)]

    async def _resolve(self, created: CreatedTask, context: ClaimContext) -> CallToolResult:
        while (state := await get_task(context.session, created.task_id)).status == "working":
            await asyncio.sleep(0.02)
        return CallToolResult.model_validate(state.result)


async def get_task(session: ClientSession, task_id: str) -> TaskState:
    return await session.send_request(GetTask(params=TaskParams(task_id=task_id)), TaskState)


async def cancel_task(session: ClientSession, task_id: str) -> EmptyResult:
    return await session.send_request(CancelTask(params=TaskParams(task_id=task_id)), EmptyResult)


async def update_task(session: ClientSession, task_id: str) -> EmptyResult:
    return await session.send_request(UpdateTask(params=UpdateParams(task_id=task_id, input_responses={})), EmptyResult)


class Thinker:
    """Answers at once, but thinks until it is cancelled about a question with the word `forever`."""

    name, tokenizer = "thinker", None

    def __init__(self) -> None:
        self.thinking = self.cancelled = 0

    async def generate(
        self, context: Context, *, stop: Sequence[str], sampling: Sampling, on_text: OnText = None
    ) -> Generation:
        asked = context.messages[-1].content
        if "forever" not in asked:
            return Generation(
                f"<answer>{asked.upper()}</answer>", Finish.END, Usage(model_calls=1, completion_tokens=3)
            )
        if on_text is not None:
            on_text("<think>This takes long.</think>\n<plan>")
        self.thinking += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.thinking -= 1
            self.cancelled += 1
        raise AssertionError

    async def close(self) -> None:
        pass
