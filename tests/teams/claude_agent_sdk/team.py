"""The manager of the Claude Agent SDK with two sub-agents, which share one server of tools.

The first hand-over names a sub-agent that does not exist. The SDK runs Claude Code, which keeps the session as JSONL in
its folder of projects; the sessions of sub-agents are in files of their own.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

from claude_agent_sdk import AgentDefinition, ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, query, tool

from teams import common

MODEL = "scripted-wrong-name"


@tool("web_search", "Search the web.", {"query": str})
async def web_search(given: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": common.web_search(given["query"])}]}


@tool("calculator", "Calculate the value of an arithmetic expression.", {"expression": str})
async def calculator(given: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": common.calculator(given["expression"])}]}


def options(folder: str) -> ClaudeAgentOptions:
    searching, calculating = "mcp__office__web_search", "mcp__office__calculator"
    return ClaudeAgentOptions(
        system_prompt=common.MANAGER,
        model=MODEL,
        agents={
            "researcher": AgentDefinition(common.RESEARCHER_DOES, common.RESEARCHER, [searching], model=MODEL),
            "analyst": AgentDefinition(common.ANALYST_DOES, common.ANALYST, [calculating], model=MODEL),
        },
        mcp_servers={"office": create_sdk_mcp_server("office", tools=[web_search, calculator])},
        allowed_tools=["Task", "Agent", searching, calculating],
        tools=["Task"],
        setting_sources=[],
        permission_mode="bypassPermissions" if os.getuid() else "default",
        cwd=folder,
        env={"CLAUDE_CONFIG_DIR": f"{folder}/config", "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1",
             "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1"},
    )  # fmt: skip


async def run(folder: str) -> str:
    answer = ""
    async for message in query(prompt=common.question(), options=options(folder)):
        if isinstance(message, ResultMessage):
            answer = message.result or ""
    return answer


def keep(folder: str) -> None:
    """The session's files, without the names of folders."""
    (project,) = (Path(folder) / "config" / "projects").iterdir()
    for file in project.rglob("*"):
        if file.is_file():
            kept = common.traces() / "session" / file.relative_to(project)
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(file.read_text().replace(folder, "/home/user"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        answer = asyncio.run(run(folder))
        keep(folder)
    print(answer)
