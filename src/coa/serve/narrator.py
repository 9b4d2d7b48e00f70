"""From the events of a chain to those of a served run: items that begin, grow and end one after another.

The chain reports what a model writes twice: `Opened` and `Delta` while it writes, read from half of the text, then a
`Step` for each step of the complete generation. Clients need one story. So an item ends when the next one begins or
when its step is recorded, whichever comes first, and a step that has been shown is not shown again. A tool call ends
with its arguments, which are known when the call is made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from coa.runtime.streaming import Called, ChainEvent, Observed
from coa.serve.events import ItemBegan, ItemDone, ItemKind, ItemText, RunEvent, ToolReturned
from coa.trajectory import Author, Delta, Kind, Opened, Profile, Step, Trajectory


@dataclass(slots=True)
class _OpenItem:
    agent: str
    kind: ItemKind
    number: int | None = None
    """None until it has been announced."""
    pieces: list[str] = field(default_factory=list)
    blanks: str = ""
    """Blanks at the end of the text so far. They are passed on only if more text follows."""
    step: Step | None = None
    """The recorded step of a tool call that has not been made yet."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def is_call(self) -> bool:
        return self.kind in (ItemKind.TOOL, ItemKind.CLIENT_TOOL)


class Narrator:
    """The listener of one run's chain. `emit` gets the events in order; `conclude` must be called once at the end."""

    def __init__(
        self,
        profile: Profile,
        client_tools: Collection[str],
        emit: Callable[[RunEvent], None],
        tools: Collection[str] = (),
    ) -> None:
        """`tools` are the tags of all tools of the run, also of those that its profile does not name."""
        self._kinds = {tag: _kind(agent.kind, tag in client_tools) for tag, agent in profile.agents.items()}
        self._kinds |= dict.fromkeys(tools, ItemKind.TOOL) | dict.fromkeys(client_tools, ItemKind.CLIENT_TOOL)
        self._emit = emit
        self._count = 0
        self._open: _OpenItem | None = None
        self._called: int | None = None
        """Item of the call whose result is awaited."""
        self._shown: deque[str] = deque()
        """Agents of the items of this generation that ended before their steps were recorded."""
        self._answered = False

    def __call__(self, event: ChainEvent) -> None:
        if isinstance(event, Delta):
            self._grow(event.text)
        elif isinstance(event, Opened):
            if self._open is not None and self._open.step is None:
                self._shown.append(self._open.agent)
            self._end_open()
            self._begin(event.agent)
        elif isinstance(event, Called):
            self._call_made(event)
        elif isinstance(event, Observed):
            self._observed(event.step)
        else:
            self._recorded(event)

    def conclude(self, trajectory: Trajectory) -> None:
        """End the last item. An answer that no event has shown becomes an item too."""
        self._end_open()
        answer = trajectory.answer
        if answer and not self._answered:
            self._whole(Step(agent="answer", text=answer, author=Author.ENVIRONMENT))

    def _begin(self, agent: str) -> _OpenItem:
        """An answer is announced with its first word: an empty one is no item."""
        self._open = item = _OpenItem(agent, self._kinds.get(agent, ItemKind.THOUGHT))
        if item.kind is not ItemKind.ANSWER:
            self._announce(item)
        return item

    def _announce(self, item: _OpenItem) -> int:
        """Its number."""
        if item.number is None:
            item.number, self._count = self._count, self._count + 1
            self._emit(ItemBegan(item.number, item.agent, item.kind))
        return item.number

    def _grow(self, text: str) -> None:
        item = self._open
        if item is None:
            return
        if not item.pieces:
            text = text.lstrip()
        text = item.blanks + text
        kept = text.rstrip()
        item.blanks = text[len(kept) :]
        if kept:
            item.pieces.append(kept)
            self._emit(ItemText(self._announce(item), kept))

    def _recorded(self, step: Step) -> None:
        """The step is complete. It has been shown, is being shown, or comes from a model that does not stream."""
        if self._shown and self._shown[0] == step.agent:
            self._shown.popleft()
            return
        self._shown.clear()
        if self._open is None or self._open.agent != step.agent:
            self._end_open()
            self._whole(step)
        else:
            self._complete(self._open, step)

    def _whole(self, step: Step) -> None:
        self._complete(self._begin(step.agent), step)

    def _complete(self, item: _OpenItem, step: Step) -> None:
        shown, text = item.text, step.text.strip()
        if text.startswith(shown) and len(text) > len(shown):
            item.pieces.append(text[len(shown) :])
            self._emit(ItemText(self._announce(item), text[len(shown) :]))
        item.step = step
        if not item.is_call:
            self._end_open()

    def _end_open(self) -> None:
        """End the item that is open, if there is one."""
        item, self._open = self._open, None
        if item is not None and item.number is not None:
            self._answered = self._answered or item.kind is ItemKind.ANSWER
            self._emit(ItemDone(item.number, item.step or Step(agent=item.agent, text=item.text)))

    def _call_made(self, event: Called) -> None:
        item = self._open if self._open is not None and self._open.agent == event.agent else self._begin(event.agent)
        self._open, self._called = None, self._announce(item)
        self._emit(ItemDone(self._called, item.step or Step(agent=item.agent, text=item.text), event.arguments))

    def _observed(self, step: Step) -> None:
        self._shown.clear()
        if step.agent == "answer":
            self._end_open()
            self._whole(step)
            return
        if self._open is not None and self._open.is_call and self._open.step is not None:
            self._called = self._open.number  # a call that could not be made; the step says why
        self._end_open()
        if self._called is not None:
            self._emit(ToolReturned(self._called, step))
        self._called = None


def _kind(kind: Kind, of_client: bool) -> ItemKind:
    if of_client:
        return ItemKind.CLIENT_TOOL
    return {Kind.TOOL: ItemKind.TOOL, Kind.ANSWER: ItemKind.ANSWER}.get(kind, ItemKind.THOUGHT)
