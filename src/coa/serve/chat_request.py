"""What a client may send to `POST /v1/chat/completions`, and what its messages mean to the chain.

The last user message is the question, and everything before it is the conversation. Assistant messages with tool calls
and the tool messages that answer them, if they come behind the question, are the part of the run that was already
played: the run goes on behind them.

A parameter of the standard is honoured, or it is refused with its name. Some have no effect here and are accepted
because common clients send them; others are accepted with the value that changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import ConfigDict, Field, JsonValue

from coa.serve.api_error import ApiError, unsupported
from coa.serve.bodies import Body
from coa.serve.request import Effort, call_in_words
from coa.serve.responses.attachments import Attachments
from coa.serve.responses.body import MOST_TOOLS, MetadataKey, MetadataValue
from coa.serve.responses.body import ImagePart as InputImage
from coa.trajectory import Message


class TextPart(Body):
    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: JsonValue = None


class RefusalPart(Body):
    type: Literal["refusal"]
    refusal: str


class ImageUrl(Body):
    url: str = Field(min_length=1)
    detail: Literal["auto", "low", "high", "original"] | None = None


class ImagePart(Body):
    type: Literal["image_url"]
    image_url: ImageUrl
    prompt_cache_breakpoint: JsonValue = None


UserPart = Annotated[TextPart | ImagePart, Field(discriminator="type")]
AssistantPart = Annotated[TextPart | RefusalPart, Field(discriminator="type")]


class SystemMessage(Body):
    role: Literal["system", "developer"]
    content: str | list[TextPart]
    name: str | None = None


class UserMessage(Body):
    role: Literal["user"]
    content: str | list[UserPart]
    name: str | None = None


class _Echoed(Body):
    """Something that a server wrote and a client sends back, with fields of that server and of the client's library."""

    model_config = ConfigDict(extra="ignore")


class CalledFunction(_Echoed):
    name: str
    arguments: str


class ToolCall(_Echoed):
    id: str = Field(min_length=1)
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(_Echoed):
    role: Literal["assistant"]
    content: str | list[AssistantPart] | None = None
    tool_calls: list[ToolCall] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    function_call: None = None


class ToolMessage(Body):
    role: Literal["tool"]
    content: str | list[TextPart]
    tool_call_id: str
    name: str | None = None


ChatMessage = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class FunctionDefinition(Body):
    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Body):
    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(Body):
    name: str


class NamedChoice(Body):
    type: Literal["function"]
    function: FunctionName


class StreamOptions(Body):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatBody(Body):
    """The body of a request, in the names of the standard."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[FunctionTool] | None = Field(None, max_length=MOST_TOOLS)
    tool_choice: Literal["auto", "none", "required"] | NamedChoice | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    reasoning_effort: Effort | None = None
    metadata: dict[MetadataKey, MetadataValue] | None = Field(None, max_length=16)
    store: bool | None = None

    # Accepted without effect.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: JsonValue = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    parallel_tool_calls: bool | None = None

    # Accepted with the value that changes nothing (`_UNSUPPORTED`).
    n: int | None = None
    seed: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_format: JsonValue = None
    modalities: list[str] | None = None
    verbosity: str | None = None
    audio: JsonValue = None
    prediction: JsonValue = None
    web_search_options: JsonValue = None
    moderation: JsonValue = None
    functions: JsonValue = None
    function_call: JsonValue = None

    @property
    def stops(self) -> tuple[str, ...]:
        listed = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(dict.fromkeys(listed))

    @property
    def max_output_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    def check(self) -> None:
        """Refuse what is not honoured; ApiError 400."""
        for name, (neutral, why) in _UNSUPPORTED.items():
            value = getattr(self, name)
            if value is not None and value not in neutral:
                raise unsupported(name, why)
        if self.tool_choice == "required":
            raise unsupported("tool_choice", "the agent decides itself whether it calls a tool. Use `auto` or `none`.")
        if isinstance(self.tool_choice, NamedChoice):
            raise unsupported("tool_choice", "the agent decides itself which tool it calls. Offer only that one.")
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "`stream_options` needs `stream: true`.", code="invalid_value", param="stream_options")
        if self.max_tokens not in (None, self.max_output_tokens):
            message = (
                "`max_tokens` and `max_completion_tokens` say different things; send `max_completion_tokens` only."
            )
            raise ApiError(400, message, code="invalid_value", param="max_tokens")
        if "" in self.stops:
            raise ApiError(400, "`stop`: a stop string must not be empty.", code="invalid_value", param="stop")


_UNSUPPORTED: Final[dict[str, tuple[tuple[object, ...], str]]] = {
    "n": ((1,), "a request has one answer. Send the request several times."),
    "seed": ((), "the seed of an agent is a setting of the server."),
    "logprobs": ((False,), "an answer comes without log probabilities."),
    "top_logprobs": ((0,), "an answer comes without log probabilities."),
    "logit_bias": (({},), "the chain of agents needs the probabilities of its model as they are."),
    "presence_penalty": ((0,), "the chain of agents repeats its tags on purpose. Use `temperature`."),
    "frequency_penalty": ((0,), "the chain of agents repeats its tags on purpose. Use `temperature`."),
    "response_format": (({"type": "text"},), "an answer is text. Describe the form that you need in the question."),
    "modalities": ((["text"],), "an answer is text."),
    "verbosity": (("medium",), "ask for a short or a long answer in the question."),
    "audio": ((), "an answer is text."),
    "prediction": ((), "it would have no effect."),
    "web_search_options": ((), "the tools of the agent are a setting of the server."),
    "moderation": ((), "this server moderates nothing."),
    "functions": (([],), "it is the old form of `tools`. Send `tools`."),
    "function_call": (("none", "auto"), "it is the old form of `tool_choice`. Send `tools` and `tool_choice`."),
}
"""Parameters that are refused, the values of each that change nothing, and why it is refused."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A call of a client's tool, with its result, as the messages have it."""

    call_id: str
    name: str
    arguments: dict[str, JsonValue]
    result: str
    thought: str = ""
    """What the assistant thought and said before the call."""
    at: int = 0
    """Index of the tool message."""


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """What the messages of a request mean."""

    question: str
    conversation: tuple[Message, ...]
    files: Mapping[str, bytes]
    """Images of the conversation, by the names under which its text mentions them."""
    exchanges: tuple[Exchange, ...] = ()
    """What happened since the question. Empty for a new question."""


