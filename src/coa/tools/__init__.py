"""Tool agents: they answer when the model calls. One file per tool; registry.py finds them by name."""

from coa.tools.base import Observation, Part, Tool, ToolContext, being_cancelled, call_tool, close_tool
from coa.tools.client import ClientTool, client_tools

__all__ = [
    "ClientTool",
    "Observation",
    "Part",
    "Tool",
    "ToolContext",
    "being_cancelled",
    "call_tool",
    "client_tools",
    "close_tool",
]
