"""MCP servers as tool agents: every tool of a server becomes a tool of the run. `--mcp` opens them with `open_mcp`."""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import orjson
from mcp.types import AudioContent, CallToolResult, EmbeddedResource, ImageContent, ResourceLink, TextContent
from mcp.types import Tool as Declared
from pydantic import JsonValue

from coa.errors import ToolError
from coa.tools.base import Observation, Tool, ToolContext, veiled
from coa.tools.mcp.server import McpFailed, McpServer, McpSettings
from coa.tools.schema import about_of, legal_name, shape_of
from coa.trajectory import Shape

log = logging.getLogger(__name__)

PASSED_ON: Final = "COA_MCP_PASS"
"""Names of environment variables, separated by commas, that are passed to a started server."""
TOKEN: Final = "COA_MCP_TOKEN"
"""Sent as the bearer token to the one server that is given by URL."""


class McpTool:
    uses = ()

    def __init__(self, server: McpServer, declared: Declared, shape: Shape) -> None:
        self._server = server
        self._name = declared.name
        self.shape = shape
        self.about = about_of(declared.description, declared.input_schema, shape)
        self.settings: JsonValue = {"mcp": veiled(server.where), "tool": declared.name}

    @property
    def timeout_s(self) -> float:
        return self._server.settings.start_s + self._server.settings.call_s + 20.0

    async def call(self, arguments: Mapping[str, JsonValue], context: ToolContext) -> Observation:
        try:
            result = await self._server.call(self._name, arguments)
        except McpFailed as error:
            return Observation(f"error: {error}", ok=False, meta={"error": "mcp"})
        text = _text(result) or "(the tool gave no output)"
        return Observation(f"error: {text}" if result.is_error else text, ok=not result.is_error)


@asynccontextmanager
async def open_mcp(
    places: Sequence[str], *, taken: Collection[str] = (), environment: Mapping[str, str] | None = None
) -> AsyncIterator[dict[str, Tool]]:
    """Every tool of every server, by tag; `taken` are tags that are in use. The servers are closed at the end."""
    settings = _settings(places, environment or {})
    servers = [McpServer(place, settings) for place in places]
    tools: dict[str, Tool] = {}
    try:
        for server in servers:
            for declared in await server.tools():
                try:
                    shape = shape_of(declared.input_schema)
                except ValueError as error:
                    log.warning("the tool %s of %s is left out: %s", declared.name, server.where, error)
                    continue
                name = legal_name(declared.name, server.name, {*taken, *tools})
                tools[name] = McpTool(server, declared, shape)
        yield tools
    finally:
        await asyncio.gather(*(server.close() for server in servers))


def _settings(places: Sequence[str], environment: Mapping[str, str]) -> McpSettings:
    for place in places:
        try:
            empty = not shlex.split(place)
        except ValueError as error:
            raise ToolError(f"--mcp {place!r}: {error}", hint="quote the command as a shell would need it") from error
        if empty:
            raise ToolError("--mcp is empty", hint='--mcp "command arguments", or --mcp URL')
    token = environment.get(TOKEN, "")
    if token and sum(place.startswith(("http://", "https://")) for place in places) > 1:
        raise ToolError(f"{TOKEN} is for one server, and several are given by URL", hint=f"unset {TOKEN}")
    names = [name.strip() for name in environment.get(PASSED_ON, "").split(",") if name.strip()]
    if absent := [name for name in names if name not in environment]:
        raise ToolError(f"{PASSED_ON} names {absent[0]}, which is not set", hint=f"set {absent[0]}")
    return McpSettings(environment={name: environment[name] for name in names}, token=token)


def _text(result: CallToolResult) -> str:
    parts = []
    for block in result.content:
        match block:
            case TextContent():
                parts.append(block.text)
            case ImageContent() | AudioContent():
                parts.append(f"[{block.type}, {block.mime_type}, not shown]")
            case ResourceLink():
                parts.append(f"[resource {block.uri}]")
            case EmbeddedResource():
                parts.append(getattr(block.resource, "text", None) or f"[resource {block.resource.uri}, not text]")
    if not parts and result.structured_content is not None:
        parts.append(orjson.dumps(result.structured_content).decode())
    return "\n".join(parts).strip()
