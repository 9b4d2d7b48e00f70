"""Argument shapes: read tolerantly, written canonically."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coa.trajectory import ArgumentField, Form, Reading, Shape, Slip
from coa.trajectory.shapes import FieldType, last_boxed, read, write
from support.builders import ANY_TEXT

CODE = Shape(form=Form.CODE, stdin=True)
JSON = Shape(
    form=Form.JSON,
    fields={
        "path": ArgumentField(),
        "pages": ArgumentField(type=FieldType.INTEGER, required=False),
        "exact": ArgumentField(type=FieldType.BOOLEAN, required=False),
    },
)
READINGS = {
    # (shape, text): (arguments, kinds of repair)
    "query": (Shape(form=Form.LINE), " who\n was it ", {"text": "who was it"}, []),
    "urls": (Shape(form=Form.LIST), "a.example | b.example|", {"items": ["a.example", "b.example"]}, []),
    "fenced": (CODE, "\n```py\nprint(1)\n```\n", {"code": "print(1)"}, []),
    "python": (CODE, "```python\nprint(1)\n```", {"code": "print(1)"}, []),
    "indented body": (CODE, "```py\n  if x:\n    y\n```", {"code": "  if x:\n    y"}, []),
    "no fence": (CODE, "\nprint(1)\n", {"code": "print(1)"}, ["missing_fence"]),
    "open fence": (CODE, "```py\nprint(1)\n", {"code": "print(1)"}, ["missing_fence"]),
    "one line": (CODE, "```py print(1)```", {"code": "print(1)"}, ["missing_fence"]),
    "crlf": (CODE, "```py\r\nprint(1)\r\n```\r\n", {"code": "print(1)"}, ["crlf"]),
    "stdin": (CODE, "```py\nx=input()\n```\n```sh\n5\n6\n```", {"code": "x=input()", "stdin": "5\n6"}, []),
    "first fence open, then stdin": (
        CODE, "```py\nx=input()\n```sh\n5\n```", {"code": "x=input()", "stdin": "5"}, ["missing_fence"],
    ),
    "object": (JSON, '```json\n{"path": "a", "pages": 2}\n```', {"path": "a", "pages": 2}, []),
    "bare object": (JSON, ' {"path": "a"} ', {"path": "a"}, ["missing_fence"]),
    "boxed": (Shape(form=Form.BOXED), "so \\boxed{\\frac{1}{2}}", {"text": "\\frac{1}{2}"}, []),
    "not boxed": (Shape(form=Form.BOXED), " 42 ", {"text": "42"}, []),
}  # fmt: skip
SLIPS = {
    "empty query": (Shape(form=Form.LINE), " \n", "is empty"),
    "no item": (Shape(form=Form.LIST), " | ", "is empty"),
    "empty program": (CODE, "```py\n\n```", "program is empty"),
    "nothing": (CODE, "  ", "is empty"),
    "three blocks": (CODE, "```py\n1\n```\n```py\n2\n```\n```py\n3\n```", "3 fenced blocks"),
    "not JSON": (JSON, "{path: a}", "not valid JSON"),
    "a list": (JSON, "[1]", "not an object"),
    "missing field": (JSON, "{}", "'path' is missing"),
    "wrong type": (JSON, '{"path": 1}', "'path' is not of type string"),
    "a bool is no integer": (JSON, '{"path": "a", "pages": true}', "'pages' is not of type integer"),
    "unknown field": (JSON, '{"path": "a", "x": 1}', "'x' is unknown"),
    "deep": (JSON, "[" * 100_000, "not valid JSON"),
}


@pytest.mark.parametrize("case", READINGS)
def test_what_is_meant_is_understood(case: str) -> None:
    shape, text, arguments, repairs = READINGS[case]
    reading = read(shape, text)
    assert isinstance(reading, Reading), reading
    assert reading.arguments == arguments
    assert [repair.kind for repair in reading.repairs] == repairs


@pytest.mark.parametrize("case", SLIPS)
def test_a_slip_says_what_was_expected(case: str) -> None:
    shape, text, reason = SLIPS[case]
    slip = read(shape, text)
    assert isinstance(slip, Slip), slip
    assert reason in slip.message and "write" in slip.message


@pytest.mark.parametrize("form", Form)
@given(text=ANY_TEXT)
def test_reading_never_raises(form: Form, text: str) -> None:
    assert isinstance(read(Shape(form=form), text), Reading | Slip)


words = st.from_regex(r"[a-z0-9 .:/()=+-]{0,20}[a-z0-9]", fullmatch=True).map(lambda word: " ".join(word.split()))


@given(words, st.lists(words, min_size=1, max_size=3), st.none() | words)
def test_what_is_written_is_read_back(word: str, items: list[str], stdin: str | None) -> None:
    pairs: list[tuple[Shape, dict[str, Any]]] = [
        (Shape(form=Form.LINE), {"text": word}),
        (Shape(form=Form.LIST), {"items": items}),
        (CODE, {"code": "\n".join(items)} | ({"stdin": stdin} if stdin else {})),
        (JSON, {"path": word}),
        (Shape(form=Form.BOXED), {"text": word}),
    ]
    for shape, arguments in pairs:
        assert read(shape, write(shape, arguments)) == Reading(arguments)


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("\\boxed{1} then \\boxed{2}", "2"),
        ("\\boxed{a{b}c}", "a{b}c"),
        ("\\boxed{\\boxed{x}}", "\\boxed{x}"),
        ("\\boxed{open \\boxed{1}", "1"),
        ("\\boxed{a\\}b}", "a\\}b"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\fbox{1}", "1"),
        ("none {x}", None),
        ("}{}", None),
    ],
)
def test_the_last_box_whose_braces_balance(text: str, inside: str | None) -> None:
    assert last_boxed(text) == inside
