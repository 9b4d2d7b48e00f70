"""The agent as an MCP server, for assistants and other programs that speak the Model Context Protocol."""

from coa.serve.mcp.http import routes
from coa.serve.mcp.stdio import serve_mcp

__all__ = ["routes", "serve_mcp"]
