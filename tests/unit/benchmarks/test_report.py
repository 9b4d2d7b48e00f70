"""The page of performance figures is made from the files that benchmarks keep."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks import report, results
from benchmarks.limits import GEMM, MEMORY, Limits
from benchmarks.results import SHARE, Figure, save
from benchmarks.timing import OtherLoad, busy_seconds


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    return tmp_path


def test_a_figure_is_shown_with_what_it_is_compared_with_and_its_goal(folder: Path) -> None:
    save("codec", "python -m benchmarks.codec", [Figure("CPU per run", 2.934, beside="a bare loop", goal="at most 3")])
    shown = report.tables(folder)
    assert "| CPU per run | 2.93 x | a bare loop | at most 3 |" in shown
    assert "`python -m benchmarks.codec`\n\nMeasured on 20" in shown


def test_absolute_values_have_their_unit(folder: Path) -> None:
    save("codec", "python -m benchmarks.codec", [Figure("peak memory", 12345.6, unit="MB")])
    assert "| peak memory | 12,346 MB | – | – |" in report.tables(folder)


@pytest.mark.parametrize(
    ("value", "goal", "shown"),
    [
        (1.4467, "at least 1.45", "1.447 x | – | at least 1.45: missed"),
        (1.4501, "at least 1.45", "1.45 x | – | at least 1.45"),
        (10.04, "at most 10", "10.04 x | – | at most 10: missed"),
        (0.66, "at most 0.65", "0.66 x | – | at most 0.65: missed"),
        (0.64, "at most 0.65", "0.64 x | – | at most 0.65"),
        (1.2, "less than 1", "1.2 x | – | less than 1: missed"),
        (1.2, "about 1", "1.2 x | – | about 1"),
    ],
)
def test_a_missed_goal_is_marked(folder: Path, value: float, goal: str, shown: str) -> None:
    save("codec", "python -m benchmarks.codec", [Figure("ratio", value, goal=goal)])
    assert f"| ratio | {shown} |" in report.tables(folder)


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


def test_shares_of_the_limit_have_a_table_of_their_own(folder: Path) -> None:
    speed = Figure("decode, 4 rows", 51.0, unit="tokens per CPU second")
    save("engine", "python -m benchmarks.engine", [speed, Figure(f"decode, 4 rows{SHARE}", 0.456, beside="memory")])
    shares, _, rest = report.tables(folder).partition("### Local engine")
    assert "| decode, 4 rows | 0.46 | memory | `python -m benchmarks.engine` |" in shares
    assert "| decode, 4 rows | 51 tokens per CPU second | – | – |" in rest and "0.46" not in rest


def test_the_page_has_a_heading_for_every_benchmark_that_keeps_figures() -> None:
    files = Path(report.__file__).parent.glob("*.py")
    saving = {file.stem for file in files if re.search(r"^\s+save\(|\{save\(", file.read_text(), re.MULTILINE)}
    assert saving == set(report.TITLES)


def test_without_shares_there_is_no_table_of_them(folder: Path) -> None:
    save("codec", "python -m benchmarks.codec", [Figure("CPU per run", 1.0)])
    assert "limits" not in report.tables(folder)


@pytest.mark.parametrize(
    ("others", "said"), [(0.04, "The machine was idle otherwise."), (1.26, "other work took 1.3 cores on average")]
)
def test_the_page_says_whether_the_machine_was_busy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, others: float, said: str
) -> None:
    monkeypatch.setattr(results._OTHERS, "cores", lambda: others)
    save("codec", "python -m benchmarks.codec", [Figure("CPU per run", 1.0)])
    assert said in report.tables(folder)


def test_busy_time_is_all_but_idle_and_guests(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 10 50 4000 300 5 15 20 60 6\ncpu0 1 2 3\n")
    assert busy_seconds(stat) == pytest.approx((100 + 10 + 50 + 5 + 15 + 20) / os.sysconf("SC_CLK_TCK"))
    assert busy_seconds(tmp_path / "absent") == 0.0


def test_what_this_process_and_its_children_do_is_no_other_load() -> None:
    busy = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass\n"
    load, began, before = OtherLoad(), time.monotonic(), busy_seconds()
    subprocess.run([sys.executable, "-c", busy], check=True)
    others = load.cores() * (time.monotonic() - began)
    assert others <= busy_seconds() - before - 0.4, "half a second of the busy time is ours"


def test_a_pass_is_limited_by_memory_or_by_multiplying() -> None:
    limits = Limits(flops=1e9, bytes=1e8)  # 1e6 weights of 4 bytes are read in 0.04 s; a row is multiplied in 0.002 s
    assert limits.of_pass(10**6, 1, 4) == (0.04, MEMORY)
    assert limits.of_pass(10**6, 64, 4) == (0.128, GEMM)
    assert limits.of_pass(10**6, 16, 2) == (0.032, GEMM)
