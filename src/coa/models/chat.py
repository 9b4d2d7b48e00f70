"""Chat mode: any `/v1/chat/completions`. It exchanges no ids, so its runs can be distilled but RL cannot use them.

Reasoning that a server reports apart from its reply (`reasoning` or `reasoning_content`, or parts of that kind in a
list of parts) is the thinking agent's words and becomes a step of its own before the reply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from coa.errors import ModelError
from coa.models.base import Context, Finish, Generation, OnText, Sampling, first_stop
from coa.models.dialects import (
    FEWEST_STOPS,
    Dialect,
    beyond_openai,
    first_choice,
    openai_body,
    refuses_stops,
    streaming,
    usage_of,
)
from coa.models.server import ModelServer, ModelUnserved
from coa.trajectory import Usage

log = logging.getLogger(__name__)


class ChatModel:
    """A model behind a chat server.

    Servers of a known dialect can continue the last assistant message, so a run is one assistant message there. For
    other servers the turn is cut into messages, observations are user messages, and at most 4 stop strings are sent;
    so they are to a server that refuses more. What it writes beyond one of the others is cut off.
    """

    tokenizer = None

    def __init__(self, server: ModelServer, name: str, dialect: Dialect | None = None) -> None:
        self.name = name
        self._server = server
        self._dialect = dialect
        self._most_stops = FEWEST_STOPS if dialect is None else 16
        self._streams = True
        self._unmetered = False
        """Whether a warning has said that tokens are not counted."""

    async def generate(
        self, context: Context, *, stop: Sequence[str], sampling: Sampling, on_text: OnText = None
    ) -> Generation:
        before = "" if self._dialect is None else context.text

        def show(answer: _Answer) -> None:
            if on_text is not None:
                said = _shown(answer.content or "", before)
                on_text(
                    _with_thought(answer.thought, said, context) if said else _open_thought(answer.thought, context)
                )

        sent, heard = stop[: self._most_stops], None if on_text is None else show
        try:
            answer = await self._ask(self._body(context, sent, sampling), heard)
        except ModelUnserved as error:
            if not refuses_stops(error, sent):
                raise
            answer = await self._ask(self._body(context, stop[:FEWEST_STOPS], sampling), heard)
            self._most_stops = FEWEST_STOPS
        if answer.content is None and not answer.thought:
            raise ModelError(f"{self._server.name} sent an answer without content: {str(answer.choice)[:200]}")
        text, finish = _cut(_beyond(answer.content or "", before), answer.choice, stop)
        text = _with_thought(answer.thought, text, context)
        if on_text:
            on_text(text)
        return Generation(text, finish, self._usage(answer))

    async def close(self) -> None:
        await self._server.close()

    def _usage(self, answer: _Answer) -> Usage:
        usage, readable = usage_of(answer.usage)
        if not readable and not self._unmetered:
            reported = (
                "no usage" if answer.usage is None else f"a usage that cannot be read ({str(answer.usage)[:100]})"
            )
            counted = "its tokens are not counted, so budgets and costs in tokens do not hold"
            log.warning("%s reports %s: %s", self._server.name, reported, counted)
            self._unmetered = True
        return usage

    async def _ask(self, body: Mapping[str, Any], show: Callable[[_Answer], None] | None) -> _Answer:
        if show is not None and self._streams:
            try:
                return await self._server.retry(lambda: self._streamed(body, show))
            except ModelUnserved as error:
                if error.status is None:
                    raise
                whole = await self._whole(body)  # raises the error of the server if streaming was not the reason
                log.warning("%s does not stream (%s); texts appear when complete", self._server.name, error.message)
                self._streams = False
                return whole
        return await self._whole(body)

    async def _whole(self, body: Mapping[str, Any]) -> _Answer:
        answer = _Answer(self._server.name)
        answer.add(await self._server.post("/v1/chat/completions", body))
        return answer

    async def _streamed(self, body: Mapping[str, Any], show: Callable[[_Answer], None]) -> _Answer:
        answer = _Answer(self._server.name)
        async with aclosing(self._server.stream("/v1/chat/completions", {**body, **streaming()})) as events:
            async for event in events:
                answer.add(event)
                if answer.content or answer.thought:
                    show(answer)
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

    def __init__(self, server: str) -> None:
        self.content: str | None = None
        self.thought = ""
        """What the server reports apart as the model's reasoning."""
        self.choice: dict[str, Any] = {}
        self.usage: object = None
        self._server = server

    def add(self, event: Any) -> None:
        if isinstance(event, dict) and event.get("usage") is not None:
            self.usage = event["usage"]
        if isinstance(event, dict) and event.get("choices") == []:
            return  # an event that carries only the usage
        choice = first_choice(event)
        self.choice = {**self.choice, **{key: value for key, value in choice.items() if value is not None}}
        message = choice.get("message") or choice.get("delta") or {}
        if not isinstance(message, dict):
            raise ModelError(f"{self._server} answers in an unknown shape: {str(event)[:200]}")
        # Servers differ in the name of the reasoning, and some send it under both.
        for is_thought, text in (
            *((True, text) for _, text in self._parts(message.get("reasoning_content") or message.get("reasoning"))),
            *self._parts(message.get("content")),
        ):
            if is_thought:
                self.thought += text
            else:
                self.content = (self.content or "") + text

    def _parts(self, content: Any) -> Iterator[tuple[bool, str]]:
        """The texts in a content, and whether each is reasoning: a content is a text, or a list of parts."""
        if isinstance(content, str):
            yield False, content
        elif isinstance(content, list):
            for part in content:
                kind = part.get("type") if isinstance(part, dict) else None
                if kind in ("thinking", "reasoning"):
                    yield from ((True, text) for _, text in self._parts(part.get(kind) or part.get("text")))
                else:
                    yield from self._parts(part.get("text") if isinstance(part, dict) else part)
        elif content is not None:
            raise ModelError(f"{self._server} sent content that is not text: {str(content)[:200]}")


def _with_thought(thought: str, text: str, context: Context) -> str:
    """The reasoning as a step of the thinking agent, and the text after it."""
    if not thought.strip() or context.thought is None:
        return text
    step = context.thought(thought.strip())
    between = "" if text.startswith("\n") else "\n"
    return f"{step}{between}{text}" if text else step


def _open_thought(thought: str, context: Context) -> str:
    """A thought of which more will come, without its closing tag. What may become a tag is not shown yet."""
    text = _with_thought(thought, "", context)
    opened = text[: text.rfind("</")]
    return opened[:cut] if (cut := opened.rfind("<", max(len(opened) - 40, 1))) > 0 else opened


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
