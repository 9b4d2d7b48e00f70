"""The page of performance figures is made from the files that benchmarks keep."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import report, results
from benchmarks.results import Figure, save


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    return tmp_path


def test_a_figure_is_shown_with_what_it_is_compared_with_and_its_goal(folder: Path) -> None:
    save("codec", "python -m benchmarks.codec", [Figure("CPU per run", 2.934, beside="a bare loop", goal="at most 3")])
    shown = report.tables(folder)
    assert "| CPU per run | 2.93 x | a bare loop | at most 3 |" in shown
    assert "`python -m benchmarks.codec` on 20" in shown


def test_absolute_values_have_their_unit(folder: Path) -> None:
    save("codec", "python -m benchmarks.codec", [Figure("peak memory", 12345.6, unit="MB")])
    assert "| peak memory | 12,346 MB | – | – |" in report.tables(folder)


def test_only_the_part_between_the_marks_is_replaced() -> None:
    page = f"above\n{report.BEGIN}old\n{report.END}below\n"
    assert report.with_tables(page, "new") == f"above\n{report.BEGIN}\nnew\n{report.END}below\n"


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(SystemExit, match="needs the lines"):
        report.with_tables("above\n", "new")


def test_a_later_run_replaces_the_figures(folder: Path) -> None:
    for value in (1.0, 2.0):
        save("codec", "python -m benchmarks.codec", [Figure("CPU per run", value)])
    assert "| CPU per run | 2 x |" in report.tables(folder) and "| 1 x |" not in report.tables(folder)
