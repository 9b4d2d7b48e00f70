"""Files of OpenTelemetry spans: OTLP-JSON as collectors write it (one export per line), or the JSON of the Python SDK.

The spans of a trace may be spread over many exports; they are collected before the trace is read. Runs that coa
exported itself are read as the trajectories that they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from coa.distill.importers.json_files import FAULTS, Bad, grouped, reason_of, values
from coa.distill.importers.spans.own_run import own_run, read_own_run
from coa.distill.importers.spans.span import TraceSpan, is_spans, spans_in
from coa.distill.importers.spans.tree import OTEL, runs_of
from coa.distill.importers.trace_format import Imported, TraceFormat
from coa.distill.team_run import Skipped
from coa.errors import TraceError


def read_spans(path: Path) -> Iterator[Imported]:
    bad: list[Bad] = []

    def spans() -> Iterator[tuple[str, TraceSpan]]:
        bad.clear()
        for place, value in values(path):
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, Bad):
                    bad.append(item)
                elif not is_spans(item):
                    bad.append(Bad(place, "it is neither a span nor an export of spans"))
                for span in spans_in(item):
                    yield span.trace, span

    empty = True
    for trace, group in grouped(spans):
        empty = False
        try:
            if (run := own_run(group)) is not None:
                yield read_own_run(run, group)
            else:
                yield from runs_of(group, str(path))
        except (TraceError, *FAULTS) as error:  # a damaged trace does not affect the others
            yield Skipped(file=str(path), place=f"trace {trace}", reason=reason_of(error))
    if empty and not bad:
        yield Skipped(file=str(path), reason="an export of spans without any span")
    for item in bad:
        yield Skipped(file=str(path), place=item.place, reason=item.reason)


FORMAT: Final = TraceFormat(OTEL, "OTLP-JSON spans", is_spans, read_file=read_spans, takes_lists=True)
