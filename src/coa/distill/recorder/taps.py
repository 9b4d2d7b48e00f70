"""Where the recorder listens: at each model's `generate`, and at the tools that code calls.

A model may be shared by the agents of a team and by many teams at once, so one tap serves all recorders, and a context
variable says which run of which recording makes the call. smolagents copies that context into the threads of parallel
tool calls, but not into the thread in which code runs under a time limit; `RecordedCodeTool` therefore carries its
place with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from smolagents.models import agglomerate_stream_deltas

from coa.distill.importers.content import as_text
from coa.distill.recorder.open_run import OpenRun, SeenModel, SeenTool
from coa.distill.team_run import ChatMessage
from coa.trajectory.types import Usage


class Listener(Protocol):
    """The recorder, as the taps see it."""

    lock: threading.RLock

    def orphan(self, item: SeenModel, alone: bool) -> None: ...

    def called(self, item: SeenModel) -> None:
        """A call of a model has ended."""


@dataclass(frozen=True)
class Here:
    """Where in which recording the current thread is."""

    listener: Listener
    run: OpenRun
    call: SeenTool | None


HERE: ContextVar[Here | None] = ContextVar("coa_recording", default=None)


@contextmanager
def at(here: Here) -> Iterator[None]:
    token = HERE.set(here)
    try:
        yield
    finally:
        HERE.reset(token)


class ModelTap:
    """Listens to one model for as many recorders as use it."""

    _taps: dict[int, ModelTap] = {}  # noqa: RUF012 - one register for the process
    _guard = threading.Lock()

    def __init__(self, model: Any) -> None:
        self.model = model
        self.listeners: list[Listener] = []
        self._own = {name: model.__dict__.get(name) for name in ("generate", "generate_stream")}
        self._generate = model.generate
        model.generate = self._heard
        if hasattr(model, "generate_stream"):
            self._generate_stream = model.generate_stream
            model.generate_stream = self._heard_stream

    @classmethod
    def open(cls, model: Any, listener: Listener) -> None:
        with cls._guard:
            tap = cls._taps.get(id(model))
            if tap is None:
                tap = cls._taps[id(model)] = cls(model)
            tap.listeners.append(listener)

    @classmethod
    def close(cls, model: Any, listener: Listener) -> None:
        with cls._guard:
            tap = cls._taps.get(id(model))
            if tap is None:
                return
            tap.listeners.remove(listener)
            if not tap.listeners:
                del cls._taps[id(model)]
                for name, own in tap._own.items():
                    if own is not None:
                        setattr(model, name, own)
                    else:
                        model.__dict__.pop(name, None)

    def _heard(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        with self._listening(messages) as item:
            message = self._generate(messages, *args, **kwargs)
            self._done(item, message)
            item.message = message
        return message

    def _heard_stream(self, messages: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        with self._listening(messages) as item:
            deltas = []
            for delta in self._generate_stream(messages, *args, **kwargs):
                deltas.append(delta)
                yield delta
            self._done(item, agglomerate_stream_deltas(deltas))

    @contextmanager
    def _listening(self, messages: Any) -> Iterator[SeenModel]:
        here = HERE.get()
        inside = here is not None and here.call is not None
        name = getattr(self.model, "model_id", None)
        item = SeenModel(model=str(name) if name else None, messages=_messages(messages), inside_tool=inside)
        if here is not None:
            with here.listener.lock:
                here.run.seen.append(item)
        else:
            for listener in self.listeners:
                listener.orphan(item, alone=len(self.listeners) == 1)
        try:
            yield item
        except BaseException as error:
            item.error = f"{type(error).__name__}: {error}"
            raise
        finally:
            item.done = True
            for listener in [here.listener] if here is not None else self.listeners:
                listener.called(item)

    def _done(self, item: SeenModel, message: Any) -> None:
        used = getattr(message, "token_usage", None)
        seconds = max(0.0, time.time() - item.started)
        raw = getattr(message, "raw", None)
        if used is not None:
            cached = _at(raw, "usage", "prompt_tokens_details", "cached_tokens")
            tokens = {"prompt_tokens": used.input_tokens, "completion_tokens": used.output_tokens}
            tokens["cached_tokens"] = cached if isinstance(cached, int) else 0
            item.usage = Usage(**tokens, model_calls=1, seconds=seconds)
        choices = _at(raw, "choices")
        inner = _at(choices[0], "message") if choices else None
        thought = _at(inner, "reasoning_content") or _at(inner, "reasoning")
        item.text, item.thought = as_text(message.content), thought.strip() if isinstance(thought, str) else ""


class RecordedCodeTool:
    """A tool or team member as code sees it, listened to. Anything but calling it goes to the real one."""

    def __init__(self, tool: Any, call: Callable[..., Any]) -> None:
        self._tool = tool
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._tool, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tool, name)


def bound_arguments(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Positional arguments by the names the tool declares."""
    names = list(getattr(tool, "inputs", None) or {})
    named = {names[i] if i < len(names) else f"argument_{i + 1}": value for i, value in enumerate(args)}
    return {**named, **{name: value for name, value in kwargs.items() if name != "sanitize_inputs_outputs"}}


def _messages(messages: Any) -> list[ChatMessage]:
    found = []
    for message in messages or ():
        get = message.get if isinstance(message, dict) else lambda name, m=message: getattr(m, name, None)
        role = get("role")
        content = get("content")
        if isinstance(content, list):
            # An image is an object that no text should spell out.
            content = [{"type": "image"} if isinstance(p, dict) and p.get("type") == "image" else p for p in content]
        found.append(ChatMessage(role=str(getattr(role, "value", role)), text=as_text(content)))
    return found


def _at(thing: Any, *path: str) -> Any:
    """What is found below a path of attributes; None where the path ends early."""
    for name in path:
        thing = getattr(thing, name, None)
    return thing
