"""What the formats share: text in parts, tool calls in several spellings, token counts under several names.

Traces come from anywhere, so every function here accepts any JSON value and returns the nearest sensible one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import orjson

from coa.distill.team_run import AgentRun, Event, LeftOut, ModelCall, Source, TeamRun, ToolCall
from coa.trajectory.identity import content_id
from coa.trajectory.types import Failure, FailureSite, Stop, Task, Usage, clean_text

FINISHING: Final = frozenset(
    {
        "final_answer",
        "final_result",
        "finish",
        "finish_task",
        "submit",
        "submit_answer",
        "submit_final_answer",
        "task_complete",
    }
)
"""Tools that only hand in an answer. (Those of coding agents, such as `attempt_completion`, contain no answer.)"""
MOST_DEEP: Final = 32
"""Teams nest two or three levels; a deeper tree is a damaged or hostile file."""

_CODE: Final = re.compile(r"<code>\s*\n?(.*?)(?:</code>|\Z)|```(?:py|python)\s*\n(.*?)(?:```|\Z)", re.DOTALL)
_ANSWERS: Final = ("answer", "final_answer", "result", "output", "text", "message")
_CODE_LABEL: Final = re.compile(r"(?:\A|\n)Code:\s*\Z")
"""smolagents before 1.20 and OAgents have their models write `Code:` before the code and `<end_code>` after it."""
_PROMPT: Final = ("prompt_tokens", "input_tokens", "total_prompt_tokens")
_COMPLETION: Final = ("completion_tokens", "output_tokens", "total_completion_tokens")
_MOST_TOKENS: Final = 1 << 40
_CACHED: Final = ("cached_tokens", "cache_read_input_tokens", "cache_read_tokens")
_CACHED_BELOW: Final = (
    ("prompt_tokens_details", "cached_tokens"), ("input_tokens_details", "cached_tokens"),
    ("input_token_details", "cache_read"),
)  # fmt: skip
"""As Chat Completions, Responses and LangChain write it."""
_APART: Final = ("cache_read_input_tokens", "cache_creation_input_tokens")
"""Anthropic counts as `input_tokens` only what neither came from the cache nor went into it. Proxies that translate to
`prompt_tokens` may keep these names, but then count them in."""


def as_text(content: object) -> str:
    """A string, content parts, or any other JSON value as text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(filter(None, (_part(part) for part in content)))
    if isinstance(content, Mapping) and isinstance(content.get("text"), str):
        return str(content["text"])
    return dumped(content)


_MEDIA: Final = re.compile(r"(?:input_)?(image|audio|video|file|document)(?:_|\Z)")
_THINKING: Final = frozenset({"reasoning", "thinking", "redacted_thinking", "reasoning_content"})
_CALLING: Final = frozenset({"function_call", "tool_use", "tool_call"})


def as_thought(content: object) -> str:
    """What the parts of a content hold as reasoning; `as_text` leaves it out."""
    parts = [part for part in mappings(content) if part.get("type") in _THINKING]
    names = ("reasoning", "thinking", "text", "content", "summary")
    return "\n".join(filter(None, (as_text(next((part[n] for n in names if part.get(n)), None)) for part in parts)))


