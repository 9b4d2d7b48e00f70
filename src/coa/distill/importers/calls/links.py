"""Who called whom: each stint that nobody handed over to by its history is matched with a call that was open then.

A call can have started a stint only if it was written before the stint began and answered after the stint ended. Among
those, the words decide: the stint's request repeats an argument of the call, the call's result repeats the stint's
answer, or the call names the agent. Calls are found by their words in an index, and leave it when they are answered.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from coa.distill.importers.calls.exchange import PieceKind, normal
from coa.distill.importers.calls.log import Exchange
from coa.distill.importers.calls.phrases import Phrases, words
from coa.distill.importers.calls.stints import Stint, asked_in, news
from coa.distill.importers.smolagents_steps import CODE_TOOL
from coa.distill.member_names import bare_name, hands_over_control, plain_name, possible_names
from coa.distill.team_run import ToolCall

_WORDS: Final = 2
"""Number of words from which on an argument inside a request, or an answer inside a result, says something."""
_TELLING: Final = 5
"""Number of words from which on an answer inside a result shows the call without any other evidence."""


_MOST_MOVED: Final = 200
"""Number of stints that may be given another call so that one more gets its own."""


@dataclass(eq=False, slots=True)
class OpenCall:
    """A call, from the reply that wrote it to the request that brings its result."""

    stint: Stint
    exchange: Exchange
    call: ToolCall
    result: Exchange | None
    """The request that brings its result; None if none does."""
    text: str | None
    """Its result."""
    phrases: list[tuple[str, ...]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    @property
    def urgency(self) -> tuple[float, int, int]:
        closed = float("inf") if self.result is None else self.result.ended
        return closed, self.exchange.ended, self.exchange.calls.index(self.call)

    def around(self, stint: Stint) -> bool:
        """Whether the stint lies between the call and its result.

        A recorder may write a request before the end of the response that caused it, so the beginnings and the ends are
        compared separately.
        """
        if stint.thread is self.stint.thread or stint.run != self.stint.run:
            return False
        first, last, result = stint.first, stint.last, self.result
        begun = self.exchange.began < first.began and self.exchange.ended < first.ended
        return begun and (result is None or (last.began < result.began and last.ended < result.ended))


@dataclass(slots=True)
class Evidence:
    request: int = 0
    result: int = 0
    name: int = 0
    together: bool = False
    """The caller is known to be in the same run."""
    trace: int = 0
    """Positive where both are in one trace, negative where they are in different ones."""

    @property
    def words(self) -> int:
        return self.request + self.result + self.name

    @property
    def score(self) -> int:
        return self.words + self.trace

    def __str__(self) -> str:
        parts = [("request", self.request), ("answer", self.result), ("name", self.name), ("task", self.together)]
        return " and ".join(what for what, weight in parts if weight)


def results_of(exchange: Exchange, following: Exchange | None) -> dict[str, tuple[str, bool]]:
    """By call: its result and whether it is a success, as the next request has it."""
    said = exchange.reply.pieces if exchange.reply is not None else []  # with results of tools that the server ran
    later = news(following) if following is not None else []
    heard = [piece for piece in (*said, *later) if piece.kind is PieceKind.RESULT]
    calls = [call.id for call in exchange.calls]
    found = {piece.id: (piece.text, piece.ok) for piece in heard if piece.id in calls}
    bare = [piece for piece in heard if piece.id not in calls and (not piece.id or not found)]
    left = [call for call in calls if call not in found]
    if len(bare) == len(left):
        found |= {call: (piece.text, piece.ok) for call, piece in zip(left, bare, strict=True)}
    elif bare and left:  # one text for several calls
        whole = "\n".join(piece.text for piece in bare), all(piece.ok for piece in bare)
        found |= dict.fromkeys(left, whole)
    return found


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings(item)


def link(stints: list[Stint]) -> None:
    """Finds the calls that started stints."""
    calls = sorted(_calls(stints), key=lambda item: item.exchange.ended)
    linker = _Linker({id(stint.call[1]) for stint in stints if stint.call is not None})
    waiting = [stint for stint in stints if stint.call is None and stint.entered is None]
    position = 0
    for stint in sorted(waiting, key=lambda stint: stint.first.ended):
        while position < len(calls) and calls[position].exchange.ended < stint.first.ended:
            linker.open(calls[position])
            position += 1
        linker.close_before(stint.first.ended)
        linker.link(stint)


def _calls(stints: list[Stint]) -> Iterator[OpenCall]:
    for stint in stints:
        for index, exchange in enumerate(stint.exchanges):
            following = stint.exchanges[index + 1] if index + 1 < len(stint.exchanges) else _next(stint)
            results = results_of(exchange, following)
            for call in exchange.calls:
                text = results.get(call.id, (None, True))[0]
                yield OpenCall(stint, exchange, call, following, text)


def _next(stint: Stint) -> Exchange | None:
    """What the same thread goes on with after a stint."""
    exchanges = stint.thread.exchanges
    index = exchanges.index(stint.last) + 1
    return exchanges[index] if index < len(exchanges) else None


class _Linker:
    def __init__(self, taken: set[int]) -> None:
        self._taken = taken
        """Calls, by identity, that are known to have started a stint."""
        self._owners: dict[int, Stint] = {}
        self._options: dict[int, list[tuple[OpenCall, Evidence]]] = {}
        """By stint: the calls with as much evidence as the one that it was given."""
        self._phrases: Phrases[OpenCall] = Phrases()
        self._names: dict[str, dict[int, OpenCall]] = {}
        self._programs: dict[int, OpenCall] = {}
        self._ends: list[tuple[int, int, OpenCall]] = []

    def open(self, item: OpenCall) -> None:
        given = item.call.arguments
        if item.call.name == CODE_TOOL:
            self._programs[id(item)] = item
        texts = [*strings(given)]
        if hands_over_control(item.call) and item.text:
            texts.append(item.text)  # whoever takes over is shown that it did
        item.phrases = [found for text in texts if (found := words(text))]
        for phrase in item.phrases:
            self._phrases.add(phrase, item)
        # Who was handed control by a call is known from the history; such calls may stay open for ever.
        item.names = possible_names(item.call) if id(item.call) not in self._taken else set()
        for name in item.names:
            self._names.setdefault(name, {})[id(item)] = item
        if item.result is not None:
            heapq.heappush(self._ends, (item.result.ended, id(item), item))

    def close_before(self, line: int) -> None:
        while self._ends and self._ends[0][0] < line:
            self._close(heapq.heappop(self._ends)[2])

    def _close(self, item: OpenCall) -> None:
        for phrase in item.phrases:
            self._phrases.remove(phrase, item)
        for name in item.names:
            self._names.get(name, {}).pop(id(item), None)
        self._programs.pop(id(item), None)

    def link(self, stint: Stint) -> None:
        """Takes the call with the most evidence. One call starts one stint, unless nothing else is left."""
        found = self._candidates(stint)
        if not found:
            return
        levels = sorted({evidence.score for _, evidence in found}, reverse=True)
        for level in levels:
            # Of equal calls the one that is answered first: whoever else asked for the same can still wait.
            options = sorted((pair for pair in found if pair[1].score == level), key=lambda pair: pair[0].urgency)
            if self._take(stint, options, set()):
                return
        best = [pair for pair in found if pair[1].score == levels[0]]
        self._start(stint, *min(best, key=lambda pair: pair[0].urgency), rivals=len(best) - 1)

    def _take(self, stint: Stint, options: list[tuple[OpenCall, Evidence]], seen: set[int]) -> bool:
        """Gives the stint one of equal calls; where all are taken, another stint may have a choice left."""
        # Calls of one reply that ask for the same are no rivals: either gives the same run.
        rivals = len({id(item.exchange) for item, _ in options}) - 1
        for item, evidence in options:
            if id(item.call) not in self._taken or item.call.name == CODE_TOOL:
                self._options[id(stint)] = options
                self._start(stint, item, evidence, rivals)
                return True
        for item, evidence in options:
            owner = self._owners.get(id(item.call))
            if id(item) in seen or owner is None or len(seen) >= _MOST_MOVED:
                continue
            seen.add(id(item))
            if self._take(owner, [pair for pair in self._options.get(id(owner), []) if pair[0] is not item], seen):
                self._options[id(stint)] = options
                self._start(stint, item, evidence, rivals)
                return True
        return False

    def _start(self, stint: Stint, item: OpenCall, evidence: Evidence, rivals: int) -> None:
        self._taken.add(id(item.call))
        self._owners[id(item.call)] = stint
        stint.call, stint.parent, stint.evidence = (item.exchange, item.call), item.stint, str(evidence)
        stint.rivals = max(stint.rivals, rivals)

    def _candidates(self, stint: Stint) -> list[tuple[OpenCall, Evidence]]:
        heard = asked_in(news(stint.first))
        text, inner = words(heard), words(stint.request())
        found: dict[int, tuple[OpenCall, Evidence]] = {}

        def evidence(item: OpenCall) -> Evidence:
            return found.setdefault(id(item), (item, Evidence()))[1]

        for phrase, item in self._phrases.within(text):
            if not item.around(stint):
                continue
            if phrase in (text, inner):
                evidence(item).request = 3
            elif len(phrase) >= _WORDS:
                evidence(item).request = max(evidence(item).request, 2)
        for item in self._programs.values():
            code = item.call.arguments.get("code")
            if len(inner) >= _WORDS and isinstance(code, str) and item.around(stint) and stint.request() in code:
                evidence(item).request = 2
        for item in self._names.get(bare_name(plain_name(stint.name)), {}).values() if stint.name else ():
            # A call that names an agent above the caller gives control back; it starts nobody.
            if item.around(stint) and all(other.name != stint.name for other in item.stint.above()):
                evidence(item).name = 2
        answer = stint.answer()
        for item, shown in found.values():
            shown.result = _repeated(answer, item.text)
            shown.together = bool(shown.name) and _together(item, stint)
            if not (shown.request or shown.result or shown.together):
                shown.name = 0  # agents of the same name may be in several runs
            ours, theirs = stint.first.trace, item.exchange.trace
            shown.trace = (3 if ours is not None else 0) if ours == theirs else -1
        return [pair for pair in found.values() if pair[1].words >= 2]


def _together(item: OpenCall, stint: Stint) -> bool:
    """Whether the caller and the stint are known to be in one run: as given, or by what the user asked for."""
    first, caller = stint.first, item.stint.first
    given = stint.run is not None or (first.trace is not None and first.trace == caller.trace)
    asked = item.stint.request()
    return given or bool(asked and any(asked in p.text for p in first.history() if p.kind is PieceKind.USER))


def _repeated(answer: str | None, result: str | None) -> int:
    if not answer or not result:
        return 0
    said, heard = normal(answer), normal(result)
    if said == heard:
        return 3
    return 2 if said in heard and len(words(said)) >= _WORDS else 1 if said in heard or heard in said else 0


def link_by_answers(stints: list[Stint]) -> None:
    """Stints whose request shows no call: a result that repeats the answer shows it."""
    answers: Phrases[Stint] = Phrases()
    for stint in stints:
        said = words(stint.answer() or "")
        if stint.call is None and stint.entered is None and len(said) >= _WORDS:
            answers.add(said, stint)
    found: dict[int, list[OpenCall]] = {}
    for item in _calls(stints):
        heard = words(item.text or "")
        for said, stint in answers.within(heard):
            # A short answer may equal the result of any tool of another run.
            telling = len(said) >= _TELLING or (said == heard and _together(item, stint))
            if telling and item.around(stint):
                found.setdefault(id(stint), []).append(item)
    started = Counter(id(stint.call[1]) for stint in stints if stint.call is not None)
    for stint in stints:
        items = found.get(id(stint), [])
        if not items or stint.call is not None:
            continue
        free = [item for item in items if not started[id(item.call)]] or items
        item = max(free, key=lambda item: item.exchange.ended)
        started[id(item.call)] += 1
        stint.call, stint.parent, stint.evidence = (item.exchange, item.call), item.stint, "answer"
        stint.rivals = len({id(other.exchange) for other in free}) - 1
