"""A run that waits for its client, put together again from the items that the client sent back.

It is needed when the server does not know the run any more: it was not stored, has expired, or ran on another server.
The steps are then read from the items. They have no token ids, so the run can go on but not be trained on by RL.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence

import orjson
from pydantic import JsonValue

from coa.runtime.setting import Setting
from coa.serve.api_error import ApiError
from coa.serve.responses.body import FunctionCallItem, ReasoningItem
from coa.serve.responses.turn import TrailItem, output_text
from coa.trajectory import Kind, Step, Stop, Task, Trajectory, Usage, observation
from coa.trajectory.shapes import write


def rebuilt(task: Task, trail: Sequence[TrailItem], setting: Setting, names: Mapping[str, str]) -> Trajectory:
    """The run up to the call whose result is the last item of the trail. `names` are the client's tools by tag."""
    if not task.question.strip():
        raise ApiError(400, "The input has no question that the function was called for.", param="input")
    steps: list[Step] = []
    calls: dict[str, Step] = {}
    made = 0
    tags = {name: tag for tag, name in names.items()}
    for item in trail:
        if isinstance(item, ReasoningItem):
            found = _steps(item, setting)
            made += len(found) // 2
            steps += found
        elif isinstance(item, FunctionCallItem):
            calls[item.call_id] = _call(item, setting, tags)
        else:
            call = calls.get(item.call_id)
            if call is None:
                raise no_such_call(item.call_id)
            steps.append(call)
            made += 1
            if item is not trail[-1]:
                steps.append(observation(output_text(item), meta={"ok": True}))
    usage = Usage(tool_calls=made)
    return Trajectory(task=task, profile=setting.profile.name, steps=tuple(steps), stop=Stop.WAITING, usage=usage)


def no_such_call(call_id: str) -> ApiError:
    return ApiError(400, f"There is no function call with the id {call_id!r}.", code="no_such_call", param="input")


def _steps(item: ReasoningItem, setting: Setting) -> list[Step]:
    """A thought, or a tool call with its result; nothing for an item without text, or from another server."""
    packed = _unpacked(item.encrypted_content)
    agents = setting.profile.agents
    agent = packed.get("agent") or (item.coa.agent if item.coa is not None else None)
    text = "\n".join(part.text for part in item.summary)
    if isinstance(agent, str) and agent in setting.tools:
        text = str(packed.get("text", text.removeprefix(f"{agent}: ")))
        shown = "\n".join(part.text for part in item.content or [])
        result = str(packed.get("result", shown))
        ok = bool(packed.get("ok", item.coa.ok if item.coa is not None else True))
        return [Step(agent=agent, text=text), observation(result, meta={"ok": ok})]
    spoken = isinstance(agent, str) and agent in agents and agents[agent].kind in (Kind.THOUGHT, Kind.ROLE)
    role = agent if isinstance(agent, str) and spoken else setting.profile.thought
    text = str(packed.get("text", text))
    return [Step(agent=role, text=text)] if role is not None and text.strip() else []


def _unpacked(content: str | None) -> dict[str, JsonValue]:
    """What `output.packed` made; nothing for the content of another server."""
    try:
        found = orjson.loads(base64.urlsafe_b64decode(content or ""))
    except (binascii.Error, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _call(item: FunctionCallItem, setting: Setting, tags: Mapping[str, str]) -> Step:
    tag = tags.get(item.name)
    if tag is None:
        message = f"The function {item.name!r} was called, but `tools` does not have it."
        raise ApiError(400, message, code="invalid_value", param="tools")
    try:
        arguments = orjson.loads(item.arguments or "{}")
    except orjson.JSONDecodeError:
        arguments = None
    if not isinstance(arguments, dict):
        message = f"The arguments of the function call {item.call_id!r} are not a JSON object."
        raise ApiError(400, message, code="invalid_value", param="input")
    return Step(agent=tag, text=write(setting.tools[tag].shape, arguments))
