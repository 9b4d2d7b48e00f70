"""Call records -> team runs: the way in, and the order of the steps.

    log.py        lines -> exchanges: each request with its response, all protocols in one form (`exchange.py`)
    threads.py    exchanges -> threads: which call continues which
    stints.py     threads -> stints: one agent at work on one request
    upkeep.py     titles and summaries are no turns of agents
    links.py      which call of which agent started a stint
    groups.py     stints -> runs
    build.py      a run -> `TeamRun`

What the caller gave (run and agent, by path or header) is taken as it is. The rest is inferred from the histories, and
`TeamRun.meta["inferred"]` says how much of it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from coa.distill.importers.calls.build import Builder, ended, known_task, left_out_call
from coa.distill.importers.calls.groups import grouped_runs
from coa.distill.importers.calls.links import link, link_by_answers
from coa.distill.importers.calls.log import MARK, CallRecords, Exchange
from coa.distill.importers.calls.stints import Stint, give_back, stints_of
from coa.distill.importers.calls.threads import Threads
from coa.distill.importers.calls.upkeep import fold_upkeep
from coa.distill.importers.content import as_text, at, team_run
from coa.distill.importers.json_files import FAULTS, reason_of
from coa.distill.importers.trace_format import TraceFormat
from coa.distill.team_run import AgentRun, LeftOut, Skipped, Source, TeamRun
from coa.errors import TraceError


def is_record(row: object) -> bool:
    return isinstance(row, Mapping) and MARK in row and "event" in row


def read_calls(path: Path) -> Iterator[TeamRun | Skipped]:
    return runs_in(CallRecords(path))


def runs_in(log: CallRecords) -> Iterator[TeamRun | Skipped]:
    path, threads = log.path, Threads()
    for exchange in log.exchanges():
        threads.add(exchange)
    stints = fold_upkeep(stints_of(threads.settled(), threads.speakers))
    link(stints)
    link_by_answers(stints)
    give_back(stints)
    groups = grouped_runs(stints)
    others = _others(log.others, groups)
    for number, group in enumerate(groups):
        run = group[0].run
        builder = Builder(group, str(path), others.pop(number, []))
        if log.torn and number == len(groups) - 1:
            builder.left_out.append(
                LeftOut(what="the last line of the file", reason="it was cut off while being written")
            )
        alone = len(groups) == 1
        task = log.tasks.get(run) or (log.tasks.get(None) if alone else None)
        outcome = log.outcomes.get(run) or (log.outcomes.get(None) if alone else None)
        try:
            yield builder.build(task, outcome)
        except (TraceError, *FAULTS) as error:  # a damaged run does not affect the others
            yield Skipped(file=str(path), place=run or f"line {group[0].first.began}", reason=reason_of(error))
    for run in log.tasks.keys() - {group[0].run for group in groups}:
        if run is not None:
            yield _without_calls(log, run)
    for items in others.values():
        for item in items:
            yield Skipped(file=str(path), place=item.place, reason=f"{item.what}: {item.reason}")
    for bad in log.bad:
        yield Skipped(file=str(path), place=bad.place, reason=bad.reason)
    if not (groups or log.others or log.bad or log.tasks.keys() - {None}):
        yield Skipped(file=str(path), place="", reason="no call of a model was recorded in it")


def _without_calls(log: CallRecords, run: str) -> TeamRun | Skipped:
    """A task whose program ended before it called a model."""
    given, outcome = at(log.tasks[run], "task") or {}, log.outcomes.get(run)
    question = as_text(at(given, "question"))
    if not question:
        return Skipped(file=str(log.path), place=run, reason="it holds neither a call nor a question")
    task = known_task(given, question, as_text(at(given, "id")) or run)
    root = AgentRun(id="team-1", agent="team", request=question, answer=as_text(at(outcome, "answer")) or None)
    error = as_text(at(outcome, "error")) or (None if outcome else "the recording ended before the run did")
    source = Source(format="calls", file=str(log.path), place=run)
    return ended(team_run(task, root, source, [], error=error), outcome)


def _others(others: list[Exchange], groups: list[list[Stint]]) -> dict[int, list[LeftOut]]:
    """Calls that are no turns of agents, by the number of the run they belong to; -1 where that is not known."""
    runs = {group[0].run: number for number, group in enumerate(groups) if group[0].run is not None}
    found: dict[int, list[LeftOut]] = {}
    for exchange in others:
        number = runs.get(exchange.run, -1) if exchange.run is not None else 0 if len(groups) == 1 else -1
        item = left_out_call(exchange, f"call of {exchange.path}", exchange.asked.other)
        found.setdefault(number, []).append(item)
    return found


FORMAT: Final = TraceFormat("calls", "call records of coa record", is_record, read_file=read_calls)
