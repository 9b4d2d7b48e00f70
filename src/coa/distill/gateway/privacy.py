"""What of a request may be written down: harmless headers, no keys, and nothing that a pattern of the user's matches.

Keys are kept out in three ways. Headers are recorded from a list of harmless ones, and queries not at all. The values
of headers and query parameters that carry credentials are remembered while their call lasts, and wherever they occur in
a line that is written, for example in an error message of the server, they are replaced. Fields of request bodies that
exist to carry a credential, such as the `authorization` of an MCP server, are replaced too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qsl

import orjson

KEY: Final = "[key]"
REDACTED: Final = "[redacted]"
_HARMLESS: Final = frozenset({
    "accept", "anthropic-beta", "anthropic-version", "content-type", "openai-beta", "user-agent",
    "x-stainless-lang", "x-stainless-package-version", "x-stainless-retry-count",
})  # fmt: skip
_CREDENTIAL: Final = re.compile(
    r"(?i)authorization|cookie|(^|[-_])(api|access|subscription|auth|secret|private)?[-_]?(keys?|tokens?|secrets?)$"
    r"|pass(word|wd)|credential|signature|^sig$|^code$"
)
"""Names of headers and query parameters whose values are credentials."""
_CREDENTIAL_FIELDS: Final = frozenset({
    "access_token", "api-key", "api_key", "apikey", "auth_token", "authorization", "authorization_token",
    "client_secret", "password", "secret", "token", "x-api-key",
})  # fmt: skip
"""The same in bodies, where many harmless names end alike (`prompt_cache_key`)."""
_SAID: Final = frozenset({
    "contents", "functions", "input", "instructions", "messages", "prompt", "response_format", "system", "text",
    "tools",
})  # fmt: skip
"""Fields of bodies that hold what a model reads or has to write. They are recorded as they are."""
_SCHEMAS: Final = frozenset({"description", "input_schema", "parameters"})
"""Fields of tools whose properties may have the name of a credential."""
_SHORTEST: Final = 6
"""A shorter value is no key, and replacing it everywhere would garble texts (`none`, `EMPTY`)."""
_BLANK: Final = frozenset({"none", "empty", "dummy", "null", "not-needed", "no-key", "sk-none"})
_TOKEN_FIELDS: Final = frozenset(
    {"logprobs", "token_ids", "prompt_token_ids", "prompt_logprobs", "__verbose", "tokens"}
)


def harmless(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in _HARMLESS if name in headers}


def credentials(headers: Iterable[tuple[str, str]], query: str, more: Sequence[str] = ()) -> tuple[bytes, ...]:
    """The keys that a request carries in its headers and its query, as they would stand in a line of JSON."""
    found = [*more, *(value for name, value in headers if _is_credential(name))]
    if query:
        found += [value for name, value in parse_qsl(query.lstrip("?")) if _is_credential(name)]
    keys: dict[bytes, None] = {}
    for value in found:
        for word in (value, value.rpartition(" ")[2]):
            if len(word) >= _SHORTEST and word.lower() not in _BLANK:
                keys[orjson.dumps(word, default=str)[1:-1]] = None
    return tuple(sorted(keys, key=len, reverse=True))


@lru_cache(1000)
def _is_credential(name: str) -> bool:
    return _CREDENTIAL.search(name) is not None


def without_keys(line: bytes, keys: Sequence[bytes]) -> bytes:
    for key in keys:
        if key in line:
            line = line.replace(key, KEY.encode())
    return line


def without_credential_fields(body: Any) -> Any:
    """A request body without the keys that it hands on: its own, and those for MCP servers and other hosted tools."""
    if not isinstance(body, dict):
        return body
    _hide(body, _SAID)
    tools = body.get("tools")
    for entry in tools if isinstance(tools, list) else ():
        if isinstance(entry, dict) and "function" not in entry:
            _hide(entry, _SCHEMAS)
    return body


def _hide(entry: dict[str, Any], spared: frozenset[str]) -> None:
    """In place, at any depth. Only texts are values of a credential."""
    pending = [entry]
    while pending:
        fields = pending.pop()
        for name, value in fields.items():
            if name in spared:
                continue
            if isinstance(value, dict) and (name.lower().endswith("headers") or name == "authentication"):
                fields[name] = dict.fromkeys(value, KEY)
            elif isinstance(value, str) and name.lower() in _CREDENTIAL_FIELDS:
                fields[name] = KEY
            else:
                pending += [part for part in (value if isinstance(value, list) else [value]) if isinstance(part, dict)]


class Redaction:
    """Replaces what the user's patterns match in every text of a value."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def text(self, text: str) -> str:
        for pattern in self._patterns:
            text = pattern.sub(REDACTED, text)
        return text

    def apply(self, value: Any) -> tuple[Any, bool]:
        """The value with every match replaced, and whether there was any."""
        matched = False

        def walk(item: Any) -> Any:
            nonlocal matched
            if isinstance(item, str):
                text = self.text(item)
                matched = matched or text != item
                return text
            if isinstance(item, dict):
                return {name: walk(inner) for name, inner in item.items()}
            if isinstance(item, list):
                return [walk(inner) for inner in item]
            return item

        return walk(value), matched


def without_tokens(value: Any) -> Any:
    """A reply without token ids and log probabilities, which would spell out what was redacted."""
    if isinstance(value, dict):
        return {name: without_tokens(inner) for name, inner in value.items() if name not in _TOKEN_FIELDS}
    return [without_tokens(inner) for inner in value] if isinstance(value, list) else value
