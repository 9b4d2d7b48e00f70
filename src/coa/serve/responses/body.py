"""The body of `POST /v1/responses` (Open Responses, 2026-04-24), as far as this server honours it.

A field of the standard that would change the answer and is not honoured is refused by name. Fields that have no effect
on any server, or none here, are accepted because common clients send them always; `docs/guides/serve.md` lists them.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Discriminator, Field, JsonValue, Tag, model_validator

from coa.serve.api_error import ApiError, unsupported
from coa.serve.bodies import Body
from coa.serve.request import Effort

# ---- the parts of a message


class TextPart(Body):
    type: Literal["input_text"]
    text: str


class ImagePart(Body):
    type: Literal["input_image"]
    image_url: str | None = None
    """A data URL with a PNG, JPEG, GIF or WebP image."""
    file_id: str | None = None
    detail: Literal["low", "high", "auto", "original"] | None = None


class FilePart(Body):
    type: Literal["input_file"]
    filename: str | None = None
    file_data: str | None = None
    """The content in base64, alone or as a data URL."""
    file_url: str | None = None
    file_id: str | None = None
    detail: Literal["low", "high", "auto"] | None = None


class _Echoed(Body):
    """Something that a server wrote and a client sends back. Clients add fields of their own to it."""

    model_config = ConfigDict(extra="ignore")


class OutputPart(_Echoed):
    type: Literal["output_text"]
    text: str


class RefusalPart(_Echoed):
    type: Literal["refusal"]
    refusal: str


InputPart = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")]
Part = Annotated[TextPart | ImagePart | FilePart | OutputPart | RefusalPart, Field(discriminator="type")]

# ---- items

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class MessageItem(Body):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]
    id: str | None = None
    status: ItemStatus | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class SummaryPart(_Echoed):
    type: Literal["summary_text"] = "summary_text"
    text: str


class ReasoningPart(_Echoed):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class ReasoningCoa(_Echoed):
    """Our own field of a reasoning item."""

    agent: str
    kind: str = "thought"
    ok: bool = True


class ReasoningItem(_Echoed):
    type: Literal["reasoning"]
    id: str | None = None
    summary: list[SummaryPart] = Field(default_factory=list)
    content: list[ReasoningPart] | None = None
    encrypted_content: str | None = None
    coa: ReasoningCoa | None = None


class FunctionCallItem(_Echoed):
    type: Literal["function_call"]
    id: str | None = None
    call_id: str = Field(min_length=1, max_length=64)
    name: str = Field(min_length=1, max_length=64)
    arguments: str


class FunctionCallOutputItem(Body):
    type: Literal["function_call_output"]
    id: str | None = None
    call_id: str = Field(min_length=1, max_length=64)
    output: str | list[InputPart]
    status: ItemStatus | None = None


class ItemReference(Body):
    type: Literal["item_reference"] = "item_reference"
    id: str


def _item_type(item: Any) -> str | None:
    """A message may lack its type, and so may a reference."""
    if not isinstance(item, dict):
        return getattr(item, "type", None)
    named = item.get("type")
    if named is not None:
        return named if isinstance(named, str) else None
    return "message" if "role" in item else "item_reference" if "id" in item else None


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")]
    | Annotated[ItemReference, Tag("item_reference")],
    Discriminator(_item_type),
]

# ---- settings


class FunctionTool(Body):
    type: Literal["function"]
    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    """JSON schema of an object with the arguments."""
    strict: bool | None = None


class FunctionChoice(Body):
    type: Literal["function"]
    name: str


class AllowedTools(Body):
    type: Literal["allowed_tools"]
    tools: list[FunctionChoice] = Field(min_length=1, max_length=128)
    mode: Literal["auto", "none", "required"] | None = None


class ReasoningSettings(Body):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class TextFormat(Body):
    type: Literal["text"]


class TextSettings(Body):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class StreamOptions(Body):
    include_obfuscation: bool | None = None


MOST_TOOLS: Final = 128
MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]

REFUSED: Final = {
    "conversation": "continue with `previous_response_id`, or send the earlier messages in `input`",
    "prompt": "send the text itself in `instructions` and `input`",
    "context_management": "the agent keeps within its context by itself",
    "moderation": "the server checks no content",
    "presence_penalty": "use `temperature` and `top_p`",
    "frequency_penalty": "use `temperature` and `top_p`",
    "top_logprobs": "the server returns no log probabilities",
}
"""Fields of the standard, or of OpenAI's version of it, that would change the answer and have no effect here."""


class CreateResponse(Body):
    """A request for a response of an agent."""

    model: str = Field(min_length=1)
    """Name of a served agent, as listed by `GET /v1/models`."""
    input: str | list[InputItem]
    """A question, or a conversation whose last item is a question or the output of a function call."""
    instructions: str | None = None
    """Added to the agent's own system prompt, for this response only."""
    tools: list[FunctionTool] | None = Field(None, max_length=MOST_TOOLS)
    """Functions that the client can call for the agent, besides the agent's own tools."""
    tool_choice: Literal["auto", "none", "required"] | FunctionChoice | AllowedTools | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    """Whether the response can be read and followed up later. Default: true."""
    previous_response_id: str | None = None
    background: bool | None = None
    """Whether to return at once and let the agent work on."""
    max_output_tokens: int | None = Field(None, ge=16, le=1 << 31)
    """Most tokens that the model may write, thoughts included."""
    max_tool_calls: int | None = Field(None, ge=1, le=1 << 31)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    metadata: dict[MetadataKey, MetadataValue] | None = Field(None, max_length=16)
    reasoning: ReasoningSettings | None = None
    text: TextSettings | None = None
    include: list[Literal["reasoning.encrypted_content"]] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    parallel_tool_calls: bool | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    user: str | None = None
    safety_identifier: str | None = Field(None, max_length=64)
    prompt_cache_key: str | None = Field(None, max_length=64)
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_has_no_effect(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name in REFUSED.keys() & data.keys():
            if data[name] is not None and (data[name] != 0 or isinstance(data[name], bool)):
                raise unsupported(name, REFUSED[name])
        return {name: value for name, value in data.items() if name not in REFUSED}

    def check(self) -> None:
        """What is of the right form and yet cannot be done."""
        if self.background and self.store is False:
            raise ApiError(400, "A background response must be stored: leave out `store`.", param="store")
        choice = self.tool_choice
        if choice == "required" or (isinstance(choice, AllowedTools) and choice.mode == "required"):
            raise unsupported("tool_choice", "the agent decides itself whether it calls a tool; use `auto` or `none`")
        if isinstance(choice, FunctionChoice):
            raise unsupported("tool_choice", "the agent decides itself which tool it calls; offer only that one")
        names = {tool.name for tool in self.tools or []}
        if isinstance(choice, AllowedTools):
            for number, tool in enumerate(choice.tools):
                if tool.name not in names:
                    message = f"`tool_choice` names the function {tool.name!r}, which `tools` does not have."
                    raise ApiError(400, message, code="invalid_value", param=f"tool_choice.tools[{number}].name")

    def offered(self) -> list[FunctionTool]:
        """The functions that the agent may call."""
        choice = self.tool_choice
        if choice == "none" or (isinstance(choice, AllowedTools) and choice.mode == "none"):
            return []
        allowed = {tool.name for tool in choice.tools} if isinstance(choice, AllowedTools) else None
        return [tool for tool in self.tools or [] if allowed is None or tool.name in allowed]
