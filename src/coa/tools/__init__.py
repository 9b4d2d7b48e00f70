"""Tool agents: what answers when the model calls. One file per tool."""

from coa.tools.base import Observation, Tool, ToolContext, being_cancelled, call_tool

__all__ = ["Observation", "Tool", "ToolContext", "being_cancelled", "call_tool"]
