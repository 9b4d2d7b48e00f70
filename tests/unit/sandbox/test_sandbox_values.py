"""What a program may claim that its function returned."""

from __future__ import annotations

import ast
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.sandbox.base import CodeVerdict, ProgramResult, _written_arguments
from coa.sandbox.cells import with_value
from coa.sandbox.inside.cell import READABLE, _plain
from coa.sandbox.values import DEEPEST, literal, python_value, read_value
from coa.scoring.code.compare import same_value

LONG = 7**20_000  # 16,902 digits
RESULT = ProgramResult(CodeVerdict.OK)


def through(value: object) -> object:
    """Out of the sandbox, as a checker then gets it."""
    return python_value(read_value(json.dumps(_plain(value)).encode()))


@pytest.mark.parametrize(
    "value",
    [None, True, 3, -2.5, "é", [1, [2, []]], {"a": 1, 2: [3]}, {1, 2}, set(), {(1, 2): {3}}, [LONG], [-LONG], 1e300],
)
def test_plain_values_come_out_as_they_are(value: object) -> None:
    assert through(value) == value


def test_sets_inside_sets_come_out_as_tuples() -> None:
    assert through({frozenset([1])}) == {(1,)}
    assert through({frozenset([1]): 2}) == {(1,): 2}


def test_a_value_of_a_hundred_levels_is_read_and_one_of_more_is_not() -> None:
    assert read_value(b"[" * DEEPEST + b"]" * DEEPEST) is not None
    for levels in (DEEPEST + 1, 3_000, 100_000):
        with pytest.raises(ValueError, match="nested too deep"):
            read_value(b"[" * levels + b"]" * levels)


@pytest.mark.parametrize(
    "message",
    [
        b'{"float": "abc"}', b'{"float": 1}', b'{"int": "xyz"}', b'{"set": 3}', b'{"set": [{"dict": []}]}',
        b'{"dict": [[1]]}', b'{"dict": [3]}', b'{"dict": [[{"dict": []}, 1]]}', b'{"a": 1}', b"{}",
        b'{"set": [], "dict": []}', b"NaN", b"Infinity", b'"\\ud800"', b"1" * 5_000, b"", b"\xff", b"[1",
    ],
)  # fmt: skip
def test_a_forged_message_is_no_value(message: bytes) -> None:
    result = with_value(RESULT, b"nonce" + READABLE + b"nonce" + message, "nonce")
    assert not result.returned and result.value is None and "cannot be read" in result.note


def test_a_message_without_the_nonce_is_no_value() -> None:
    assert with_value(RESULT, b"[1]", "nonce") == RESULT


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inside: (
        st.lists(inside)
        | st.dictionaries(st.sampled_from(["dict", "set", "float", "int", "x"]), inside, max_size=2)
        | st.lists(st.lists(inside, min_size=2, max_size=2)).map(lambda pairs: {"dict": pairs})
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(_json, _json)
def test_whatever_is_read_can_be_compared_and_handed_to_a_checker(message: object, expected: object) -> None:
    try:
        value = read_value(json.dumps(message).encode())
    except ValueError:
        return
    same_value(value, expected)  # type: ignore[arg-type]
    _written_arguments([python_value(value)])


def read_arguments(written: bytes) -> object:
    """As the process inside reads them."""
    return json.loads(written[1:]) if written[:1] == b"j" else ast.literal_eval(written[1:].decode())


def test_integers_of_any_size_go_in_and_come_out() -> None:
    assert read_arguments(_written_arguments([LONG, "a"])) == [LONG, "a"]
    assert read_arguments(_written_arguments([[LONG, (1,), {2}, set()], {"k": -LONG}])) == [
        [LONG, (1,), {2}, set()],
        {"k": -LONG},
    ]
    reported = read_value(json.dumps(_plain(LONG)).encode())
    assert same_value(reported, LONG) and not same_value(reported, LONG + 1) and not same_value(reported, 0.5)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.tuples(x, x)))
def test_a_literal_reads_back_as_it_was(value: object) -> None:
    assert ast.literal_eval(literal(value)) == value