@dataclass
class _Reader:
    """Reads messages in their order, and refuses an order that cannot be."""

    conversation: list[Message] = field(default_factory=list)
    question: str | None = None
    attachments: Attachments = field(default_factory=Attachments)
    exchanges: list[Exchange] = field(default_factory=list)
    waiting: dict[str, tuple[ToolCall, dict[str, JsonValue], str]] = field(default_factory=dict)
    """Calls without a result: the call, its arguments, and the thought before it."""

    def read(self, messages: Sequence[ChatMessage]) -> ChatTurn:
        for at, message in enumerate(messages):
            if self.waiting and not isinstance(message, ToolMessage):
                raise _wrong(at, f"the tool call {next(iter(self.waiting))!r} needs a `tool` message with its result.")
            match message:
                case SystemMessage():
                    self.conversation.append(Message(role="system", content=text_of(message.content)))
                case UserMessage():
                    self._close_turn()
                    self.question = self._asked(at, message)
                case AssistantMessage():
                    self._assistant(at, message)
                case ToolMessage():
                    self._result(at, message)
        last = messages[-1]
        if isinstance(last, AssistantMessage):
            why = "a tool call needs a `tool` message with its result." if last.tool_calls else "nothing is asked."
            raise _wrong(len(messages) - 1, f"the messages end with the assistant's; {why}")
        if self.question is None:
            raise ApiError(400, "`messages` has no `user` message.", code="invalid_value", param="messages")
        return ChatTurn(self.question, tuple(self.conversation), self.attachments.files, tuple(self.exchanges))

    def _asked(self, at: int, message: UserMessage) -> str:
        """The text of a user message, with the names of its images where they stand."""
        if isinstance(message.content, str):
            texts = [message.content]
        else:
            texts = [self._part(part, f"messages[{at}].content[{n}]") for n, part in enumerate(message.content)]
        if not any(text.strip() for text in texts):
            raise _wrong(at, "it is empty.", ".content")
        return "\n".join(texts)

    def _part(self, part: TextPart | ImagePart, param: str) -> str:
        if isinstance(part, TextPart):
            return part.text
        image = InputImage(type="input_image", image_url=part.image_url.url)
        return f"[{self.attachments.add(image, param)}]"

    def _assistant(self, at: int, message: AssistantMessage) -> None:
        said = text_of(message.content) or message.refusal or ""
        if not message.tool_calls:
            self._close_turn(said)
            return
        thought = "\n\n".join(filter(None, [message.reasoning_content or message.reasoning, said]))
        for number, call in enumerate(message.tool_calls):
            if call.id in self.waiting:
                raise _wrong(at, f"two tool calls have the id {call.id!r}.", f".tool_calls[{number}].id")
            arguments = _arguments(call, f"messages[{at}].tool_calls[{number}].function.arguments")
            self.waiting[call.id] = call, arguments, "" if number else thought

    def _result(self, at: int, message: ToolMessage) -> None:
        found = self.waiting.pop(message.tool_call_id, None)
        if found is None:
            why = f"no assistant message before it has a tool call {message.tool_call_id!r}."
            raise _wrong(at, why, ".tool_call_id")
        call, arguments, thought = found
        result = text_of(message.content)
        self.exchanges.append(Exchange(call.id, call.function.name, arguments, result, thought, at))

    def _close_turn(self, said: str = "") -> None:
        """The question and its answer become part of the conversation. The results of calls do so only if there is no
        answer, because nothing else contains them then."""
        if self.question is not None:
            self.conversation.append(Message(role="user", content=self.question))
        calls = [call_in_words(one.name, orjson.dumps(one.arguments).decode(), one.result) for one in self.exchanges]
        if kept := said or "\n\n".join(calls):
            self.conversation.append(Message(role="assistant", content=kept))
        self.question = None
        self.exchanges.clear()


def read_messages(messages: Sequence[ChatMessage]) -> ChatTurn:
    """ApiError 400 for messages from which no run can start or go on."""
    return _Reader().read(messages)


def text_of(content: str | Iterable[TextPart | RefusalPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def _arguments(call: ToolCall, param: str) -> dict[str, JsonValue]:
    try:
        arguments = orjson.loads(call.function.arguments or "{}")
    except orjson.JSONDecodeError:
        arguments = None
    if not isinstance(arguments, dict):
        raise ApiError(400, f"`{param}` must be a JSON object as text.", code="invalid_value", param=param)
    return arguments


def _wrong(at: int, why: str, inside: str = "") -> ApiError:
    param = f"messages[{at}]{inside}"
    return ApiError(400, f"`{param}`: {why}", code="invalid_value", param=param)
