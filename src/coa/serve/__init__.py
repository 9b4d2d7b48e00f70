"""The agent behind an API: Open Responses, Chat Completions, MCP, and a web page."""
