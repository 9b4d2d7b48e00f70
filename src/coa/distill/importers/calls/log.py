"""The lines of a file of call records, as exchanges: each request with its response.

An exchange is given when its response is read, so a reply is always known before the request that continues it is
placed. Requests without a response (the recorder was killed, or is still running) come last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from coa.distill.importers.calls.exchange import Answered, Json, Piece, Reply, Request, in_order
from coa.distill.importers.calls.protocols import read_request, read_response
from coa.distill.importers.calls.spoken import expanded, interpreted
from coa.distill.importers.content import as_text, as_time, at
from coa.distill.importers.json_files import FAULTS, Bad, reason_of, values
from coa.distill.team_run import ToolCall
from coa.trajectory.types import Usage

MARK: Final = "coa_record"
"""The field that every line has; its value is the version of the format."""


@dataclass(slots=True, eq=False)
class Exchange:
    """One model call. `threads.py` fills in what it continues."""

    id: str
    began: int
    """Number of the line of its request."""
    ended: int
    """Number of the line of its response, or of the last line if there is none."""
    protocol: str
    path: str
    run: str | None
    """As the caller gave it, by path or by header."""
    agent: str | None
    trace: str | None
    span: str | None
    time: float | None
    asked: Request
    choices: list[Reply] = field(default_factory=list)
    used: int = 0
    """The choice with which the conversation went on."""
    response: str = ""
    model: str | None = None
    usage: Usage | None = None
    error: str | None = None

    base: Exchange | None = None
    """The exchange whose request and reply this request begins with. `asked.pieces` holds only what comes after."""
    own: Exchange | None = None
    """The exchange of the same agent that this one continues."""
    rewritten: bool = False
    ambiguous: int = 0
    """Number of exchanges that it could continue as well."""
    failed: list[Exchange] = field(default_factory=list)
    """The same request, sent before, without success."""
    hash: bytes = b""
    """Of its request."""

    @property
    def reply(self) -> Reply | None:
        return self.choices[self.used] if self.choices else None

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return self.reply.calls if self.reply is not None else ()

    def history(self) -> list[Piece]:
        """All pieces of its request."""
        parts: list[list[Piece]] = []
        step: Exchange | None = self
        while step is not None:
            parts.append(step.asked.pieces)
            step = step.base
            if step is not None:
                parts.append(step.reply.pieces if step.reply is not None else [])
        return [piece for part in reversed(parts) for piece in part]


@dataclass
class CallRecords:
    """A file while it is read."""

    path: Path
    rows: Iterable[tuple[str, Any]] | None = None
    """(place, record) of each line, where they are not the lines of the file."""
    tasks: dict[str | None, Json] = field(default_factory=dict)
    """What was asked, by run, where a line says so."""
    outcomes: dict[str | None, Json] = field(default_factory=dict)
    others: list[Exchange] = field(default_factory=list)
    """Calls that no language model answered with words: embeddings, lists of models."""
    bad: list[Bad] = field(default_factory=list)
    torn: bool = False
    """The last line was cut off while it was written."""

    def exchanges(self) -> Iterator[Exchange]:
        waiting: dict[str, tuple[int, Json]] = {}
        lost: list[tuple[int, Json]] = []
        number, last = 0, None
        for number, (place, row) in enumerate(values(self.path) if self.rows is None else self.rows, start=1):
            if last is not None:
                self.bad.append(last)
            last = row if isinstance(row, Bad) else None
            if isinstance(row, Bad):
                continue
            if not (isinstance(row, Mapping) and MARK in row):
                self.bad.append(Bad(place, "it is not a record of a model call"))
                continue
            event, key = row.get("event"), as_text(row.get("id"))
            if event == "task":
                self.tasks[_name(row.get("run"))] = row
            elif event == "outcome":
                self.outcomes[_name(row.get("run"))] = row
            elif event == "request":
                if key in waiting:  # the recorder began to count anew
                    lost.append(waiting.pop(key))
                waiting[key] = (number, row)
            elif event == "response" and key in waiting:
                yield from self._exchange(*waiting.pop(key), number, row)
            else:
                what = "a response whose request is missing" if event == "response" else f"an unknown event {event!r}"
                self.bad.append(Bad(place, what))
        self.torn = last is not None
        for began, row in sorted([*lost, *waiting.values()], key=lambda item: item[0]):
            yield from self._exchange(began, row, number + 1, None)

    def _exchange(self, began: int, request: Json, ended: int, response: Json | None) -> Iterator[Exchange]:
        try:
            found = _read(began, request, ended, response)
        except FAULTS as error:
            self.bad.append(Bad(f"line {began}", reason_of(error)))
            return
        if found.asked.other:
            self.others.append(found)
        else:
            yield found


def _name(value: object) -> str | None:
    return as_text(value) or None


def _read(began: int, request: Json, ended: int, response: Json | None) -> Exchange:
    protocol, path = as_text(request.get("protocol")), as_text(request.get("path"))
    body = request.get("body")
    if isinstance(body, Mapping):
        asked = read_request(protocol, body)
    else:
        asked = Request(other=as_text(request.get("left_out")) or "it has no content")
    asked.pieces = in_order(expanded(asked.pieces))
    traced = request.get("given_by") == "traceparent"
    run = _name(request.get("run"))
    trace = _name(at(request, "trace", "trace_id")) or (run if traced else None)
    exchange = Exchange(
        id=as_text(request.get("id")), began=began, ended=ended, protocol=protocol, path=path,
        run=None if traced else run, agent=_name(request.get("agent")), trace=trace,
        span=_name(at(request, "trace", "span_id")), time=as_time(request.get("time")), asked=asked,
    )  # fmt: skip
    if response is None:
        exchange.error = "no response was recorded: the recording ended first"
    else:
        _answer(exchange, response)
    return exchange


def _answer(exchange: Exchange, response: Json) -> None:
    body = response.get("body")
    answered = Answered()
    if isinstance(body, Mapping):
        answered = read_response(exchange.protocol, body, f"call_{exchange.began}")
    exchange.choices = [
        interpreted(reply, exchange.asked, f"call_{exchange.began}" + (f"_{index}" if index else ""))
        for index, reply in enumerate(answered.choices)
    ]
    for reply in exchange.choices:
        reply.pieces = in_order(reply.pieces)
    seconds = response.get("seconds")
    exchange.usage = answered.usage
    if answered.usage is not None and isinstance(seconds, int | float) and seconds >= 0:
        exchange.usage = answered.usage.model_copy(update={"seconds": float(seconds)})
    exchange.model = answered.model or exchange.asked.model
    exchange.response = answered.id
    status = response.get("status")
    refused = isinstance(status, int) and status >= 400
    if response.get("error") or answered.error or refused:
        said = as_text(response.get("error")) or answered.error or ""
        exchange.error = f"{status}: {said}".strip(" :") if refused else said
    elif response.get("complete") is False:
        exchange.error = "the reply was cut off"
    elif not exchange.choices and not exchange.asked.other:
        exchange.error = "the response holds no reply"
