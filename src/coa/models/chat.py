"""Chat mode: any `/v1/chat/completions`. It exchanges no ids, so its runs can be distilled but RL cannot use them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from coa.errors import ModelError
from coa.models.base import Context, Finish, Generation, OnText, Sampling, first_stop
from coa.models.dialects import Dialect, beyond_openai, first_choice, openai_body, streaming, usage_of
from coa.models.server import ModelServer, ModelUnserved
from coa.trajectory import Usage

log = logging.getLogger(__name__)


class ChatModel:
    """A model behind a chat server.

    Servers of a known dialect can continue the last assistant message, so a run is one assistant message there. For
    other servers the turn is cut into messages, observations are user messages, and at most 4 stop strings are sent.
    """

    tokenizer = None

    def __init__(self, server: ModelServer, name: str, dialect: Dialect | None = None) -> None:
        self.name = name
        self._server = server
        self._dialect = dialect
        self._streams = True

    async def generate(
        self, context: Context, *, stop: Sequence[str], sampling: Sampling, on_text: OnText = None
    ) -> Generation:
        body = self._body(context, stop[: 4 if self._dialect is None else 16], sampling)
        before = "" if self._dialect is None else context.text
        answer = await self._ask(body, None if on_text is None else lambda text: on_text(_shown(text, before)))
        if answer.content is None:
            raise ModelError(f"{self._server.name} sent an answer without content: {str(answer.choice)[:200]}")
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
                whole = await self._whole(body)  # raises the error of the server if streaming was not the reason
                log.warning("%s does not stream (%s); texts appear when complete", self._server.name, error.message)
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
        body = openai_body(None, self.name, stop, sampling)
        if self._dialect is not None:
            body |= beyond_openai(self._dialect, sampling)
        if self._dialect is Dialect.VLLM:
            body["include_stop_str_in_output"] = True
        elif self._dialect is Dialect.SGLANG:
            body["no_stop_trim"] = True
        if context.text and self._dialect is None:
            for by_model, text in context.turns:
                messages.append({"role": "assistant" if by_model else "user", "content": text.strip("\n")})
        elif context.text:
            messages.append({"role": "assistant", "content": context.text})
            if self._dialect in (Dialect.VLLM, Dialect.SGLANG):
                body["continue_final_message"] = True
            if self._dialect is Dialect.VLLM:
                body["add_generation_prompt"] = False
        return {**body, "messages": messages}


class _Answer:
    """What a server has sent so far, in events or all at once."""

    def __init__(self) -> None:
        self.content: str | None = None
        self.choice: dict[str, Any] = {}
        self.usage = Usage(model_calls=1)

    def add(self, event: Any) -> None:
        if isinstance(event, dict) and event.get("usage"):
            self.usage = usage_of(event)
        if isinstance(event, dict) and event.get("choices") == []:
            return  # an event that carries only the usage
        choice = first_choice(event)
        self.choice = {**self.choice, **{key: value for key, value in choice.items() if value is not None}}
        content = (choice.get("message") or choice.get("delta") or {}).get("content")
        if content is not None:
            self.content = (self.content or "") + content


def _beyond(content: str, before: str) -> str:
    """The new part of the content: some servers repeat the text that they continue."""
    return content[len(before) :] if before and content.startswith(before) else content


def _shown(content: str, before: str) -> str:
    """As `_beyond` for a stream: what may still turn out to be a repetition is not shown yet."""
    return "" if before.startswith(content) else _beyond(content, before)


def _cut(content: str, choice: dict[str, Any], stop: Sequence[str]) -> tuple[str, Finish]:
    """Cut at the first stop string, whether the server stopped there, went past it, or removed it."""
    if found := first_stop(content, stop):
        return content[: found[0]], Finish.STOP
    if choice.get("finish_reason") == "length":
        return content, Finish.LENGTH
    removed = choice.get("stop_reason")
    if isinstance(removed, str) and removed in stop:
        return content + removed, Finish.STOP
    # The server does not say whether it removed a stop string. A tag that is open and would end in one shows that.
    closings = [word for word in stop if word.startswith("</") and word.replace("</", "<", 1) in content]
    if closings:
        latest = max(closings, key=lambda word: content.rfind(word.replace("</", "<", 1)))
        return content + latest, Finish.STOP
    return content, Finish.END
