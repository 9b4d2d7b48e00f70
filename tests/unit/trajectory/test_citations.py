"""Which sources an answer cites."""

from __future__ import annotations

from coa.trajectory import Step, observation
from coa.trajectory.citations import citations, sources_of

RESULTS = observation(
    '"towers" results:\n1. The Vell tower - https://towers.example/vell (2020)\n   It is 88 m tall.\n'
    "2. Other towers - https://towers.example/others\n   None is taller.",
    meta={"ok": True},
)
PAGES = observation(
    "text of the page",
    meta={"ok": True, "pages": [{"url": "https://towers.example/vell"}, {"url": "https://a.example/", "error": "404"}]},
)


def cited(answer: str, *steps: Step) -> list[tuple[str, str, str]]:
    return [(found.url, found.title, answer[found.start : found.end]) for found in citations(answer, steps)]


def test_an_address_in_the_answer_is_cited_at_its_place() -> None:
    answer = "88 m (see https://towers.example/vell), or https://new.example/a_(b)."
    assert cited(answer, RESULTS, PAGES) == [
        ("https://towers.example/vell", "The Vell tower", "https://towers.example/vell"),
        ("https://new.example/a_(b)", "https://new.example/a_(b)", "https://new.example/a_(b)"),
    ]


def test_an_answer_without_addresses_cites_the_pages_that_were_read() -> None:
    assert cited("88 m", RESULTS, PAGES) == [("https://towers.example/vell", "The Vell tower", "88 m")]


def test_without_pages_the_results_that_contain_the_answer_are_cited() -> None:
    assert cited("88 m", RESULTS) == [("https://towers.example/vell", "The Vell tower", "88 m")]
    assert cited("99 m", RESULTS) == []
    assert cited("", RESULTS, PAGES) == []


def test_what_a_failed_tool_wrote_is_no_source() -> None:
    failed = observation("error: https://towers.example/vell 88 m", meta={"ok": False})
    assert cited("88 m", failed) == []


def test_a_page_that_is_written_to_waste_time_wastes_little() -> None:
    """Many addresses in a line, a long gap behind a number, an address of brackets: what is read of them is bounded."""
    addresses = [f"https://a.example/{number}" for number in range(5_000)]
    spaces = "1. x" + " " * 100_000 + "https://b.example"
    brackets = "https://c.example/" + ")" * 100_000
    steps = [observation("\n".join([*addresses, " ".join(addresses), spaces, brackets]), meta={"ok": True})] * 5
    assert len(sources_of(steps)) == 500
    assert all(len(source.passage) <= 5_000 and len(source.url) <= 2_100 for source in sources_of(steps).values())
