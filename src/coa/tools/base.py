"""What a tool is, and the one way to call it: bounded in time and output, and never raising."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Final, Protocol, runtime_checkable

from pydantic import JsonValue

from coa.trajectory import Shape, Task
from coa.trajectory.shorten import shorten

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Observation:
    """The answer of a tool. With `ok=False` the model reads what went wrong and may try again."""

    text: str
    ok: bool = True
    meta: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether nothing failed: neither `meta` nor a part listed there has an `error` or a `lack`."""
        lists = [value for value in self.meta.values() if isinstance(value, list)]
        parts = [self.meta, *(part for value in lists for part in value if isinstance(part, dict))]
        return self.ok and not any(part.get("error") or part.get("lack") for part in parts)


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may know about the run that calls it."""

    task: Task
    thought: str = ""
    """The model's last thought, for tools that read with a goal."""
    attachments: Mapping[str, bytes] = field(default_factory=dict)
    """Files of the task that came with the question and are nowhere on disk, by the name that the task lists."""


class Part(StrEnum):
    """A part of the context that may decide a tool's answer."""

    QUESTION = "question"
    FILES = "files"
    THOUGHT = "thought"


@runtime_checkable
class Tool(Protocol):
    """Interface of a tool agent. `about` and `shape` describe it to the model if the profile does not.

    Optional members:

    - `async close()` releases what the tool holds open.
    - `settings` is the part of the tool's configuration that decides its answers. The cache writes it to disk, so it
      must not contain keys.
    - `uses` names the parts of the context that the tool reads. The cache assumes all of them if it is missing.
    - `async fingerprint(arguments, context)` identifies anything else that a call reads, such as the content of a file.
    """

    @property
    def about(self) -> str: ...

    @property
    def shape(self) -> Shape: ...

    @property
    def timeout_s(self) -> float: ...

    async def call(self, arguments: Mapping[str, JsonValue], context: ToolContext) -> Observation: ...


async def close_tool(tool: Tool) -> None:
    close = getattr(tool, "close", None)
    if close is not None:
        await close()


def settings_of(tool: Tool) -> JsonValue:
    settings: JsonValue = getattr(tool, "settings", None)
    return settings if settings is not None else f"{type(tool).__module__}.{type(tool).__qualname__}"


def veiled(text: str) -> str:
    """A digest of text that may hold a password or a key, so that it may be written to disk."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=24).hexdigest() if text else ""


async def fingerprint_of(tool: Tool, arguments: Mapping[str, JsonValue], context: ToolContext) -> str:
    """Identifies what the call reads besides its arguments and context; empty if the tool does not say."""
    fingerprint = getattr(tool, "fingerprint", None)
    return str(await fingerprint(arguments, context)) if fingerprint is not None else ""


def uses_of(tool: Tool) -> tuple[Part, ...]:
    return tuple(sorted(Part(part) for part in getattr(tool, "uses", Part)))


async def call_tool(
    tool: Tool, arguments: Mapping[str, JsonValue], context: ToolContext, *, max_characters: int, timeout_s: float
) -> Observation:
    """The tool's answer, or an observation that says why there is none.

    Code of any origin runs here, so the call is a task of its own: a tool that ignores its cancellation or exits the
    interpreter ends this call and nothing else.
    """
    limit = min(tool.timeout_s, timeout_s)
    call = _answer(tool, arguments, context)
    task = asyncio.create_task(call)
    try:
        await asyncio.wait({task}, timeout=limit)
        if not task.done():
            return Observation(f"error: no answer within {limit:g} seconds", ok=False, meta={"error": "timeout"})
        observation = task.result()
    except asyncio.CancelledError:
        if being_cancelled():
            raise
        return Observation("error: the tool was cancelled", ok=False, meta={"error": "cancelled"})
    except Exception as error:
        log.debug("tool failed", exc_info=error)
        message = f"error: {type(error).__name__}: {error}"
        return Observation(shorten(message, max_characters), ok=False, meta={"error": type(error).__name__})
    finally:
        if not task.done():
            await _end(task, call)
    text = shorten(observation.text, max_characters)
    return Observation(text, observation.ok, observation.meta) if text is not observation.text else observation


async def _answer(tool: Tool, arguments: Mapping[str, JsonValue], context: ToolContext) -> Observation:
    try:
        observation = await tool.call(arguments, context)
    except (Exception, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit would end the event loop, and every run with it
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
    if not isinstance(observation, Observation) or not isinstance(observation.text, str):
        raise TypeError(f"it returned {type(observation).__name__}, not an Observation with text")
    return observation


_CLEAN_UP_S: Final = 2.0
"""Time that a cancelled tool has to clean up."""


async def _end(task: asyncio.Task[Observation], call: Coroutine[object, object, Observation]) -> None:
    """Cancel a call. One that goes on all the same is closed where it waits."""
    task.cancel()
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody else asks for it
    await asyncio.wait({task}, timeout=_CLEAN_UP_S)
    if not task.done():
        log.warning("a tool ignored that its call was cancelled; it was ended")
        with suppress(RuntimeError):  # it ignored this too
            call.close()
        task.cancel()


def being_cancelled() -> bool:
    """Whether the running task itself is being cancelled, as opposed to something that a tool started."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
