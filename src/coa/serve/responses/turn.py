"""What a request asks for: a question with the conversation before it, or the result of a call that a run waits for.

Earlier turns reach the model as their questions and answers. Reasoning items and calls of a turn that was answered are
not needed for that, so they are left out, whether the client sends them again or names the turn by
`previous_response_id`. A call whose result was followed by another question, and not by an answer, becomes a message of
the conversation, because nothing else contains the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coa.serve.api_error import ApiError
from coa.serve.request import call_in_words
from coa.serve.responses.attachments import Attachments
from coa.serve.responses.body import (
    FilePart,
    FunctionCallItem,
    FunctionCallOutputItem,
    ImagePart,
    InputItem,
    InputPart,
    ItemReference,
    MessageItem,
    Part,
    ReasoningItem,
    RefusalPart,
)
from coa.trajectory import Message

TrailItem = ReasoningItem | FunctionCallItem | FunctionCallOutputItem
Lookup = Callable[[str], InputItem | None]


@dataclass(slots=True)
class Turn:
    conversation: list[Message] = field(default_factory=list)
    """Before the question."""
    question: str = ""
    attachments: Attachments = field(default_factory=Attachments)
    trail: list[TrailItem] = field(default_factory=list)
    """What happened since the question, of a run that is to be continued."""

    @property
    def result(self) -> FunctionCallOutputItem | None:
        """The result with which a run is to be continued; None for a new question."""
        last = self.trail[-1] if self.trail else None
        return last if isinstance(last, FunctionCallOutputItem) else None


def read_turn(items: str | Sequence[InputItem], before: Turn | None = None, lookup: Lookup = lambda _: None) -> Turn:
    """`before` is the turn that the request follows, with its answer in the conversation, or with a call in its trail.
    `lookup` finds an item that the client only refers to."""
    reader = _Reader(before or Turn(), lookup)
    if isinstance(items, str):
        reader.message(MessageItem(role="user", content=items), "input", whole=True)
    else:
        for number, item in enumerate(items):
            reader.take(item, f"input[{number}]")
    return reader.finished()


class _Reader:
    def __init__(self, turn: Turn, lookup: Lookup) -> None:
        self._turn, self._lookup = turn, lookup
        self._messages = list(turn.conversation)
        self._calls = {item.call_id for item in turn.trail if isinstance(item, FunctionCallItem)}
        """Ids of the calls in the trail."""
        if turn.question:
            self._messages.append(Message(role="user", content=turn.question))

    def take(self, item: InputItem, param: str) -> None:
        if isinstance(item, ItemReference):
            found = self._lookup(item.id)
            if found is None:
                raise ApiError(400, f"There is no item {item.id!r}.", code="item_not_found", param=f"{param}.id")
            item = found
        if isinstance(item, MessageItem):
            self.message(item, param)
        elif not isinstance(item, ItemReference):
            self._step(item)

    def message(self, item: MessageItem, param: str, *, whole: bool = False) -> None:
        text = item.content if isinstance(item.content, str) else self._text(item.content, item.role, param)
        if item.role == "user":
            if not text.strip() and not isinstance(item.content, list):
                message = "The question is empty." if whole else f"`{param}.content` is empty."
                raise ApiError(400, message, code="invalid_value", param=param if whole else f"{param}.content")
            self._keep_results()
            self._messages.append(Message(role="user", content=text))
        elif item.role == "assistant":
            self._clear_trail()
            self._messages.append(Message(role="assistant", content=text))
        else:
            self._messages.append(Message(role="system", content=text))

    def _text(self, parts: Sequence[Part], role: str, param: str) -> str:
        texts = []
        for number, part in enumerate(parts):
            where = f"{param}.content[{number}]"
            if isinstance(part, ImagePart | FilePart):
                if role != "user":
                    raise ApiError(400, f"`{where}`: only a user message can have files.", param=where)
                texts.append(f"[{self._turn.attachments.add(part, where)}]")
            else:
                texts.append(part.refusal if isinstance(part, RefusalPart) else part.text)
        return "\n".join(texts)

    def _step(self, item: TrailItem) -> None:
        if isinstance(item, FunctionCallItem):
            if item.call_id in self._calls:
                return  # a client that sends the call again which `previous_response_id` already contains
            self._calls.add(item.call_id)
        self._turn.trail.append(item)

    def _clear_trail(self) -> None:
        self._turn.trail.clear()
        self._calls.clear()

    def finished(self) -> Turn:
        turn = self._turn
        self._check_calls_have_results()
        messages = self._messages
        systems = _last_of(messages, "system")
        asked = _last_of(messages, "user")
        turn.conversation, turn.question = [*messages, *systems], "\n\n".join(message.content for message in asked)
        if turn.result is None and not turn.question:
            raise ApiError(
                400,
                "The input must end with a user message, or with the output of a function call.",
                code="invalid_value",
                param="input",
            )
        return turn

    def _keep_results(self) -> None:
        """A question follows: what the calls before it returned becomes part of the conversation."""
        self._check_calls_have_results()
        calls = {item.call_id: item for item in self._turn.trail if isinstance(item, FunctionCallItem)}
        for item in self._turn.trail:
            if isinstance(item, FunctionCallOutputItem) and item.call_id in calls:
                call = calls[item.call_id]
                kept = call_in_words(call.name, call.arguments, output_text(item))
                self._messages.append(Message(role="assistant", content=kept))
        self._clear_trail()

    def _check_calls_have_results(self) -> None:
        answered = {item.call_id for item in self._turn.trail if isinstance(item, FunctionCallOutputItem)}
        for item in self._turn.trail:
            if isinstance(item, FunctionCallItem) and item.call_id not in answered:
                message = f"The output of the function call {item.call_id} is missing."
                raise ApiError(400, message, code="missing_tool_output", param="input")


def _last_of(messages: list[Message], role: str) -> list[Message]:
    """Take the messages of this role from the end of the list."""
    start = len(messages)
    while start and messages[start - 1].role == role:
        start -= 1
    taken = messages[start:]
    del messages[start:]
    return taken


def output_text(item: FunctionCallOutputItem) -> str:
    return item.output if isinstance(item.output, str) else _joined(item.output)


def _joined(parts: Sequence[InputPart]) -> str:
    texts = []
    for number, part in enumerate(parts):
        if isinstance(part, ImagePart | FilePart):
            where = f"output[{number}]"
            raise ApiError(400, f"`{where}`: the output of a function must be text.", param=where)
        texts.append(part.text)
    return "\n".join(texts)
