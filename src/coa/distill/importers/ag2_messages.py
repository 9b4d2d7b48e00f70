"""The history of a group chat of AG2 0.x, and of AutoGen 0.2 before it (`ChatResult.chat_history`), as chat messages.

Each message has the name of the agent that wrote it. Its role is the one that it has in the eyes of another agent, so
it says little: the question may be an assistant's and an answer a user's. Results of tools stand together in one
message, under the name of the agent that carried them out, and a model that wrote nothing is quoted as "None".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]


def is_ag2(messages: list[Any]) -> bool:
    return any(isinstance(message, Mapping) and isinstance(message.get("tool_responses"), list) for message in messages)


def from_ag2(messages: list[Any]) -> list[Any]:
    """The messages in OpenAI's form; any other list as it is."""
    if not is_ag2(messages):
        return messages
    found: list[Any] = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            found.append(message)
        elif isinstance(message.get("tool_responses"), list):
            found += [{**row, "role": "tool"} for row in message["tool_responses"] if isinstance(row, Mapping)]
        elif number == 0 or not message.get("name"):
            found.append({**message, "role": "user"})
        else:
            content = "" if message.get("content") in (None, "None") else message["content"]
            found.append({**message, "role": "assistant", "content": content})
    return found
