"""A tool that the client of a run answers: a function that it offers with its request, as in function calling.

The environment does not call it. When the model does, the run ends with `Stop.WAITING` and the call as its last step.
The client then runs its function, and `Chain.resume` continues with the result.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import JsonValue

from coa.errors import ToolError
from coa.tools.base import Observation, ToolContext
from coa.tools.schema import about_of, legal_name, shape_of
from coa.trajectory import OBSERVATION, Shape

_NAME: Final = re.compile(r"[A-Za-z0-9_./-]{1,128}")
_PREFIX: Final = "client"


@dataclass(frozen=True, slots=True)
class ClientTool:
    """`about` and `shape` describe it to the model, `name` is how the client calls it."""

    name: str
    about: str
    shape: Shape
    timeout_s: float = 0.0

    @classmethod
    def from_function(
        cls, name: str, description: str | None = None, parameters: Mapping[str, Any] | None = None
    ) -> ClientTool:
        """From a declaration of function calling; `parameters` is a JSON schema of an object, None for no arguments."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ToolError(
                f"{name!r} cannot be the name of a function",
                hint="use up to 128 letters, digits, underscores, hyphens, dots and slashes",
            )
        schema = {} if parameters is None else parameters
        try:
            if not isinstance(schema, Mapping):
                raise ValueError("its schema does not describe a JSON object")
            shape = shape_of(schema)
            about = about_of(description or "a function of the client", schema, shape)
        except (ValueError, TypeError, AttributeError) as error:  # a schema may have any form
            reason = str(error) if isinstance(error, ValueError) else "its schema cannot be read"
            raise ToolError(
                f"the function {name!r} cannot be used: {reason}",
                hint='give `parameters` as a JSON schema such as {"type": "object", "properties": {...}}',
            ) from error
        return cls(name, about, shape)

    async def call(self, arguments: Mapping[str, JsonValue], context: ToolContext) -> Observation:
        raise ToolError(f"the function {self.name!r} is the client's to call")


def client_tools(tools: Iterable[ClientTool], taken: Collection[str]) -> dict[str, ClientTool]:
    """The tools by tags that are free in a profile whose agents are `taken`, for `Setting.tools`.

    A function that has the name of an agent gets a tag of its own, such as `client_web_search`.
    """
    found: dict[str, ClientTool] = {}
    for tool in tools:
        if any(other.name == tool.name for other in found.values()):
            raise ToolError(f"the function {tool.name!r} is offered twice", hint="give each function its own name")
        found[legal_name(tool.name, _PREFIX, {*taken, *found, OBSERVATION})] = tool
    return found
