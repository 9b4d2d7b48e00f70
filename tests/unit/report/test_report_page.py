"""Pages that open anywhere: well-formed, escaped, nothing loaded."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from coa.report import Bar, bars, details, funnel, page, paragraph, table


def numbers(svg: str, name: str) -> list[float]:
    return [float(value) for value in re.findall(rf'<rect [^>]*{name}="([\d.]+)"', svg)]


def test_everything_is_escaped() -> None:
    evil = '<img src="http://x" onerror="y">'
    made = page(evil, paragraph(evil, heading=evil), table([evil], [[evil]]), details(evil, [evil]))
    made += bars([Bar(evil, 1, evil)], title=evil) + funnel((evil, 1), [(evil, 1, 1)], title=evil)
    assert "<img" not in made and made.count("&lt;img") >= 12


def test_pictures_are_well_formed() -> None:
    for svg in (
        bars([Bar("a & b", 0.5, low=0.4, high=0.6), Bar("c", 0)], title="t"),
        funnel(("read", 10), [("x", 10, 4), ("y", 4, 0)], title="t"),
        funnel(("read", 0), [], title="empty"),
        bars([], title="empty"),
    ):
        ElementTree.fromstring(svg)


def test_bars_are_as_long_as_their_values() -> None:
    first, second = numbers(bars([Bar("a", 50), Bar("b", 25)], title="t"), "width")
    assert first == 2 * second > 0


def test_an_interval_beyond_the_bar_sets_the_scale() -> None:
    plain = numbers(bars([Bar("a", 50)], title="t"), "width")
    wide = numbers(bars([Bar("a", 50, low=0, high=100)], title="t"), "width")
    assert plain[0] == 2 * wide[0]


def test_a_funnel_says_what_each_stage_dropped() -> None:
    svg = funnel(("read", 1000), [("quality", 1000, 250)], title="t")
    assert "250 (−750)" in svg
    whole, before, after = numbers(svg, "width")
    assert whole == before == 4 * after


def test_numbers_are_set_right_and_none_is_empty() -> None:
    made = table(["a", "b", "c"], [[1234567, 0.5, None]])
    assert '<td class="number">1,234,567</td><td class="number">0.50</td><td></td>' in made


def test_the_page_loads_nothing() -> None:
    made = page("t", paragraph("x"))
    assert "default-src 'none'" in made and "<script" not in made and "<link" not in made
