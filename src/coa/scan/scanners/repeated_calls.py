"""The same tool called with the same arguments.

A call that timed out or met a server that was down may be made again: that is no finding. A second call that got
another answer is only worth knowing, because some tools answer anew each time.
"""

from __future__ import annotations

from collections.abc import Iterator

from coa.scan.finding import Note, Severity
from coa.scan.steps import Call, calls, error_of, quotation
from coa.scan.tool_answers import failure_in
from coa.trajectory import Profile, Trajectory


class RepeatedCalls:
    name = "repeated_calls"
    about = "the same tool called with the same arguments, although the answer was known"

    def scan(self, trajectory: Trajectory, profile: Profile) -> Iterator[Note]:
        made: dict[tuple[str, str], list[Call]] = {}
        for call in calls(trajectory, profile):
            made.setdefault((call.tool, call.arguments), []).append(call)
        for same in made.values():
            settled = next((at for at, call in enumerate(same) if self._is_settled(trajectory, call)), len(same))
            repeats = same[settled + 1 :]
            if not repeats:
                continue
            first = same[settled]
            changed = all(self._differs(trajectory, first, call) for call in repeats)
            times = "again" if len(repeats) == 1 else f"{len(repeats)} more times"
            but = "; the answer changed" if changed else ""
            yield Note(
                repeats[0].step,
                Severity.INFO if changed else Severity.WARNING,
                f"{first.tool} was called {times} with the arguments of step {first.step}: "
                f"{quotation(first.text)}{but}",
                kind="with another answer" if changed else first.tool,
            )

    @staticmethod
    def _is_settled(trajectory: Trajectory, call: Call) -> bool:
        """Whether asking again is pointless."""
        failed = failure_in(trajectory.steps[call.answer]) if call.answer is not None else None
        return failed is None or not failed.passing

    @staticmethod
    def _differs(trajectory: Trajectory, first: Call, later: Call) -> bool:
        if first.answer is None or later.answer is None:
            return False
        one, other = trajectory.steps[first.answer], trajectory.steps[later.answer]
        return error_of(other) != "repeated" and one.text.strip() != other.text.strip()
