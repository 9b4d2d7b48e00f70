"""Who speaks: what a system prompt says about the agent that it belongs to.

Two calls belong to the same agent if their system prompts are the same, apart from what changes by itself (dates,
times, numbers, ids). The name is taken from the prompt where it names the agent, as most frameworks' templates do.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_CHANGING: Final = re.compile(
    r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b|\b\w*\d\w*\b"
    r"|\b(?:january|february|march|april|may|june|july|august|september|october|november|december)\b",
    re.IGNORECASE,
)
"""What a prompt may hold that is different from call to call."""
_WORD: Final = re.compile(r"\w+")
_ALIKE: Final = 0.8
"""Share of common words from which on two prompts are versions of one."""
_QUOTED: Final = r"[\"'`“*]*(?P<name>[\w][\w .&/-]{0,60}?)[\"'`”*]*"
_STRONG: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\byour (?:internal |agent )?name is:?\s+{_QUOTED}(?=[.,;\n]|\Z|\s+and\b)",
        r"\bagent named\s+[\"'`]?(?P<name>[\w-]+)",
        r"\byou are an? (?:\w+ ){0,4}(?:named|called)\s+[\"'`]?(?P<name>[\w-]+)",
        r"^#+\s*(?:role|agent|name|agent name)\s*:\s*(?P<name>[^\n]{1,60}?)\s*$",
        r"^(?:role|agent name|name)\s*:\s*(?P<name>[^\n]{1,60}?)\s*$",
    )
)
_ROLE: Final = re.compile(
    r"\b(?:you are|you're|you act as|act as|your role is|your role:)\s+(?:now\s+)?(?P<article>the\s+|an?\s+)?"
    r"[\"'`*]*(?P<name>[A-Za-z][\w&/ -]{0,60}?)[\"'`*]*(?=\s*(?:[.,;:!\n(]|\Z"
    r"|\b(?:and|who|that|which|in|of|for|with|on|at|working|responsible)\b))",
    re.IGNORECASE,
)
_GENERAL: Final = frozenset({
    "a", "an", "the", "helpful", "ai", "expert", "assistant", "agent", "chatbot", "bot", "model", "language",
    "large", "llm", "useful", "smart", "friendly", "able", "part", "now", "going", "one", "given", "professional",
    "very", "highly", "skilled", "intelligent", "powerful", "advanced", "general", "purpose", "based", "autonomous",
    "member", "team", "multi", "system", "our", "my", "virtual", "digital",
})  # fmt: skip
"""Words that describe every agent, so they name none."""

_PRODUCTS: Final = frozenset({"claude agent", "claude code"})
"""What a program puts before the prompts of all its agents. What follows may name the agent."""


class SystemPrompt:
    """What is known of a system prompt."""

    def __init__(self, text: str) -> None:
        self.text = text
        plain = _CHANGING.sub("", text.casefold())
        self.words = frozenset(_WORD.findall(plain))
        self.fingerprint = hash(tuple(_WORD.findall(plain)))
        self.strong = strong_name(text)
        self.name = self.strong or role_name(text)

    def same(self, other: SystemPrompt) -> bool:
        if self.fingerprint == other.fingerprint:
            return True
        if self.name and other.name:
            return self.name == other.name
        if not (self.words and other.words) or self.name != other.name:
            return False
        return len(self.words & other.words) >= _ALIKE * len(self.words | other.words)


@lru_cache(maxsize=4096)
def prompt(text: str) -> SystemPrompt:
    return SystemPrompt(text)


def strong_name(text: str) -> str:
    """The name that a text gives the agent as its name."""
    for pattern in _STRONG:
        if (found := pattern.search(text[:20_000])) and (name := tidy(found.group("name"))):
            return name
    return ""


def role_name(text: str) -> str:
    """The role that a text gives the agent: "You are the researcher", "You are Town Analyst."."""
    product = ""
    for found in _ROLE.finditer(text[:4_000]):
        words = found.group("name").split()
        if not words or all(word.casefold() in _GENERAL for word in words):
            continue
        article = (found.group("article") or "").strip().casefold()
        if article in ("a", "an") and len(words) > 4:
            continue  # a description, not a name
        while words and words[0].casefold() in _GENERAL:
            words = words[1:]
        if words and len(words) <= 6 and (name := tidy(" ".join(words))):
            if name.casefold() not in _PRODUCTS:
                return name
            product = product or name
    return product


def tidy(name: str) -> str:
    return " ".join(name.strip(" \t\n\"'`*_.:").split())
