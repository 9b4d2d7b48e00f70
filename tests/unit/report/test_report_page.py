"""Pages that open anywhere: well-formed, escaped, nothing loaded."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from coa.report import (
    Bar,
    Link,
    bars,
    curve,
    details,
    funnel,
    notice,
    page,
    paragraph,
    said,
    section,
    table,
    text_block,
)
from coa.report.origin import command, origin
from coa.version import __version__


def widths(chart: str, name: str) -> list[float]:
    return [float(value) for value in re.findall(rf'class="{name}"[^>]*width: ([\d.]+)%', chart)]


def test_everything_is_escaped() -> None:
    evil = '<img src="http://x" onerror="y">'
    cells = [evil, Link(evil, f"#{evil}")]
    made = page(evil, section(evil, paragraph(evil)), table([evil], [cells]), details(evil, [evil], anchor=evil))
    made += notice(evil) + text_block(evil, evil) + curve([(1, 2)], title=evil)
    made += bars([Bar(evil, 1, evil)], title=evil) + funnel((evil, 1), [(evil, 1, 1)], title=evil)
    assert "<img" not in made and made.count("&lt;img") >= 12


def test_pictures_are_well_formed() -> None:
    for chart in (
        bars([Bar("a & b", 0.5, low=0.4, high=0.6), Bar("c", 0)], title="t"),
        funnel(("read", 10), [("x", 10, 4), ("y", 4, 0)], title="t"),
        funnel(("read", 0), [], title="empty"),
        bars([], title="empty"),
        curve([(1, 0.5), (2, 0.25)], title="t"),
    ):
        ElementTree.fromstring(chart)


def test_bars_are_as_long_as_their_values() -> None:
    first, second = widths(bars([Bar("a", 50), Bar("b", 25)], title="t"), "fill")
    assert first == 2 * second == 100
    assert widths(bars([Bar("a", 0.5)], title="t", most=1.0), "fill") == [50]
    assert widths(bars([Bar("a", 2.0)], title="t", most=1.0), "fill") == [100]


def test_an_interval_beyond_the_bar_sets_the_scale() -> None:
    wide = bars([Bar("a", 50, low=0, high=100)], title="t")
    assert widths(wide, "fill") == [50] and widths(wide, "interval") == [100]


@pytest.mark.parametrize("end", [None, float("inf")])
def test_an_interval_without_an_upper_end_is_drawn_to_the_edge_with_an_arrow(end: float | None) -> None:
    chart = bars([Bar("a", 50, low=20, high=end), Bar("b", 10, low=5, high=20)], title="t")
    # The scale ends at 50 * 1.25: the bar takes 80 %, the interval what follows the first 32 %.
    assert widths(chart, "fill") == [80, 16] and 'class="interval open" style="left: 32.00%; width: 68.00%"' in chart
    assert chart.count("open") == 1 and "inf" not in chart and "nan" not in chart
    assert ".open::after" in page("t", chart)


def test_a_funnel_says_what_each_stage_dropped() -> None:
    chart = funnel(("read", 1000), [("quality", 1000, 250)], title="t")
    assert "250 (−750)" in chart
    assert widths(chart, "fill") == [100, 25] and widths(chart, "lost") == [100]


def test_text_of_pictures_keeps_its_size_on_a_narrow_screen() -> None:
    """No text stands inside a picture that is scaled down; labels move above their bars."""
    pictures = [bars([Bar("label", 1)], title="t"), funnel(("read", 1), [], title="t"), curve([(1, 2)], title="t")]
    for picture in pictures:
        assert "<text" not in picture
    made = page("t", *pictures)
    assert 'content="width=device-width' in made and "@media (max-width: 40rem)" in made


def test_a_section_without_content_has_no_heading() -> None:
    assert section("Why", "", table(["a"], [])) == ""
    assert section("Why", paragraph("because")).startswith("<h2>Why</h2>")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(["code"], "code"), ([], "none"), (None, "none"), ("", "none"), ({}, "none"), (True, "yes"), (0, "0"),
     (["a", "b"], "a, b"), ({"max": 3, "on": False}, "max 3, on no"), (0.5, "0.5")],
)  # fmt: skip
def test_settings_are_written_in_words(value: object, shown: str) -> None:
    assert said(value) == shown


def test_a_page_says_which_run_command_version_and_day_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1763424000")
    monkeypatch.setattr("sys.argv", ["/usr/bin/coa", "eval", "math500", "--out", "runs/e 1"])
    made = page("t", run="runs/e 1")
    assert "Run: e 1</p>" in made and "Command: coa eval math500 --out &#x27;runs/e 1&#x27;</p>" in made
    assert f"Made by coa {__version__} on 2025-11-18 at 00:00 UTC" in made
    monkeypatch.setattr("sys.argv", ["train.py"])
    assert origin() == [f"Made by coa {__version__} on 2025-11-18 at 00:00 UTC"]


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (["--model", "http://me:secret@host:1/v1"], "--model 'http://***@host:1/v1'"),
        (["--model", "http://host/v1?key=secret"], "--model 'http://host/v1?***'"),
        (["--mcp", "npx server --key secret"], "--mcp '***'"),
        (["--mcp=https://host/?token=secret"], "'--mcp=***'"),
        (["--set", "run.mcp=npx secret"], "--set 'run.mcp=***'"),
        (["--tool", "web_search=my_tools:Lookup"], "--tool web_search=my_tools:Lookup"),
        (["--judge-key-env", "MY_KEY"], "--judge-key-env MY_KEY"),
    ],
)
def test_a_command_is_shown_without_its_secrets(typed: list[str], shown: str) -> None:
    assert command(["/venv/coa/cli/__main__.py", "run", *typed]) == f"coa run {shown}"
    assert command(["/usr/bin/pytest", *typed]) == ""


def test_a_link_leads_into_the_fold_that_it_names() -> None:
    made = page("t", table(["task"], [[Link("t1", "#run-0")]]), details("t1", parts=["<p>x</p>"], anchor="run-0"))
    assert '<a href="#run-0">t1</a>' in made and '<details><summary>t1</summary><div id="run-0">' in made


def test_numbers_are_set_right_and_none_is_empty() -> None:
    made = table(["a", "b", "c"], [[1234567, 0.5, None]])
    assert '<td class="number">1,234,567</td><td class="number">0.50</td><td></td>' in made


def test_the_page_loads_nothing() -> None:
    made = page("t", paragraph("x"))
    assert "default-src 'none'" in made and "<script" not in made and "<link" not in made


def test_the_page_of_a_run_links_to_it_in_the_viewer(tmp_path: Path) -> None:
    made = page("Evaluation", run=tmp_path / "mine")
    assert 'href="http://127.0.0.1:8090/#/folder/mine"' in made
    assert "coa view mine" in made and str(tmp_path) not in made
    assert "viewer" not in page("Anything")
