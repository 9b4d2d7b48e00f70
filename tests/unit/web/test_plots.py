"""Where the lines, ticks and bars of a plot lie; worked by hand."""

from __future__ import annotations

from math import inf, nan

from hypothesis import given
from hypothesis import strategies as st

from coa.report import Bar
from coa.web.plots import COLUMNS, HEIGHT, WIDTH, Series, bars, funnel, line_plot, moving_mean, said, thinned, ticks


def test_a_line_goes_from_corner_to_corner() -> None:
    plot = line_plot("loss", [Series("loss", [(0, 0.0), (10, 1.0)])], bottom=0.0, top=1.0)
    assert plot is not None
    (drawing,) = plot["linear"]["drawings"]
    assert drawing["path"] == "M0 300L1000 0"
    assert drawing["points"] == [(0.0, 300.0, "0", "0"), (1000.0, 0.0, "10", "1")]
    assert [tick["label"] for tick in plot["linear"]["ticks"]] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert plot["series"][0]["last"] == "1"
    assert plot["dots"] and not plot["thinned"] and not plot["window"]


def test_values_that_are_no_numbers_are_gaps() -> None:
    points = [(1, 1.0), (2, nan), (3, 1.0), (4, inf), (5, None), (6, 1.0), (7, 0.0)]
    plot = line_plot("x", [Series("x", points)], bottom=0.0, top=1.0)
    assert plot is not None
    (drawing,) = plot["linear"]["drawings"]
    # Two lonely points, each a line of no length, and a line.
    assert drawing["path"] == "M0 0h0M333.3 0h0M833.3 0L1000 300"
    assert [point[2] for point in drawing["points"]] == ["1", "3", "6", "7"]


def test_numbers_too_large_for_differences_are_gaps() -> None:
    plot = line_plot("x", [Series("x", [(1, 1.7e308), (2, -1.7e308), (3, 1.0), (4, 2.0)])])
    assert plot is not None
    assert [point[3] for point in plot["linear"]["drawings"][0]["points"]] == ["1", "2"]


def test_without_a_value_there_is_no_plot() -> None:
    assert line_plot("x", []) is None
    assert line_plot("x", [Series("x", [(1, None), (2, nan)])]) is None


def test_a_single_value_is_drawn_in_the_middle() -> None:
    plot = line_plot("x", [Series("x", [(5, 2.0)])])
    assert plot is not None
    ((x, y, label, value),) = plot["linear"]["drawings"][0]["points"]
    assert (x, label, value) == (WIDTH / 2, "5", "2")
    assert 0 < y < HEIGHT


def test_thousands_of_points_keep_the_extremes_of_each_column() -> None:
    points: list[tuple[float, float | None]] = [(step, float(step % 10)) for step in range(10_000)]
    points[5_000] = (5_000, 99.0)
    points[7_000] = (7_000, -99.0)
    kept = thinned(points, COLUMNS, 0, 9_999)
    assert len(kept) <= 2 * COLUMNS
    assert (5_000, 99.0) in kept and (7_000, -99.0) in kept
    assert kept == sorted(kept, key=lambda point: point[0])
    plot = line_plot("x", [Series("x", points)])
    assert plot is not None and plot["thinned"] == 10_000 and not plot["dots"]


def test_a_gap_survives_thinning() -> None:
    points: list[tuple[float, float | None]] = [(step, None if 400 <= step < 700 else 1.0) for step in range(1_000)]
    plot = line_plot("x", [Series("x", points)])
    assert plot is not None
    assert plot["linear"]["drawings"][0]["path"].count("M") == 2


def test_a_moving_mean_has_no_gaps_in_it() -> None:
    points: list[tuple[float, float | None]] = [(1, 1.0), (2, None), (3, 3.0), (4, 5.0)]
    assert moving_mean(points, 3) == [(1, 1.0), (2, None), (3, 4.0), (4, 4.0)]


def test_a_logarithmic_scale_is_offered_for_values_that_spread_widely() -> None:
    wide = line_plot("x", [Series("x", [(1, 0.001), (2, 0.1), (3, 10.0)])], log=True)
    narrow = line_plot("x", [Series("x", [(1, 1.0), (2, 2.0)])], log=True)
    signed = line_plot("x", [Series("x", [(1, -1.0), (2, 100.0)])], log=True)
    assert wide is not None and wide["log"] is not None
    assert [tick["label"] for tick in wide["log"]["ticks"]] == ["0.001", "0.01", "0.1", "1", "10"]
    heights = [y for _, y, _, _ in wide["log"]["drawings"][0]["points"]]
    assert abs((heights[0] - heights[1]) - (heights[1] - heights[2])) < 0.2  # equal ratios are equal distances
    assert narrow is not None and narrow["log"] is None
    assert signed is not None and signed["log"] is None


def test_ticks_are_round() -> None:
    assert ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert ticks(3, 3) == [3]
    assert ticks(-1, 1, 4) == [-1, -0.5, 0, 0.5, 1]


@given(st.lists(st.one_of(st.none(), st.floats(width=64)), min_size=1, max_size=40))
def test_everything_lies_in_the_box(values: list[float | None]) -> None:
    plot = line_plot("x", [Series("x", list(enumerate(values)))], log=True)
    if plot is None:
        return
    for scale in (plot["linear"], plot["log"]):
        for drawing in scale["drawings"] if scale else ():
            assert all(0 <= x <= WIDTH and -0.1 <= y <= HEIGHT + 0.1 for x, y, _, _ in drawing["points"])


def test_numbers_are_said_as_people_read_them() -> None:
    assert [said(0.12345), said(1234.56), said(12.0), said(4e-05)] == ["0.123", "1,234.6", "12", "4e-05"]
    assert [said(0.5, "share"), said(4.321, "seconds"), said(1234, "seconds")] == ["50.0%", "4.32 s", "1,234 s"]


def test_bars_share_a_scale_and_have_their_intervals() -> None:
    found = bars("x", [(Bar("a", 0.5, "half", 0.25, 0.75), "runs?family=a"), (Bar("b", 0.0), "")], most=1.0)
    first, second = found["rows"]
    assert (first["fill"], first["interval"], first["href"]) == (50.0, (25.0, 75.0), "runs?family=a")
    assert (second["fill"], second["interval"], second["note"]) == (0.0, None, "0")


def test_an_interval_without_an_end_reaches_the_end_of_the_track() -> None:
    (row,) = bars("x", [(Bar("a", 100.0, "", 50.0, None), "")])["rows"]
    assert row["open"] and row["interval"] == (40.0, 100.0) and row["fill"] == 80.0


def test_a_funnel_says_what_each_stage_lost() -> None:
    found = funnel("x", ("read", 200), [("length", 200, 150), ("quality", 150, 150)])
    assert [(row["fill"], row["lost"], row["note"]) for row in found["rows"]] == [
        (100.0, 0.0, "200"),
        (75.0, 100.0, "150 (−50)"),
        (75.0, 75.0, "150"),
    ]
