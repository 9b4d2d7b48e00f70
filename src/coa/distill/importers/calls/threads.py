"""Which call continues which: exchanges in the order of their responses, joined into threads.

A thread is one agent's conversation. A request that begins with an earlier request and its reply continues it. Each
beginning of a history has a hash, and a table leads from the hash of "request and reply" to the exchange, so a request
is placed by looking up the hashes of its own beginnings, the longest first; no two histories are compared. Where the
longest one belongs to another agent (its system prompt differs), that agent passed its history on, and the search goes
on for an earlier turn of the same agent. A history that no hash finds may have been rewritten: it is recognised by the
ids of calls, or by the words of a reply, that it still holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from coa.distill.importers.calls.exchange import Piece, PieceKind, Reply, after, hashes, normal, same_call
from coa.distill.importers.calls.log import Exchange
from coa.distill.importers.calls.naming import prompt
from coa.distill.member_names import hands_over_control

_TELLING: Final = 40
"""Number of characters from which on a repeated reply shows that a history goes on, and who wrote it."""


@dataclass(eq=False)
class Thread:
    """One agent's conversation. It becomes a path when everything is read: see `settled`."""

    exchanges: list[Exchange] = field(default_factory=list)
    unused: list[Exchange] = field(default_factory=list)
    """Replies that the conversation did not go on from."""

    @property
    def first(self) -> Exchange:
        return self.exchanges[0]

    @property
    def last(self) -> Exchange:
        return self.exchanges[-1]


def same_agent(one: Exchange, other: Exchange) -> bool:
    if one.agent and other.agent:
        return one.agent == other.agent
    return prompt(one.asked.system).same(prompt(other.asked.system))


