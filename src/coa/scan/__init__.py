"""Scan: findings over many runs, each with the step where it is.

report = coa.scan(["runs/"])
print(report.scanners["loops"].runs, report.scanners["loops"].first)
"""

import sys

from coa.scan.config import ScanConfig
from coa.scan.finding import Finding, GroupScanner, Note, Scanner, ScannerFailure, Severity
from coa.scan.opening import open_scanners
from coa.scan.report import ScannerSummary, ScanReport
from coa.scan.running import scan_run
from coa.scan.stage import scan
from coa.stage import Stage

__all__ = [
    "Finding",
    "GroupScanner",
    "Note",
    "ScanConfig",
    "ScanReport",
    "Scanner",
    "ScannerFailure",
    "ScannerSummary",
    "Severity",
    "open_scanners",
    "scan",
    "scan_run",
]

sys.modules[__name__].__class__ = Stage
