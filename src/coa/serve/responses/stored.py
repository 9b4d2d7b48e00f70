"""Responses that are over: what the store keeps of them, and how a request follows one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson
from pydantic import TypeAdapter, ValidationError

from coa.serve.api_error import ApiError
from coa.serve.caller import Caller
from coa.serve.request import ClientFunction
from coa.serve.responses.attachments import Attachments
from coa.serve.responses.body import FilePart, FunctionCallItem, ImagePart, InputItem, MessageItem
from coa.serve.responses.output import Json
from coa.serve.responses.reply import PREFIX
from coa.serve.responses.turn import Turn
from coa.serve.service import Service
from coa.serve.store import StoredRun
from coa.trajectory import Message
from coa.trajectory.types import NO_ANSWER

_ITEM: TypeAdapter[InputItem] = TypeAdapter(InputItem)
_ITEMS: TypeAdapter[list[InputItem]] = TypeAdapter(list[InputItem])


@dataclass(frozen=True, slots=True)
class StoredResponse:
    run: StoredRun
    response: Json
    input: Sequence[Any]
    files: int
    """Number of files in the conversation up to here."""
    begun: Json
    """The fields of its `RunRequest` with which its run goes on, if it is continued."""

    @property
    def call(self) -> Json | None:
        """The function call that it ended with."""
        last = self.response["output"][-1] if self.response["output"] else {}
        return cast(Json, last) if last.get("type") == "function_call" else None


def run_id_of(response_id: str) -> str | None:
    return response_id.removeprefix(PREFIX) if response_id.startswith(PREFIX) else None


def find(service: Service, caller: Caller, run_id: str | None) -> StoredResponse | None:
    run = service.store.get(run_id, caller.key) if run_id else None
    if run is None or run.protocol != "responses":
        return None
    body = orjson.loads(run.body)
    begun = body["begun"]
    begun["functions"] = tuple(ClientFunction(**function) for function in begun["functions"])
    return StoredResponse(run, body["response"], body["input"], body["files"], begun)


def turn_after(service: Service, caller: Caller, before: StoredResponse) -> Turn:
    """The conversation up to the end of a response. Its `instructions` were for that response only."""
    trajectory = before.run.trajectory
    task, answer = trajectory.task, trajectory.answer or ""
    said = list(task.conversation[1:] if before.response["instructions"] else task.conversation)
    turn = Turn(said, task.question, attachments=attachments_of(service, caller, before))
    if (call := before.call) is not None:
        turn.trail.append(FunctionCallItem.model_validate(call))
    else:
        given = answer if answer.strip() else NO_ANSWER
        turn.conversation += [Message(role="user", content=task.question), Message(role="assistant", content=given)]
        turn.question = ""
    return turn


def attachments_of(service: Service, caller: Caller, last: StoredResponse) -> Attachments:
    """The files of a conversation, with the names that they had."""
    found = Attachments()
    chain: list[StoredResponse] = []
    response: StoredResponse | None = last if last.files else None
    while response is not None:
        chain.append(response)
        response = find(service, caller, response.run.previous)
    for response in reversed(chain):
        for item in _ITEMS.validate_python(response.input):
            if isinstance(item, MessageItem) and isinstance(item.content, list):
                for part in item.content:
                    if isinstance(part, ImagePart | FilePart):
                        found.add(part, "input")
    return found


def item_by_id(service: Service, caller: Caller, item_id: str) -> InputItem | None:
    """An item of a stored response. Its id contains that of the run."""
    _, _, rest = item_id.partition("_")
    response = find(service, caller, rest.rpartition("_")[0])
    items = response.response["output"] if response is not None else []
    item = next((item for item in items if item["id"] == item_id), None)
    try:
        return _ITEM.validate_python(item) if item is not None else None
    except ValidationError:
        return None


def input_items(response: StoredResponse) -> list[Json]:
    """The input as a list of items that have ids."""
    items = []
    for number, item in enumerate(response.input):
        named = {"type": "message" if "role" in item else "item_reference", **item}
        if named["type"] == "message":
            named = {"status": "completed", **named}
            if isinstance(named["content"], str):
                kind = "output_text" if named["role"] == "assistant" else "input_text"
                named["content"] = [{"type": kind, "text": named["content"]}]
        items.append({"id": f"in_{response.run.id}_{number}", **named})
    return items


def missing(response_id: str, param: str | None = None) -> ApiError:
    if param is not None:
        message = f"The previous response {response_id!r} was not found."
        return ApiError(404, message, code="previous_response_not_found", param=param)
    return ApiError(404, f"The response {response_id!r} was not found.", code="response_not_found")
