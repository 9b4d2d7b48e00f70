"""From `module:factory` to a team, and from a server's URL to the model that the factory gets.

The contract: `factory(model)` returns a smolagents agent that was built for this call (agents keep state; models and
tools may be shared). A factory may also take no argument, when it brings its own models, or `(model, task)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from coa.errors import RecordingError
from coa.models.server import key_for
from coa.trajectory.types import Task


@dataclass(frozen=True, slots=True)
class Team:
    """What a worker needs to build teams."""

    factory: str
    """`package.module:function` or `file.py:function`."""
    url: str | None = None
    model_name: str | None = None
    api_key_env: str = "COA_API_KEY"
    temperature: float | None = None
    max_tokens: int | None = None
    arguments: tuple[tuple[str, JsonValue], ...] = ()
    """Keyword arguments of the factory, for teams that come with coa."""
    timeless: bool = False
    """Leave out times, for teams that always do the same: then the same run gives the same file."""


def build(factory: Callable[..., Any], model: Any, task: Task) -> Any:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [p for p in inspect.signature(factory).parameters.values() if p.kind in kinds]
    needed = [p for p in taken if p.default is inspect.Parameter.empty]
    if len(needed) > 2:
        names = ", ".join(parameter.name for parameter in needed)
        raise RecordingError(f"the factory wants {names}", hint="let it take the model, or the model and the task")
    if not taken:
        return factory()
    wants_task = len(needed) == 2 or (len(taken) > 1 and taken[1].name == "task")
    return factory(model, task) if wants_task else factory(model)


def server_model(team: Team) -> Any:
    """The client that smolagents has for OpenAI-compatible servers; None where no server is named."""
    if team.url is None:
        return None
    from smolagents import OpenAIModel

    sampling = {"temperature": team.temperature, "max_tokens": team.max_tokens}
    return OpenAIModel(
        model_id=team.model_name,
        api_base=team.url.rstrip("/").removesuffix("/v1") + "/v1",
        api_key=key_for(team.url, team.api_key_env) or "none",  # the client refuses to start without one
        **{name: value for name, value in sampling.items() if value is not None},
    )
