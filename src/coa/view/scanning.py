"""The scanners' pass over the indexed runs, in the background, for a moment at a time.

It sees one run at a time. What scanners say about the attempts at a task together is in the report of `coa scan`.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Final

from coa.errors import CoaError
from coa.scan import Finding, Scanner, ScannerFailure, open_scanners, scan_run
from coa.view.index import IndexWriter
from coa.view.queries import Queries
from coa.view.records import opened_record, with_known_profile

_BATCH: Final = 50
_MOMENT_S: Final = 1.0


def scan_some(writer: IndexWriter) -> bool:
    """Scan runs that were not scanned yet, for about a second. Whether there were any."""
    began, queries = time.monotonic(), Queries(writer.connection)
    done = False
    while time.monotonic() - began < _MOMENT_S:
        waiting = writer.unscanned(writer.state("scanned", 0), _BATCH)
        if not waiting:
            break
        found = [
            (number, one.step, one.scanner, one.severity.value, one.message)
            for number, uid in waiting
            for one in _findings(uid, queries)
        ]
        with writer.batch():
            writer.find(found, waiting[-1][0])
        done = True
    return done


def _findings(uid: str, queries: Queries) -> list[Finding]:
    place = queries.place(uid)
    if place is None:
        return []
    failures: list[ScannerFailure] = []
    try:
        trajectory, profile, _ = with_known_profile(opened_record(place, queries).trajectory)
    except CoaError:
        return []  # it was indexed but cannot be opened; its page says why
    return scan_run(trajectory, _scanners(), run=uid, profile=profile, failures=failures)


@cache
def _scanners() -> list[Scanner]:
    return open_scanners()
