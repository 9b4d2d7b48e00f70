"""The shape of texts: lists, code, results of a search. Whatever has none stays as it was written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coa.tools.results import Found, show
from coa.web.texts import LONGEST, parts_of, search_results


def items(text: str) -> list[list[str]]:
    return [part["items"] for part in parts_of(text) or [] if part["kind"] == "list"]


def test_a_plan_in_one_line_is_a_list() -> None:
    assert items("1. Find the designer. 2. Find the year 1871. 3. Answer.") == [
        ["Find the designer.", "Find the year 1871.", "Answer."]
    ]


def test_lines_with_numbers_or_bullets_are_lists() -> None:
    parts = parts_of("The plan:\n1) search\n   in the index\n\n2) read\nThen:\n- one\n- two")
    assert parts == [
        {"kind": "text", "text": "The plan:"},
        {"kind": "list", "ordered": True, "start": 1, "items": ["search\nin the index", "read"]},
        {"kind": "text", "text": "Then:"},
        {"kind": "list", "ordered": False, "start": 1, "items": ["one", "two"]},
    ]


def test_one_item_or_numbers_that_do_not_count_are_no_list() -> None:
    assert parts_of("1. only this") is None
    assert parts_of("3.5 and 4. then") is None
    assert parts_of("1. a\n7. b") is None
    assert parts_of("a - b\nc - d") is None


def test_code_between_fences_is_highlighted() -> None:
    parts = parts_of("So:\n```python\nx = 1  # one\n```\nDone.")
    assert parts is not None and [part["kind"] for part in parts] == ["text", "code", "text"]
    code = parts[1]
    assert code["kind"] == "code" and code["text"] == "x = 1  # one" and ("comment", "# one") in (code["tokens"] or [])


def test_a_fence_that_is_never_closed_goes_to_the_end() -> None:
    (part,) = parts_of("```\nx = 1\ny = 2") or []
    assert part["kind"] == "code" and part["text"] == "x = 1\ny = 2"


def test_a_very_long_text_is_not_read() -> None:
    assert parts_of("1. a\n2. b\n" * LONGEST) is None


@given(st.text(alphabet="ab1.2-)* \n", max_size=200))
def test_no_letter_of_a_text_is_lost(text: str) -> None:
    parts = parts_of(text)
    if parts is None:
        return
    shown = "".join("".join(part["items"]) if part["kind"] == "list" else part["text"] for part in parts)
    assert [c for c in shown if c in "ab"] == [c for c in text if c in "ab"]


def test_results_of_the_search_tools_are_read_as_they_write_them() -> None:
    one = show("engine", "towers", [
        Found("Vell - a tower", "https://towers.example/vell", "The tallest (100 m).", "2021"),
        Found("No address", "", "A passage."),
    ])  # fmt: skip
    other = show("engine", "bridges", [Found("Tamsel", "https://bridges.example", "")])
    groups = search_results(f"{one}\n\n{other}")
    assert groups is not None
    assert [(group["heading"], len(group["results"])) for group in groups] == [
        ('engine, results for "towers":', 2), ('engine, results for "bridges":', 1),
    ]  # fmt: skip
    assert groups[0]["results"] == [
        {"title": "Vell - a tower", "url": "https://towers.example/vell", "text": "The tallest (100 m).",
         "date": "2021"},
        {"title": "No address", "url": "", "text": "A passage.", "date": ""},
    ]  # fmt: skip


def test_an_address_that_runs_something_is_no_link() -> None:
    assert search_results("1. Click - javascript:alert(1)") is None
    groups = search_results("found:\n1. Click - javascript:alert(1)\n2. Go - https://a.example")
    assert groups is not None and [one["url"] for one in groups[0]["results"]] == ["", "https://a.example"]


def test_other_texts_are_no_results() -> None:
    assert search_results("") is None
    assert search_results("population: 1584\nfounding: 1206") is None
    assert search_results("nothing found") is None