def _part(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        if part.get("type") in _THINKING or (part.get("type") in _CALLING and "name" in part):
            return ""  # `as_thought` and the message's own list of calls have them
        for name in ("text", "content"):
            if isinstance(part.get(name), str):
                return str(part[name])
        if (media := _MEDIA.match(str(part.get("type") or ""))) is not None:
            return f"[{media.group(1)}]"
    return dumped(part)


def as_result(value: object) -> tuple[str, bool]:
    """What a tool gave back, and whether it worked: without the object that a framework puts around a plain value.

    Google ADK gives a model `{"result": ...}` and `{"error": ...}`, inside `{"id": ..., "name": ..., "response": ...}`;
    AG2 records `[true, {"role": "function", "content": ...}]`.
    """
    inner = loaded(value)
    if (
        isinstance(inner, list)
        and len(inner) == 2
        and isinstance(inner[0], bool)
        and at(inner[1], "role") == "function"
    ):
        return as_text(inner[1].get("content")), inner[0]
    if (
        isinstance(inner, Mapping)
        and set(inner) <= {"id", "name", "response"}
        and isinstance(inner.get("response"), Mapping)
    ):
        inner = inner["response"]
    if isinstance(inner, Mapping) and len(inner) == 1:
        for name in ("result", "error"):
            if name in inner:
                return as_text(inner[name]), name == "result"
    return as_text(value), True


def dumped(value: object) -> str:
    try:
        return orjson.dumps(value, default=str).decode()
    except (TypeError, orjson.JSONEncodeError):
        return str(value)


def loaded(text: object) -> Any:
    """The value of a string that is JSON; any other value as it is."""
    if isinstance(text, str) and text.lstrip()[:1] in ("{", "["):
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            return text
    return text


def as_arguments(value: object) -> dict[str, Any]:
    value = loaded(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return {} if value in (None, "") else {"text": plain(value)}


def plain(value: Any) -> Any:
    """Any Python object as a value that every JSON reader accepts."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, Mapping):
        return {clean_text(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    return clean_text(str(value))


def as_calls(rows: object, prefix: str = "call") -> tuple[ToolCall, ...]:
    """Tool calls as OpenAI, ATIF, smolagents and the rest spell them. Ids that repeat are made unique."""
    calls: list[ToolCall] = []
    taken: set[str] = set()
    for number, row in enumerate(rows if isinstance(rows, list) else [], start=1):
        if not isinstance(row, Mapping):
            continue
        function = row.get("function")
        inner: Mapping[str, Any] = function if isinstance(function, Mapping) else row
        name = inner.get("name") or row.get("function_name") or row.get("tool_name") or row.get("name")
        if not name:
            continue
        identity = str(row.get("id") or row.get("tool_call_id") or row.get("call_id") or f"{prefix}_{number}")
        if identity in taken:
            identity = f"{identity}_{number}"
        taken.add(identity)
        arguments = inner.get("arguments", inner.get("args", inner.get("input")))
        calls.append(ToolCall(id=identity, name=str(name), arguments=as_arguments(arguments)))
    return tuple(calls)


def handed_in(call: ToolCall) -> str:
    """The answer that a finishing tool was called with: its only argument or the one named so, else all of them."""
    given = call.arguments
    named = next((given[name] for name in _ANSWERS if given.get(name) is not None), None)
    if named is not None or len(given) == 1:
        return as_text(named if named is not None else next(iter(given.values())))
    return dumped(dict(given)) if given else ""


def as_usage(row: object) -> Usage | None:
    """Token counts, by any of their usual names; None where there is none."""
    if not isinstance(row, Mapping):
        return None
    prompt, completion = (_count(row, names) for names in (_PROMPT, _COMPLETION))
    if _count(row, ("prompt_tokens",)) is None:
        apart = [count for name in _APART if (count := _count(row, (name,))) is not None]
        prompt = sum(apart, prompt or 0) if apart else prompt
    if prompt is None and completion is None:
        return None
    cached = _count(row, _CACHED)
    for place in _CACHED_BELOW:
        if cached is None:
            cached = _count({"cached_tokens": at(row, *place)}, _CACHED)
    return Usage(
        prompt_tokens=prompt or 0, completion_tokens=completion or 0, cached_tokens=cached or 0, model_calls=1,
        cost=as_cost(row),
    )  # fmt: skip


def as_cost(row: Mapping[str, Any]) -> float | None:
    """What a call cost, where the trace says so, as one of its usual names or as the total in an object."""
    for name in ("cost_usd", "total_cost_usd", "total_cost", "cost"):
        value = row.get(name)
        value = value.get("total") if isinstance(value, Mapping) else value
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf"):
            return float(value)
    return None


def as_names(rows: object) -> tuple[str, ...]:
    """Names of tools, from their definitions."""
    found = (row.get("name") or at(row, "function", "name") for row in mappings(rows))
    return tuple(str(name) for name in found if name)


def as_number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def mappings(rows: object) -> list[Mapping[str, Any]]:
    """The objects of a list; none where it is no list."""
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def at(row: Any, *path: str) -> Any:
    """What is found below a path of keys; None where the path ends early."""
    for name in path:
        row = row.get(name) if isinstance(row, Mapping) else None
    return row


def _count(row: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """The first of these fields that holds a count of tokens."""
    for name in names:
        value = row.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST_TOKENS:
            return int(value)
    return None


def as_time(value: object) -> float | None:
    """Seconds since 1970 from ISO 8601 or a number (seconds, milliseconds or nanoseconds)."""
    if isinstance(value, str):
        if value.isdigit():
            return as_time(int(value))
        try:
            return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
        except (ValueError, OverflowError):
            return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        for limit, scale in ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3)):
            if value >= limit:
                return value / scale
        return float(value)
    return None


def split_code(text: str, tags: tuple[str, str] | None = None) -> tuple[str, str | None]:
    """What a model wrote around its code, and the code: the blocks that smolagents would run."""
    pattern = _CODE if tags is None else re.compile(f"{re.escape(tags[0])}(.*?)(?:{re.escape(tags[1])}|\\Z)", re.DOTALL)
    blocks = [next((group for group in match.groups() if group is not None), "") for match in pattern.finditer(text)]
    if not blocks:
        return text, None
    rest = _CODE_LABEL.sub("", pattern.sub("", text).replace("<end_code>", ""))
    return without_label(rest), "\n\n".join(block.strip("\n") for block in blocks)


def without_label(text: str) -> str:
    """smolagents has its models begin with `Thought:`."""
    return text.strip().removeprefix("Thought:").strip()


def last_answer(events: Sequence[Event]) -> str | None:
    """What an agent says last, if it asks for nothing more: its answer, where the trace does not name one."""
    last = next((event for event in reversed(events) if isinstance(event, ModelCall)), None)
    return last.text or None if last is not None and not last.calls and last.error is None else None


def as_task(question: str, gold: object, identity: str | None = None, **meta: str) -> Task:
    """The task of a trace. `gold` is its right answer, if known; without `identity` its id comes from the content."""
    known = gold if isinstance(gold, str | int | float | list) else None
    named = identity if identity is not None else content_id(question, gold)
    return Task.model_validate({"id": named, "question": question, "answer": known, "meta": meta})


def team_run(
    task: Task,
    root: AgentRun,
    source: Source,
    left_out: Iterable[LeftOut],
    *,
    error: str | None = None,
    limited: bool = False,
    **more: Any,
) -> TeamRun:
    """A run as a trace holds it. How it stopped follows from its answer, its error and its limit of steps."""
    failure = Failure(site=FailureSite.RUNTIME, message=error) if error and root.answer is None else None
    stop = Stop.STEPS if limited else Stop.ANSWERED if root.answer is not None else Stop.UNANSWERED
    more |= {"stop": Stop.FAILED if failure else stop, "failure": failure, "left_out": tuple(left_out)}
    return TeamRun(task=task, root=root, source=source, **more)
