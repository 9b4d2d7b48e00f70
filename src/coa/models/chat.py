"""Chat mode: any `/v1/chat/completions`. No ids, so these runs can be distilled but not trained on by RL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from coa.errors import ModelError
from coa.models.base import Context, Finish, Generation, Sampling, first_stop
from coa.models.completions import first_choice, response_format, usage_of
from coa.models.http import Transport


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a chat server can do beyond the standard."""

    prefix: bool = False
    """Go on with the last assistant message instead of beginning a new one."""
    vllm: bool = False
    """Takes vLLM's and SGLang's extra fields."""
    most_stops: int = 4


class ChatModel:
    """Where a server can continue a turn, a run is one assistant message; elsewhere observations are user messages."""

    def __init__(self, transport: Transport, name: str, abilities: Abilities | None = None) -> None:
        self._transport = transport
        self._name = name
        self._abilities = abilities or Abilities()

    @property
    def name(self) -> str:
        return self._name

    @property
    def tokenizer(self) -> None:
        return None

    async def generate(
        self,
        context: Context,
        *,
        stop: Sequence[str],
        sampling: Sampling,
        on_text: Callable[[str], None] | None = None,
    ) -> Generation:
        body = self._body(context, stop[: self._abilities.most_stops], sampling)
        answer = await self._transport.post("/v1/chat/completions", body)
        choice = first_choice(answer)
        content = (choice.get("message") or {}).get("content")
        if content is None:
            raise ModelError(f"{self._transport.url} answers without content: {str(choice)[:200]}")
        if self._abilities.prefix and context.text and content.startswith(context.text):
            content = content[len(context.text) :]  # some servers repeat what they were given
        text, finish = _cut(content, choice, stop)
        if on_text:
            on_text(text)
        return Generation(text, finish, usage_of(answer))

    async def close(self) -> None:
        await self._transport.close()

    def _body(self, context: Context, stop: Sequence[str], sampling: Sampling) -> dict[str, Any]:
        messages = [message.model_dump() for message in context.messages]
        body: dict[str, Any] = {
            "model": self._name,
            "stop": list(stop),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            **response_format(sampling),
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if self._abilities.vllm:
            body |= {"top_k": sampling.top_k, "include_stop_str_in_output": True}
        if not context.text:
            return {**body, "messages": messages}
        if self._abilities.prefix:
            messages.append({"role": "assistant", "content": context.text})
            if self._abilities.vllm:
                body |= {"continue_final_message": True, "add_generation_prompt": False}
            return {**body, "messages": messages}
        for by_model, text in context.turns:
            messages.append({"role": "assistant" if by_model else "user", "content": text.strip("\n")})
        return {**body, "messages": messages}


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
