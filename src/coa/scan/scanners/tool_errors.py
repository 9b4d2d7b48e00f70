"""Tool calls that failed, by kind: a time-out, an HTTP status, an exception, a refusal, or nothing found."""

from __future__ import annotations

from collections.abc import Iterator

from coa.scan.finding import Note, Severity
from coa.scan.steps import calls, excerpt
from coa.scan.tool_answers import EMPTY, failure_in
from coa.trajectory import Profile, Trajectory


class ToolErrors:
    name = "tool_errors"
    about = "tool calls that failed, by kind: time-out, HTTP status, exception, refused, empty"

    def scan(self, trajectory: Trajectory, profile: Profile) -> Iterator[Note]:
        handovers = trajectory.meta.get("failed_handovers")  # of a team
        for one in handovers if isinstance(handovers, list) else ():
            yield Note(None, Severity.WARNING, f"failed hand-over: {excerpt(str(one), 160)}", kind="failed hand-over")
        for call in calls(trajectory, profile):
            failed = failure_in(trajectory.steps[call.answer]) if call.answer is not None else None
            if failed is None:
                continue
            harmless = failed.kind == EMPTY or failed.partial
            part = "a part of " if failed.partial else ""
            yield Note(
                call.answer,
                Severity.INFO if harmless else Severity.WARNING,
                f"{failed.kind}: {part}{call.tool}: {failed.message}",
                kind=failed.kind,
            )
