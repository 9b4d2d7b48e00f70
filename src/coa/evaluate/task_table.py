"""The tasks of an evaluation in its page: a row for each attempt, with a link to the run, which is folded below.

A page has to open in a browser, so both are bounded: rows beyond the first thousand are left out, and of the runs only
the first two hundred are in the page, their steps shortened. `coa inspect` shows all of them in full.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from coa.report import Link, details, paragraph, plural, section, table, text_block
from coa.trajectory import Trajectory
from coa.trajectory.shorten import shorten

_MOST_ROWS: Final = 1_000
_MOST_RUNS: Final = 200
_LONGEST_STEP: Final = 2_000
_LONGEST_CELL: Final = 160
_NUMBERS: Final = re.compile(r"(\D*)(\d{0,18})")
_COLUMNS: Final = ("task", "question", "expected", "answer", "score", "stopped by", "tokens", "tool calls", "repairs")


def task_table(runs: Iterable[Trajectory], scorer: str, folder: Path, attempts: int) -> str:
    """`attempts` is the number of all attempts, shown or not."""
    rows: list[tuple[tuple[str, int], list[object]]] = []
    folds: list[tuple[tuple[str, int], str]] = []
    for number, run in enumerate(islice(runs, _MOST_ROWS)):
        anchor = f"run-{number}" if number < _MOST_RUNS else ""
        if anchor:
            folds.append((run.key, _run(run, scorer, anchor)))
        rows.append((run.key, _row(run, scorer, anchor)))
    rows.sort(key=lambda row: _order(*row[0]))
    folds.sort(key=lambda fold: _order(*fold[0]))
    look = f"coa inspect {shlex.quote(str(folder))} --task ID"
    left = (
        f"{plural(attempts - len(rows), 'more attempt is', 'more attempts are')} not listed."
        if attempts > len(rows)
        else ""
    )
    about = f"A task's name leads to its run, if the run is in this page. {look} shows any run in full. {left}"
    return "\n".join([
        section("Tasks", paragraph(about.strip()) if rows else "", table(_COLUMNS, [row for _, row in rows])),
        section("Runs", *(fold for _, fold in folds)),
    ])  # fmt: skip


def _order(task: str, sample: int) -> tuple[list[tuple[str, int]], int]:
    """t2 before t10."""
    return [(text, int(number or 0)) for text, number in _NUMBERS.findall(task)], sample


def _row(run: Trajectory, scorer: str, anchor: str) -> list[object]:
    name, task = _name(run), run.task
    expected = " | ".join(task.answer) or ("tests" if task.tests is not None else "")
    usage = run.usage
    return [
        Link(name, f"#{anchor}") if anchor else name,
        *(_cell(text) for text in (task.question, expected, run.answer or "no answer")),
        _verdict(run, scorer),
        run.stop.value.replace("_", " "),
        usage.total_tokens,
        usage.tool_calls,
        len(run.repairs),
    ]


def _run(run: Trajectory, scorer: str, anchor: str) -> str:
    parts = [paragraph(shorten(run.task.question, _LONGEST_STEP))]
    for step in run.steps:
        repairs = f" (repaired: {', '.join(repair.kind.value for repair in step.repairs)})" if step.repairs else ""
        parts.append(text_block(f"{step.agent}{repairs}", shorten(step.text, _LONGEST_STEP)))
    if run.failure is not None:
        parts.append(
            paragraph(f"Failed in the {run.failure.site.value}: {shorten(run.failure.message, _LONGEST_STEP)}")
        )
    found = run.scores.get(scorer)
    if found is not None and found.reason:
        parts.append(paragraph(f"Scored by {scorer}: {shorten(found.reason, _LONGEST_STEP)}"))
    return details(f"{_name(run)}: {_verdict(run, scorer)}", parts=parts, anchor=anchor)


def _name(run: Trajectory) -> str:
    return f"{run.task.id} #{run.sample}" if run.sample else run.task.id


def _verdict(run: Trajectory, scorer: str) -> str:
    if run.failure is not None and run.answer is None:
        return "failed"
    value = score.value if (score := run.scores.get(scorer)) is not None else None
    if value is None:
        return "unscored"
    return {1.0: "right", 0.0: "wrong"}.get(value, f"{value:.2f}")


def _cell(text: str) -> str:
    line = " ".join(text[: 2 * _LONGEST_CELL].split())
    return line if len(line) <= _LONGEST_CELL else f"{line[:_LONGEST_CELL]}…"
