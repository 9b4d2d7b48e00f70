"""The progress of the commands: bars for a person, a line now and then for a log."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

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


def test_a_log_gets_a_line_after_two_seconds_then_every_half_minute_and_the_last(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = TerminalProgress(Console(file=io.StringIO()))
    progress.start("tasks", 4)
    for done, seconds in enumerate((1, 2, 20, 20), start=1):
        clock.now += seconds
        progress.update(done, note="\x1b[31mred")
    clock.now += 1
    progress.finish()
    # After 1, 3, 23, 43 and 44 seconds: the first is too early, the third is 20 seconds after the line before.
    lines = [f"tasks: {done}/4, ␛[31mred, after 0:00:{seconds}" for done, seconds in ((2, "03"), (4, "43"))]
    assert capsys.readouterr().err.splitlines() == lines


def test_a_log_shows_that_work_goes_on_which_does_not_report(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress = TerminalProgress(Console(file=io.StringIO()))
    progress.start("opening smollm2")
    progress.tick()
    assert capsys.readouterr().err == ""
    clock.now += 3
    progress.tick()
    progress.finish()
    progress.tick()
    assert capsys.readouterr().err == "opening smollm2, after 0:00:03\n"


def test_quick_work_leaves_only_its_last_line_in_a_log(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress = TerminalProgress(Console(file=io.StringIO()))
    progress.start("opening nano")
    progress.finish()
    progress.start("tasks", 2)
    progress.update(1)
    progress.update(2)
    progress.finish()
    assert capsys.readouterr().err == "tasks: 2/2, after 0:00:00\n"


def test_a_person_sees_a_bar_from_the_start_and_a_note_and_both_go_away() -> None:
    screen = io.StringIO()
    progress = TerminalProgress(Console(file=screen, force_terminal=True, width=80, color_system=None))
    progress.start("runs", 12)
    assert "runs" in screen.getvalue() and "0/12" in screen.getvalue()
    progress.update(6, 12, "345 tokens")
    assert progress._bars is not None
    progress._bars.refresh()
    assert "━" in screen.getvalue() and "345 tokens" in screen.getvalue()
    progress.finish()
    assert screen.getvalue().rstrip("\r").endswith("\x1b[?25h"), "the cursor is shown again"
    assert progress._bars is None


def test_a_part_inside_another_takes_its_place_and_gives_it_back() -> None:
    screen = io.StringIO()
    progress = TerminalProgress(Console(file=screen, force_terminal=True, width=80, color_system=None))
    progress.start("steps", 5)
    progress.update(2, note="step 3")
    progress.start("held-out tasks", 8)
    progress.update(8, note="all done")
    bars = progress._bars
    assert bars is not None and [task.description for task in bars.tasks] == ["steps", "held-out tasks"]
    progress.finish()
    assert [task.completed for task in bars.tasks] == [2] and bars._note == "step 3"
    progress.finish()
    progress.finish()  # one too many does nothing


def test_results_on_stdout_are_not_drawn_on_a_persons_stderr() -> None:
    """`coa run --tasks F --json > out.jsonl` in a terminal: rich takes stdout over unless it is asked not to."""
    code = (
        "import sys; from coa.cli.progress import terminal_progress\n"
        "progress = terminal_progress(); progress.start('runs', 2); print('a result'); progress.finish()"
    )
    screen, terminal = pty.openpty()
    try:
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=terminal, text=True)
        drawn = os.read(screen, 100_000).decode()
    finally:
        os.close(terminal)
        os.close(screen)
    assert done.returncode == 0 and done.stdout == "a result\n"
    assert "0/2" in drawn and "a result" not in drawn
