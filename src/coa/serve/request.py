"""What a protocol asks the service for: a `RunRequest`, whatever the wire format was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from coa.errors import CoaError
from coa.runtime.setting import Setting
from coa.serve.api_error import ApiError
from coa.tools import Observation
from coa.tools.client import ClientTool, client_tools
from coa.trajectory import Limits, Task, Trajectory

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: Final[Mapping[str, float]] = {
    "none": 0.0, "minimal": 0.125, "low": 0.25, "medium": 0.5, "high": 1.0, "xhigh": 1.0, "max": 1.0,
}  # fmt: skip
"""The share of the agent's budgets (steps, tool calls, tokens) that an effort allows. `none` allows no tool calls."""
_FEWEST: Final = {"steps": 8, "model_tokens": 256}
"""What every effort leaves, so that there is room for an answer."""


@dataclass(frozen=True, slots=True)
class ClientFunction:
    """A function tool that the client offered."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClientCall:
    """A call that the client has to make."""

    id: str
    name: str
    arguments: Mapping[str, Any]


def call_in_words(name: str, arguments: str, result: str) -> str:
    """A client's tool call of an earlier turn, for the model to read. `arguments` is JSON."""
    return f"I called {name} with {arguments}. It returned:\n{result}"


@dataclass(frozen=True, slots=True)
class Suspended:
    """A run that waits for the result of a client's tool."""

    call: str
    """Id of the call."""
    run: str
    """Id of the run that made it."""
    agent: str
    trajectory: Trajectory
    conversation: str


@dataclass(frozen=True, slots=True)
class RunRequest:
    agent: str
    """The model name under which it is served."""
    task: Task
    functions: tuple[ClientFunction, ...] = ()
    """Tools of the client's."""
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    """Most tokens that the model writes in this run."""
    max_tool_calls: int | None = None
    effort: str | None = None
    """One of `EFFORTS`."""
    previous: str | None = None
    """Id of the run that this one follows in a conversation."""
    resume: Suspended | None = None
    """A run to continue, with `result`."""
    result: Observation | None = None
    """What the client's tool returned."""
    protocol: str = "responses"
    store: bool = True
    """Whether to keep the run for follow-ups and for `GET`."""
    background: bool = False
    """Whether the run goes on when its client goes away."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    attachments: Mapping[str, bytes] = field(default_factory=dict)
    """Files that came with the question; the task lists their names."""


def setting_for(request: RunRequest, setting: Setting) -> tuple[Setting, dict[str, str]]:
    """The agent's setting with what the request changes, and the names of the client's tools by their tags."""
    tools = _client_tools(request.functions, setting)
    sampling = setting.sampling
    if request.temperature is not None:
        sampling = replace(sampling, temperature=request.temperature)
    if request.top_p is not None:
        sampling = replace(sampling, top_p=request.top_p)
    limits = _limits(request, setting.limits or setting.profile.limits)
    names = {tag: tool.name for tag, tool in tools.items()}
    used = {**setting.tools, **tools}
    return replace(setting, tools=used, sampling=sampling, limits=limits, attachments=request.attachments), names


def _client_tools(functions: tuple[ClientFunction, ...], setting: Setting) -> dict[str, ClientTool]:
    """The client's tools by their tags."""
    made = []
    for number, function in enumerate(functions):
        try:
            made.append(ClientTool.from_function(function.name, function.description, dict(function.parameters)))
        except CoaError as error:
            raise ApiError(400, str(error), code="invalid_function", param=f"tools[{number}]") from error
    try:
        return client_tools(made, {*setting.profile.tags, *setting.tools})
    except CoaError as error:
        raise ApiError(400, str(error), code="invalid_function", param="tools") from error


def _limits(request: RunRequest, limits: Limits) -> Limits:
    """Never more than the agent's own."""
    found = limits.model_dump()
    if request.effort is not None:
        if request.effort not in EFFORTS:
            raise ApiError(
                400, f"there is no effort {request.effort!r}; use one of {', '.join(EFFORTS)}", param="reasoning.effort"
            )
        share = EFFORTS[request.effort]
        for name in ("steps", "tool_calls", "model_tokens"):
            found[name] = min(max(int(found[name] * share), _FEWEST.get(name, 0)), found[name])
        if share:
            found["tool_calls"] = min(max(found["tool_calls"], 1), limits.tool_calls)
    if request.max_output_tokens is not None:
        found["model_tokens"] = min(found["model_tokens"], max(request.max_output_tokens, 1))
    if request.max_tool_calls is not None:
        found["tool_calls"] = min(found["tool_calls"], max(request.max_tool_calls, 0))
    return Limits.model_validate(found)
