"""Chat mode: any `/v1/chat/completions`. No ids, so these runs can be distilled but not trained on by RL."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from coa.errors import ModelError
from coa.models.base import Context, Finish, Generation, Sampling, first_stop
from coa.models.dialects import Dialect, beyond_openai, first_choice, form, streaming, usage_of
from coa.models.server import ModelServer, ModelUnserved
from coa.trajectory import Usage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a chat server can do beyond the standard."""

    prefix: bool = False
    """Go on with the last assistant message instead of beginning a new one."""
    dialect: Dialect | None = None
    """Whose extra fields it takes."""
    most_stops: int = 4


class ChatModel:
    """Where a server can continue a turn, a run is one assistant message; elsewhere observations are user messages."""

    def __init__(self, server: ModelServer, name: str, abilities: Abilities | None = None) -> None:
        self._server = server
        self._name = name
        self._abilities = abilities or Abilities()
        self._streams = True

    @property
    def name(self) -> str:
        return self._name

    @property
    def tokenizer(self) -> None:
        return None

    async def generate(
        self, context: Context, *, stop: Sequence[str], sampling: Sampling, on_text: Callable[[str], None] | None = None
    ) -> Generation:
        body = self._body(context, stop[: self._abilities.most_stops], sampling)
        before = context.text if self._abilities.prefix else ""
        answer = await self._ask(body, None if on_text is None else lambda said: on_text(_shown(said, before)))
        if answer.content is None:
            raise ModelError(f"{self._server.name} answers without content: {str(answer.choice)[:200]}")
        text, finish = _cut(_beyond(answer.content, before), answer.choice, stop)
        if on_text:
            on_text(text)
        return Generation(text, finish, answer.usage)

    async def close(self) -> None:
        await self._server.close()

    async def _ask(self, body: Mapping[str, Any], listen: Callable[[str], None] | None) -> _Answer:
        if listen is not None and self._streams:
            try:
                return await self._server.retry(lambda: self._streamed(body, listen))
            except ModelUnserved as error:
                if error.status is None:
                    raise
                whole = await self._whole(body)  # raises the server's complaint if streaming was not its reason
                log.warning("%s does not stream (%s); the text comes all at once", self._server.name, error.message)
                self._streams = False
                return whole
        return await self._whole(body)

    async def _whole(self, body: Mapping[str, Any]) -> _Answer:
        answer = _Answer()
        answer.add(await self._server.post("/v1/chat/completions", body))
        return answer

    async def _streamed(self, body: Mapping[str, Any], listen: Callable[[str], None]) -> _Answer:
        answer = _Answer()
        async with aclosing(self._server.stream("/v1/chat/completions", {**body, **streaming()})) as events:
            async for event in events:
                answer.add(event)
                if answer.content:
                    listen(answer.content)
        return answer

    def _body(self, context: Context, stop: Sequence[str], sampling: Sampling) -> dict[str, Any]:
        messages = [message.model_dump() for message in context.messages]
        dialect = self._abilities.dialect
        body: dict[str, Any] = {
            "model": self._name,
            "stop": stop,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            **form(None, sampling),
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if dialect is not None:
            body |= beyond_openai(dialect, sampling)
        if dialect is Dialect.VLLM:
            body["include_stop_str_in_output"] = True
        elif dialect is Dialect.SGLANG:
            body["no_stop_trim"] = True
        if not context.text:
            return {**body, "messages": messages}
        if self._abilities.prefix:
            messages.append({"role": "assistant", "content": context.text})
            if dialect in (Dialect.VLLM, Dialect.SGLANG):
                body["continue_final_message"] = True
            if dialect is Dialect.VLLM:
                body["add_generation_prompt"] = False
            return {**body, "messages": messages}
        for by_model, text in context.turns:
            messages.append({"role": "assistant" if by_model else "user", "content": text.strip("\n")})
        return {**body, "messages": messages}


class _Answer:
    """What a server has said so far, in events or all at once."""

    def __init__(self) -> None:
        self.content: str | None = None
        self.choice: dict[str, Any] = {}
        self.usage = Usage(model_calls=1)

    def add(self, event: Any) -> None:
        if isinstance(event, dict) and event.get("usage"):
            self.usage = usage_of(event)
        if isinstance(event, dict) and event.get("choices") == []:
            return  # an event for the usage alone
        choice = first_choice(event)
        self.choice = {**self.choice, **{key: value for key, value in choice.items() if value is not None}}
        said = (choice.get("message") or choice.get("delta") or {}).get("content")
        if said is not None:
            self.content = (self.content or "") + said


def _beyond(content: str, before: str) -> str:
    """What is new: some servers repeat what they were given."""
    return content[len(before) :] if before and content.startswith(before) else content


def _shown(content: str, before: str) -> str:
    """The same for a stream; what may still turn out to be a repetition is not shown yet."""
    return "" if before.startswith(content) else _beyond(content, before)


def _cut(content: str, choice: dict[str, Any], stop: Sequence[str]) -> tuple[str, Finish]:
    """Cut at the first stop string, whether the server stopped there, went past it, or took it away."""
    found = first_stop(content, stop)
    if found:
        return content[: found[0]], Finish.STOP
    if choice.get("finish_reason") == "length":
        return content, Finish.LENGTH
    removed = choice.get("stop_reason")
    if isinstance(removed, str) and removed in stop:
        return content + removed, Finish.STOP
    # The server does not say whether it took a stop string away; an open tag whose end is one tells.
    closings = [word for word in stop if word.startswith("</") and word.replace("</", "<", 1) in content]
    if closings:
        latest = max(closings, key=lambda word: content.rfind(word.replace("</", "<", 1)))
        return content + latest, Finish.STOP
    return content, Finish.END
