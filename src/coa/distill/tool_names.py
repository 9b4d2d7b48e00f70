"""Foreign tools as tool agents of a profile: the tag for a name, and the arguments in the shape of the tag."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final
from zlib import crc32

from pydantic import JsonValue

from coa.distill.roles import Decider, Decision, Roles
from coa.tools.schema import tag_for
from coa.trajectory import OBSERVATION, Form, Profile, Reading, Shape
from coa.trajectory.shapes import read, write

DROP: Final = "drop"
_KNOWN: Final = (
    ("wiki_search", r"wiki|encyclop"),
    ("visual_inspector", r"image|visual|vision|picture|photo|screenshot"),
    ("code", r"python|code|interpret|execut|sandbox|calculat|repl|shell|terminal"),
    ("crawl_page", r"visit|crawl|brows|scrap|fetch|page|url|website|webpage|reader|open_link|get_link"),
    ("web_search", r"search|google|bing|duckduckgo|ddg|serp|tavily|brave|retriev|lookup|look_up|query"),
)
_PATTERNS: Final = tuple((tag, re.compile(words)) for tag, words in _KNOWN)
_INSTEAD: Final = {"wiki_search": ("web_search",), "web_search": ("wiki_search",)}
"""Either search replaces the other where a profile has only one of them."""

_TEXT_KEYS: Final = ("text", "query", "q", "queries", "search_query", "question", "keywords", "input", "term", "task")
_LIST_KEYS: Final = ("items", "urls", "url", "links", "link", "page", "pages", "address", "uri", "text", "input")
_CODE_KEYS: Final = ("code", "program", "source", "script", "python", "text", "input", "query")
_FIELD_KEYS: Final = {
    "file_path": ("file_path", "path", "image_path", "image", "file", "image_url", "url"),
    "question": ("question", "query", "prompt", "instruction", "text"),
}


_RESERVED: Final = frozenset(
    {"think", "plan", "reflection", "suggested_answer", "double_check", "answer", OBSERVATION, DROP}
)
"""Tags with a meaning of their own. A team's tool of such a name gets a longer tag."""

_SERVER: Final = re.compile(r"^mcp__.+?__(?=.)")
"""How Claude Code writes the tools of an MCP server. Our own client uses the bare name, too."""


def own_tag(name: str) -> str:
    """The tag of a tool agent that is named after the team's tool, without the name of an MCP server before it."""
    tag = tag_for(_SERVER.sub("", name))
    if tag == "tool" and name != "tool":  # nothing of the name can stand in a tag
        return f"tool_{crc32(name.encode()):08x}"
    return f"{tag}_tool" if tag in _RESERVED else tag


def tag_of(name: str, profile: Profile, roles: Roles) -> str:
    """The profile's tool agent for a tool of the team; where it has none, a tag that the check then refuses."""
    decision = _decide(name, profile, roles)
    roles.decided[f"tool {name}"] = decision
    return decision.role


def _decide(name: str, profile: Profile, roles: Roles) -> Decision:
    if name in profile.tools:
        return Decision(name, Decider.TYPE)
    if (mapped := roles.given.tools.get(name)) is not None:
        return Decision(mapped, Decider.MAP)
    own = own_tag(name)
    if own in profile.tools:  # before any pattern: a profile may have both `calculator` and `code`
        return Decision(own, Decider.NAME)
    lowered = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).casefold()
    for tag, pattern in _PATTERNS:
        if pattern.search(lowered):
            fitting = next((other for other in (tag, *_INSTEAD.get(tag, ())) if other in profile.tools), None)
            return Decision(fitting or tag, Decider.NAME)
    return Decision(own, Decider.DEFAULT)


def content_of(arguments: Mapping[str, JsonValue], shape: Shape) -> str:
    """The text between the tags. Arguments of another shape are written as JSON, which the check then refuses."""
    fitted = _fitted(dict(arguments), shape)
    return json.dumps(dict(arguments), ensure_ascii=False) if fitted is None else write(shape, fitted)


def fits(arguments: Mapping[str, JsonValue], shape: Shape) -> bool:
    """Whether the shape can carry the arguments: what is written reads back."""
    fitted = _fitted(dict(arguments), shape)
    reading = None if fitted is None else read(shape, write(shape, fitted))
    return isinstance(reading, Reading) and fitted is not None and _bare(reading.arguments) == _bare(fitted)


def _bare(arguments: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {name: value.strip() if isinstance(value, str) else value for name, value in arguments.items()}


def _fitted(arguments: dict[str, JsonValue], shape: Shape) -> dict[str, JsonValue] | None:
    match shape.form:
        case Form.TEXT | Form.LINE | Form.BOXED:
            found = _first(arguments, _TEXT_KEYS)
            if found is None:
                return None
            text = "; ".join(_strings(found))
            return {"text": text.strip() if shape.form is Form.TEXT else " ".join(text.split())}
        case Form.LIST:
            found = _first(arguments, _LIST_KEYS)
            mark = f"%{ord(shape.separator[0]):02X}"
            items: list[JsonValue] = [item.replace(shape.separator, mark) for item in _strings(found)]
            return {"items": items} if items else None
        case Form.CODE:
            found = _first(arguments, _CODE_KEYS)
            stdin = arguments.get("stdin")
            extra: dict[str, JsonValue] = {"stdin": stdin} if shape.stdin and isinstance(stdin, str) and stdin else {}
            return {"code": "\n".join(_strings(found)), **extra} if found else None
        case Form.JSON:
            fields: dict[str, JsonValue] = {}
            for name, wanted in shape.fields.items():
                found = arguments.get(name)
                if found is None:
                    others = tuple(key for key in _FIELD_KEYS.get(name, ()) if key not in shape.fields)
                    found = _first(arguments, others, only=False)
                if found is not None:
                    fields[name] = found
                elif wanted.required:
                    return None
            return fields if shape.fields else arguments


def _first(arguments: dict[str, JsonValue], keys: tuple[str, ...], *, only: bool = True) -> JsonValue:
    for key in keys:
        if arguments.get(key) not in (None, "", []):
            return arguments[key]
    texts = [value for value in arguments.values() if isinstance(value, str) and value.strip()]
    return texts[0] if only and len(texts) == 1 else None


def _strings(value: JsonValue) -> list[str]:
    if isinstance(value, list):
        return [str(item) for item in value if item not in (None, "")]
    return [] if value is None else [str(value)]