class Threads:
    def __init__(self) -> None:
        self._open: dict[tuple[str | None, bytes], list[tuple[Exchange, int]]] = {}
        """By run and hash: exchanges (with the choice) that no exchange of the same agent continues yet."""
        self._continued: dict[tuple[str | None, bytes], tuple[Exchange, int]] = {}
        self._requests: dict[tuple[str | None, bytes], list[Exchange]] = {}
        """Requests that failed and were not sent again yet."""
        self._responses: dict[str, Exchange] = {}
        self._conversations: dict[str, Exchange] = {}
        self._calls: dict[tuple[str | None, str, str], Exchange] = {}
        self._words: dict[tuple[str | None, bytes], Exchange] = {}
        self._next: dict[Exchange, list[Exchange]] = {}
        self._roots: list[Exchange] = []
        self.speakers: dict[tuple[str | None, str], str] = {}
        """By run and words: the name under which a framework repeats them."""

    def add(self, exchange: Exchange) -> None:
        pieces = exchange.asked.pieces
        asked = exchange.asked
        for piece in pieces:
            if piece.speaker and len(piece.text) >= _TELLING:
                self.speakers[exchange.run, normal(piece.text)] = piece.speaker
        begun = self._responses.get(asked.previous or "") or self._conversations.get(asked.conversation or "")
        start = self._ended(begun) if begun is not None else b""
        beginnings = list(hashes(pieces, start))
        exchange.hash = beginnings[-1]
        exchange.base = begun
        if not self._repeats(exchange):
            self._place(exchange, beginnings)
        self._register(exchange)

    def _ended(self, exchange: Exchange) -> bytes:
        return after(exchange.hash, exchange.reply.pieces if exchange.reply is not None else [])

    def _repeats(self, exchange: Exchange) -> bool:
        """Whether this request failed before and is sent again."""
        key = (exchange.run, exchange.hash)
        waiting = self._requests.get(key, [])
        before = next((other for other in waiting if same_agent(exchange, other)), None)
        if before is None:
            return False
        waiting.remove(before)
        exchange.failed = [*before.failed, before]
        exchange.base, exchange.own, exchange.rewritten = before.base, before.own, before.rewritten
        exchange.asked.pieces = before.asked.pieces
        siblings = self._roots if before.own is None else self._next[before.own]
        siblings[siblings.index(before)] = exchange
        return True

    def _place(self, exchange: Exchange, beginnings: list[bytes]) -> None:
        pieces, begun = exchange.asked.pieces, exchange.base
        if begun is not None and same_agent(exchange, begun):
            exchange.own = begun
        else:
            depth = self._longest(exchange, beginnings)
            if depth:
                exchange.asked.pieces = pieces[depth:]
        if exchange.own is None:
            self._rewritten(exchange, pieces)
        if exchange.own is None:
            self._roots.append(exchange)
        else:
            self._next.setdefault(exchange.own, []).append(exchange)
            self._close(exchange.own)

    def _longest(self, exchange: Exchange, beginnings: list[bytes]) -> int:
        """Finds what the request continues; returns how many of its pieces that holds."""
        found = 0
        for depth in range(len(beginnings) - 1, 0, -1):
            key = (exchange.run, beginnings[depth])
            candidates = self._open.get(key, [])
            known = [*candidates, *([self._continued[key]] if key in self._continued else [])]
            if known:
                known = self._with_calls_of(exchange.run, exchange.asked.pieces[:depth], known)
                candidates = [item for item in candidates if item in known]
            if not known:
                continue
            own = [item for item in candidates if same_agent(exchange, item[0])]
            own = own or [item for item in known if same_agent(exchange, item[0])]
            chosen = self._chosen(exchange, own or known, exchange.asked.pieces[:depth])
            if not found:
                found = depth
                exchange.base, chosen[0].used = chosen[0], chosen[1]
            if own:
                exchange.own = chosen[0]
                break
        return found

    def _with_calls_of(
        self, run: str | None, held: list[Piece], known: list[tuple[Exchange, int]]
    ) -> list[tuple[Exchange, int]]:
        """Without those of other runs that say the same: the last call that a history holds is of one exchange."""
        last = next((piece.call for piece in reversed(held) if piece.call is not None), None)
        if last is None or (run, last.id, same_call(last)) not in self._calls:
            return known
        return [item for item in known if last.id in _ids(_whole(item))]

    def _chosen(
        self, exchange: Exchange, candidates: list[tuple[Exchange, int]], held: list[Piece]
    ) -> tuple[Exchange, int]:
        if len(candidates) > 1:
            ids = _ids(held)
            named = [item for item in candidates if ids and _ids(_whole(item)) == ids]
            candidates = named or candidates
            for attribute in ("span", "trace"):
                value = getattr(exchange, attribute)
                alike = [item for item in candidates if value and getattr(item[0], attribute) == value]
                candidates = alike or candidates
            exchange.ambiguous = max(exchange.ambiguous, len(candidates) - 1)
        return candidates[0]

    def _rewritten(self, exchange: Exchange, pieces: list[Piece]) -> None:
        """A history that was shortened or changed, by what is left of the agent's own turns in it."""
        calls = [piece.call for piece in reversed(pieces) if piece.call is not None]
        said = [piece for piece in reversed(pieces) if piece.kind is PieceKind.SAID and len(piece.text) >= _TELLING]
        found = [self._calls.get((exchange.run, call.id, same_call(call))) for call in calls]
        found += [self._words.get((exchange.run, piece.key())) for piece in said]
        for other in found:
            if other is not None and other is not exchange and same_agent(exchange, other):
                exchange.own, exchange.rewritten = other, True
                return

    def _close(self, exchange: Exchange) -> None:
        for key in self._keys(exchange, exchange.reply):
            for item in self._open.get(key, []):
                if item[0] is exchange:
                    self._open[key].remove(item)
                    self._continued[key] = item
                    break
            if key in self._open and not self._open[key]:
                del self._open[key]

    def _keys(self, exchange: Exchange, reply: Reply | None) -> list[tuple[str | None, bytes]]:
        """How a history begins that goes on from a reply: AG2 leaves out the calls that handed over control."""
        if reply is None:
            return [(exchange.run, exchange.hash)]
        keys = [(exchange.run, after(exchange.hash, reply.pieces))]
        said = [piece for piece in reply.pieces if piece.call is None]
        if said and reply.calls and all(map(hands_over_control, reply.calls)):
            keys.append((exchange.run, after(exchange.hash, said)))
        return keys

    def _register(self, exchange: Exchange) -> None:
        if exchange.response:
            self._responses[exchange.response] = exchange
        if exchange.asked.conversation and not exchange.error:
            self._conversations[exchange.asked.conversation] = exchange
        if exchange.error:
            self._requests.setdefault((exchange.run, exchange.hash), []).append(exchange)
        for index, reply in enumerate(exchange.choices):
            if not reply.pieces:
                continue
            for key in self._keys(exchange, reply):
                self._open.setdefault(key, []).append((exchange, index))
            for piece in reply.pieces:
                if piece.call is not None:
                    self._calls[exchange.run, piece.call.id, same_call(piece.call)] = exchange
                elif piece.kind is PieceKind.SAID and len(piece.text) >= _TELLING:
                    self._words[exchange.run, piece.key()] = exchange

    def settled(self) -> list[Thread]:
        """The threads, each as one path, in the order in which they began."""
        return sorted((self._path(root) for root in self._roots), key=lambda thread: thread.first.began)

    def _path(self, root: Exchange) -> Thread:
        """Where a reply was continued twice, or asked for twice: the longest path, the latest if several."""
        reach: dict[Exchange, tuple[int, int]] = {}
        everything = [root]
        for exchange in everything:
            everything += self._next.get(exchange, [])
        for exchange in reversed(everything):
            below = max((reach[after] for after in self._next.get(exchange, [])), default=(0, 0))
            reach[exchange] = (below[0] + 1, max(below[1], exchange.began))
        thread, step = Thread(), root
        while True:
            thread.exchanges.append(step)
            following = self._next.get(step, [])
            if not following:
                break
            step = max(following, key=lambda exchange: reach[exchange])
        taken = set(thread.exchanges)
        thread.unused = [exchange for exchange in everything if exchange not in taken]
        return thread


def _ids(pieces: Iterable[Piece]) -> list[str]:
    return [piece.call.id for piece in pieces if piece.call is not None]


def _whole(item: tuple[Exchange, int]) -> list[Piece]:
    return [*item[0].history(), *item[0].choices[item[1]].pieces]
