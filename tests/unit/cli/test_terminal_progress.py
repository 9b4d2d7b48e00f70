"""The one progress line of the commands: in place for a person, now and then for a log."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from coa.cli import progress as module
from coa.cli.progress import TerminalProgress


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_log_gets_a_line_every_half_minute(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress = TerminalProgress(Console(file=io.StringIO()))
    progress.start("tasks", 4)
    for done in range(4):
        clock.now += 20
        progress.update(done + 1, note="\x1b[31mred")
    progress.finish()
    # After 20, 40, 60 and 80 seconds: the second and the fourth are at least 30 seconds after the line before.
    assert capsys.readouterr().err == "tasks: 2/4, ␛[31mred\ntasks: 4/4, ␛[31mred\n"


def test_a_person_sees_one_line_that_goes_away(clock: Clock) -> None:
    screen = io.StringIO()
    progress = TerminalProgress(Console(file=screen, force_terminal=True, width=80, color_system=None))
    progress.start("runs read")
    for done in (1, 2, 3):
        clock.now += 0.3
        progress.update(done)
    progress.finish()
    # The first at once; the second comes 0.3 seconds later and is left out; the third is 0.6 seconds after the first.
    drawn = screen.getvalue()
    assert "runs read: 1" in drawn and "runs read: 2" not in drawn and "runs read: 3" in drawn
    assert drawn.rstrip().endswith("\x1b[2K")
