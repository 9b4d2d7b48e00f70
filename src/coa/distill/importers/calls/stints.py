"""Threads cut into stints: one agent at work on one request, until it reports or hands control on.

A stint becomes an `AgentRun`. A thread has several where the agent was called again and remembers the earlier calls,
where a user went on after an answer, and where control left the agent for good and came back by a new hand-over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from coa.distill.importers.calls.exchange import Piece, PieceKind, normal
from coa.distill.importers.calls.log import Exchange
from coa.distill.importers.calls.naming import prompt, strong_name
from coa.distill.importers.calls.threads import Thread, same_agent
from coa.distill.importers.wrapped import unwrapped_task
from coa.distill.member_names import bare_name, hands_over_control, plain_name, possible_names
from coa.distill.team_run import ToolCall

HISTORY: Final = "history"
"""Evidence that leaves no choice: the agent's request repeats the history that ends with the call."""
SIGNS: Final = {
    "request": "its request repeats an argument of the call",
    "answer": "the result of the call repeats its answer",
    "name": "the call names it",
    "pipeline": "its request quotes the answer of an earlier agent",
}
"""Evidence that could be a coincidence, if it is the only one."""


@dataclass(eq=False)
class Stint:
    thread: Thread
    exchanges: list[Exchange] = field(default_factory=list)
    entered: Exchange | None = None
    """The turn of another agent whose history it goes on from."""
    call: tuple[Exchange, ToolCall] | None = None
    """The call that started it."""
    evidence: str = ""
    """What shows that."""
    rivals: int = 0
    """Number of other calls that could have started it as well."""
    parent: Stint | None = None
    name: str = ""
    given: bool = False
    """The name was given with the calls."""
    upkeep: list[Exchange] = field(default_factory=list)
    """Calls that served the conversation: see `upkeep.py`."""
    back: set[str] = field(default_factory=set)
    """Ids of calls that gave control back to the caller."""

    @property
    def first(self) -> Exchange:
        return self.exchanges[0]

    @property
    def last(self) -> Exchange:
        return self.exchanges[-1]

    @property
    def run(self) -> str | None:
        return self.first.run

    def request(self) -> str:
        return unwrapped_task(asked_in(news(self.first)))

    def answer(self) -> str | None:
        """What it reports or answers; None if it ended in the middle of its work."""
        reply = self.last.reply
        if reply is None or self.last.error:
            return None
        if reply.answer is not None:
            return reply.answer
        waits = any(call.id not in self.back for call in reply.calls)
        return None if waits else reply.text or None

    def above(self) -> Iterable[Stint]:
        step, seen = self.parent, {id(self)}
        while step is not None and id(step) not in seen:
            seen.add(id(step))
            yield step
            step = step.parent


def news(exchange: Exchange) -> list[Piece]:
    """What a request holds that the agent had not read or written before."""
    own = exchange.own
    if own is None:
        return exchange.history()
    if exchange.base is own and not exchange.rewritten:
        return exchange.asked.pieces
    if exchange.rewritten:
        known = {piece.key() for piece in [*own.history(), *(own.reply.pieces if own.reply else ())]}
        return [piece for piece in exchange.history() if piece.key() not in known]
    before = len(own.history()) + (len(own.reply.pieces) if own.reply is not None else 0)
    return exchange.history()[before:]


def asked_in(pieces: list[Piece]) -> str:
    """What a user says last: after the last words of a model, or at first where these end the history."""
    last = max((index for index, piece in enumerate(pieces) if piece.kind is PieceKind.SAID), default=-1)
    users = [piece.text for piece in pieces[last + 1 :] if piece.kind is PieceKind.USER]
    return "\n\n".join(users or [piece.text for piece in pieces if piece.kind is PieceKind.USER][:1])


def stints_of(threads: list[Thread], speakers: Mapping[tuple[str | None, str], str]) -> list[Stint]:
    """In the order in which they began."""
    thread_of = {exchange: thread for thread in threads for exchange in thread.exchanges}
    found: list[Stint] = []
    stint_of: dict[Exchange, Stint] = {}

    def new(exchange: Exchange, entered: Exchange | None) -> Stint:
        stint = Stint(thread_of[exchange], entered=entered)
        found.append(stint)
        if entered is not None:
            _enter(stint, exchange, entered, stint_of[entered])
        return stint

    for exchange in sorted(thread_of, key=lambda item: item.ended):
        own, base = exchange.own, exchange.base
        stint = stint_of.get(own) if own is not None else None
        handed = base if base is not own and base in stint_of and not same_agent(exchange, base) else None
        if stint is None:
            stint = new(exchange, handed)
        elif handed is not None:
            other = stint_of[handed]
            if stint not in other.above():
                stint = new(exchange, handed)
        elif own is not None and own.reply is not None and not own.reply.calls and _asks(exchange):
            stint = new(exchange, None)
        stint.exchanges.append(exchange)
        stint_of[exchange] = stint
    for stint in found:
        _name(stint, speakers)
    return sorted(found, key=lambda stint: stint.first.began)


def _asks(exchange: Exchange) -> bool:
    return not exchange.rewritten and any(piece.kind is PieceKind.USER for piece in news(exchange))


def _enter(stint: Stint, exchange: Exchange, entered: Exchange, caller: Stint) -> None:
    """Control went on from `entered`: by which of its calls, if any."""
    stint.parent, stint.evidence = caller, HISTORY
    answered = {piece.id for piece in exchange.asked.pieces if piece.kind is PieceKind.RESULT}
    calls = [call for call in entered.calls if not call.id or call.id in answered] or list(entered.calls)
    name = bare_name(plain_name(exchange.agent or prompt(exchange.asked.system).name))
    named = [call for call in calls if name in possible_names(call)]
    chosen = next(iter(named or [call for call in calls if hands_over_control(call)] or calls), None)
    if chosen is not None:
        stint.call = (entered, chosen)
        stint.rivals = max(0, len(named) - 1)


def give_back(stints: list[Stint]) -> None:
    """Calls by which control came back to a caller: such a call hands in a report and is no call of a tool."""
    started = {id(stint.call[1]) for stint in stints if stint.call is not None}
    for stint in stints:
        above = {bare_name(plain_name(other.name)) for other in stint.above() if other.name}
        for call in stint.last.calls:
            if id(call) in started or not hands_over_control(call) or stint.call is None:
                continue
            if "back" in call.name.casefold() or above & possible_names(call):
                stint.back.add(call.id)


def _name(stint: Stint, speakers: Mapping[tuple[str | None, str], str]) -> None:
    given = next((exchange.agent for exchange in stint.exchanges if exchange.agent), None)
    if given:
        stint.name, stint.given = given, True
        return
    named = prompt(stint.first.asked.system)
    said = [normal(exchange.reply.text) for exchange in stint.exchanges if exchange.reply is not None]
    spoken = next((speakers[stint.run, text] for text in said if (stint.run, text) in speakers), "")
    stint.name = named.strong or spoken or strong_name(asked_in(news(stint.first))[:2_000]) or named.name
