"""Requests as an agent's caller made them, without the words that a framework's template puts around them."""

from __future__ import annotations

import re
from typing import Final

_SMOLAGENTS: Final = re.compile(
    r"submitted this task by your manager\.\s*---\s*Task:\s*(?P<task>.*?)\s*---\s*You're helping", re.DOTALL
)
_NEW_TASK: Final = re.compile(r"\ANew task:\n(?P<task>.*)\Z", re.DOTALL)
_CREWAI: Final = re.compile(
    r"\A\s*(?:Current Task:\s*(?P<task>.*?)(?:\n\s*This is the expected criteria for your final answer:.*)?"
    r"(?:\n\s*(?:you MUST return|Begin! This is VERY important).*)?"
    r"|(?P<bare>.*?)\n\s*This is the expected criteria for your final answer:.*)\Z",
    re.DOTALL,
)


def unwrapped_task(text: str) -> str:
    if found := _NEW_TASK.match(text):
        text = found.group("task")
    if found := _SMOLAGENTS.search(text):
        text = found.group("task")
    if found := _CREWAI.match(text):
        text = found.group("task") or found.group("bare") or ""
    return text.strip()
