"""MCP servers as tool agents: every tool of a server becomes a tool of the run."""

from coa.tools.mcp.tools import McpTool, open_mcp

__all__ = ["McpTool", "open_mcp"]
