"""The encodings of spans. The expected bytes were made with the package opentelemetry-proto 1.45.2."""

from __future__ import annotations

import pytest

from coa.trajectory.formats.otlp_wire import Span, SpanEvent, SpanKind, Value, rejected, resource_spans, to_protobuf
from support.collectors import spans_in

TRACE, ROOT, CHILD = bytes(range(1, 17)), bytes(range(1, 9)), bytes(range(2, 10))
SPANS = [
    Span(
        TRACE, ROOT, None, "invoke_agent coa", SpanKind.INTERNAL, 1_700_000_000_000_000_000, 1_700_000_001_000_000_000,
        {
            "text": "Zoë", "empty": "", "yes": True, "no": False, "zero": 0, "count": 300, "negative": -1, "half": 0.5,
            "list": ["a", "b"], "none": [],
        },
        [SpanEvent("coa.note", 1_700_000_000_500_000_000, {"coa.step.index": 2})],
        "",
    ),
    Span(TRACE, CHILD, ROOT, "chat nano", SpanKind.CLIENT, 5, 6, {}, (), "broke"),
]  # fmt: skip
EXPECTED = (
    "0aa6030a330a150a0c736572766963652e6e616d6512050a03636f610a1a0a0f736572766963652e76657273696f6e12070a05302e312e3012"
    "ee020a0c0a03636f611205302e312e30128b020a100102030405060708090a0b0c0d0e0f10120801020304050607082a10696e766f6b655f61"
    "67656e7420636f6130013900002a36fe9c97174100cac471fe9c97174a0e0a047465787412060a045a6fc3ab4a0b0a05656d70747912020a00"
    "4a090a03796573120210014a080a026e6f120210004a0a0a047a65726f120218004a0c0a05636f756e74120318ac024a170a086e6567617469"
    "7665120b18ffffffffffffffffff014a110a0468616c66120921000000000000e03f4a140a046c697374120c2a0a0a030a01610a030a01624a"
    "0a0a046e6f6e6512022a005a29090065f753fe9c97171208636f612e6e6f74651a140a0e636f612e737465702e696e646578120218027a0218"
    "0212500a100102030405060708090a0b0c0d0e0f1012080203040506070809220801020304050607082a0963686174206e616e6f3003390500"
    "0000000000004106000000000000007a09120562726f6b651802"
)


def test_spans_are_encoded_as_the_reference_library_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coa.trajectory.formats.otlp_wire.__version__", "0.1.0")
    assert to_protobuf(SPANS, "coa").hex() == EXPECTED


def test_an_integer_of_more_than_64_bits_and_half_a_character_are_written_as_text() -> None:
    values: dict[str, Value] = {"big": 1 << 70, "low": -(1 << 63), "half": "\ud800"}
    span = Span(TRACE, ROOT, None, "a\ud800b", SpanKind.CLIENT, 1, 2, values)
    [read] = spans_in(to_protobuf([span], "coa"))
    assert read.name == "a?b" and read.attributes == {"big": str(1 << 70), "low": -(1 << 63), "half": "?"}
    [row] = resource_spans([span], "coa")["scopeSpans"][0]["spans"]
    assert row["name"] == "a?b" and row["attributes"][0]["value"] == {"stringValue": str(1 << 70)}


def test_what_a_server_refused_is_read_from_its_answer() -> None:
    assert rejected(bytes.fromhex("0a0b08031207746f6f206f6c64")) == (3, "too old")
    assert rejected(b"") == (0, "")


@pytest.mark.parametrize(
    "answer", [b"{}", b'{"partialSuccess":{}}', b"\xff" * 30, b"\x0a\x7f", b"<html>", b"\x0a\x01\x08"]
)
def test_an_answer_of_another_kind_refuses_nothing(answer: bytes) -> None:
    assert rejected(answer) == (0, "")
