"""Calls that serve the conversation and not the task: titles, summaries of a history that became too long.

Such a call is no turn of an agent. It is recognised by what it asks for, and only where it belongs to a conversation of
the same recording: it continues one, or quotes what one was asked. So a task that asks for a title stays a task. Where
an agent goes on from a summary instead of from its history, its conversation is one, with a rewritten context.
"""

from __future__ import annotations

import re
from typing import Final

from coa.distill.importers.calls.exchange import PieceKind
from coa.distill.importers.calls.log import Exchange
from coa.distill.importers.calls.phrases import Phrases, words
from coa.distill.importers.calls.stints import Stint, asked_in, news
from coa.distill.importers.calls.threads import same_agent

_SUMMARY: Final = re.compile(
    r"\b(?:summar(?:y|ies|i[sz]e|i[sz]ing)|compact|condense|compress)\b.{0,80}"
    r"\b(?:conversation|chat|history|dialog(?:ue)?|transcript|messages|context|progress|session|so far)\b"
    r"|\b(?:conversation|chat|history|dialog(?:ue)?|transcript|messages|context|session)\b.{0,80}"
    r"\b(?:summar(?:y|i[sz]ed?)|compacted|condensed)\b",
    re.IGNORECASE | re.DOTALL,
)
_TITLE: Final = re.compile(
    r"\btitle\b.{0,80}\b(?:conversation|chat|session|thread|dialog(?:ue)?|message)\b"
    r"|\b(?:conversation|chat|session|thread|dialog(?:ue)?|message)\b.{0,80}\btitle\b|\bfollow-?up questions\b",
    re.IGNORECASE | re.DOTALL,
)
_LONGEST: Final = 4_000
"""Number of characters of a prompt, at either end, that say what is wanted."""
_TELLING: Final = 4
"""Number of words from which on a quoted text shows where it comes from."""


def fold_upkeep(stints: list[Stint]) -> list[Stint]:
    """The stints without upkeep, whose calls are in the `upkeep` of those that they serve."""
    asked, said = Phrases[Stint](), Phrases[Stint]()
    stint_of = {exchange: stint for stint in stints for exchange in stint.exchanges}
    for stint in stints:
        if len(request := words(stint.request())) >= _TELLING:
            asked.add(request, stint)
        if _wants(stint.last, _SUMMARY) and len(answer := words(stint.answer() or "")) >= _TELLING:
            said.add(answer, stint)
    hosts: dict[int, Stint] = {}
    for stint in stints:
        if len(stint.exchanges) == 1 and not stint.last.asked.tools and (host := _host(stint, asked, stint_of)):
            hosts[id(stint)] = host
    gone: set[int] = set()
    for stint in stints:
        if id(stint) in hosts or stint.first.own is not None:
            continue
        heard = words(asked_in(news(stint.first)))
        for _, summary in said.within(heard):
            host = hosts.get(id(summary), summary if len(summary.exchanges) > 1 else None)
            if host is not None and host is not stint and id(host) not in gone and _continues(stint, summary, host):
                if host is summary:
                    host.upkeep.append(host.exchanges.pop())
                _join(host, stint, stints)
                gone.add(id(stint))
                break
    for stint in stints:
        if (served := hosts.get(id(stint))) is not None:
            served.upkeep += stint.exchanges
            gone.add(id(stint))
    return [stint for stint in stints if id(stint) not in gone]


def _wants(exchange: Exchange, what: re.Pattern[str]) -> bool:
    pieces = exchange.asked.pieces
    last = next((piece.text for piece in reversed(pieces) if piece.kind is PieceKind.USER), "")
    texts = (exchange.asked.system[:_LONGEST], last[:_LONGEST], last[-_LONGEST:])
    return any(what.search(text) for text in texts)


def _host(stint: Stint, asked: Phrases[Stint], stint_of: dict[Exchange, Stint]) -> Stint | None:
    """The stint that an upkeep call serves; None where it is none, or serves nobody who was recorded."""
    if not (_wants(stint.last, _SUMMARY) or _wants(stint.last, _TITLE)):
        return None
    if stint.entered is not None:
        return stint_of.get(stint.entered)
    quoted = [
        other
        for piece in stint.first.history()
        if piece.kind is PieceKind.USER
        for _, other in asked.within(words(piece.text))
        if other is not stint and other.run == stint.run and other.first.began < stint.first.began
    ]
    return max(quoted, key=lambda other: other.first.began, default=None)


def _continues(stint: Stint, summary: Stint, host: Stint) -> bool:
    later = summary.last.began < stint.first.began and summary.last.ended < stint.first.ended
    return later and stint.run == host.run and stint.call is None and same_agent(stint.first, host.first)


def _join(host: Stint, stint: Stint, stints: list[Stint]) -> None:
    """One conversation of what came before a summary and of what came after."""
    stint.first.own, stint.first.rewritten = host.last, True
    host.exchanges += stint.exchanges
    thread = stint.thread
    known = set(host.thread.exchanges)
    host.thread.exchanges = [exchange for exchange in host.thread.exchanges if exchange not in host.upkeep]
    host.thread.exchanges += [exchange for exchange in thread.exchanges if exchange not in known]
    host.thread.unused += thread.unused
    for other in stints:
        if other.thread is thread:
            other.thread = host.thread
        if other.parent is stint:
            other.parent = host
