"""The expert as a smolagents model: it answers each call with the next act of the agent that it plays.

Tokens are counted with a real tokenizer over what smolagents would send to a server: all messages as it prepares them,
the schemas of the tools included.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from smolagents.models import (
    ChatMessage,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    MessageRole,
    Model,
    TokenUsage,
)

from coa.models.tokenizer import SMOLLM2, TextTokenizer, load_tokenizer
from coa.trajectory.types import Message
from coa.worlds.team.brain import Act, Agent, Brain

_REPORT: Final = re.compile(
    r"\A(?:Observation:\s*)?(?:Here is the final answer from your managed agent '[^']*':\n)?", re.S
)


class ExpertModel(Model):  # type: ignore[misc]
    """Plays one agent of one team at one task."""

    def __init__(self, brain: Brain, plays: str) -> None:
        super().__init__(model_id=f"expert/{plays}", flatten_messages_as_text=True)
        self._brain = brain
        self._plays = plays
        self._agent: Agent | None = None
        self._calls = 0

    def generate(
        self,
        messages: list[Any],
        stop_sequences: list[str] | None = None,
        response_format: dict[str, str] | None = None,
        tools_to_call_from: list[Any] | None = None,
        **kwargs: Any,
    ) -> ChatMessage:
        sent = self._prepare_completion_kwargs(messages, stop_sequences, response_format, tools_to_call_from, **kwargs)
        if not tools_to_call_from:  # smolagents asks for a plan
            return _message(self._brain.plan(), None, sent)
        act = self._act(messages)
        self._calls += 1
        function = ChatMessageToolCallFunction(name=act.calls, arguments=dict(act.arguments))
        call = ChatMessageToolCall(id=f"{self._plays}_{self._calls}", type="function", function=function)
        return _message(act.says, call, sent)

    def _act(self, messages: Sequence[Any]) -> Act:
        heard = [_text(message) for message in messages if _role(message) == MessageRole.TOOL_RESPONSE]
        if not heard:  # a new run: smolagents forgets an agent's last one
            request = [_text(message) for message in messages if _role(message) == MessageRole.USER][-1]
            self._agent = self._brain.agent(self._plays, request)
            return next(self._agent)
        assert self._agent is not None
        return self._agent.send(_REPORT.sub("", heard[-1]).strip())


def _message(says: str, call: ChatMessageToolCall | None, sent: dict[str, Any]) -> ChatMessage:
    written = says
    if call is not None:
        written += json.dumps({"name": call.function.name, "arguments": call.function.arguments})
    messages = [
        Message(role=str(getattr(message["role"], "value", message["role"])), content=str(message["content"]))
        for message in sent["messages"]
    ]
    read = len(_tokenizer().encode_prompt(messages)[1]) + _schema_tokens(json.dumps(sent.get("tools", "")))
    used = TokenUsage(input_tokens=read, output_tokens=len(_tokenizer().encode([written])[0]))
    calls = None if call is None else [call]
    return ChatMessage(role=MessageRole.ASSISTANT, content=says, tool_calls=calls, token_usage=used)


@cache
def _schema_tokens(schemas: str) -> int:
    return len(_tokenizer().encode([schemas])[0])


@cache
def _tokenizer() -> TextTokenizer:
    return load_tokenizer(SMOLLM2)


def _role(message: Any) -> Any:
    return message["role"] if isinstance(message, dict) else message.role


def _text(message: Any) -> str:
    content = message["content"] if isinstance(message, dict) else message.content
    return content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content or ())
