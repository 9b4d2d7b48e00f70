"""Bodies of requests: what fits is read, and what does not is refused by the name of its field."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import Field

from coa.serve.api_error import ApiError
from coa.serve.bodies import Body, read_body


class Text(Body):
    type: Literal["text"]
    text: str


class Image(Body):
    type: Literal["image"]
    url: str


class Said(Body):
    content: str | list[Annotated[Text | Image, Field(discriminator="type")]]
    warmth: float | None = Field(None, ge=0, le=2)


class Talk(Body):
    said: list[Said] = Field(min_length=1)
    n: int = 1


def refused(raw: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read_body(Talk, raw)
    assert caught.value.status == 400
    return caught.value


def test_a_body_that_fits_is_read() -> None:
    talk = read_body(Talk, b'{"said": [{"content": [{"type": "text", "text": "a"}], "warmth": 1}]}')
    assert talk.said[0].warmth == 1.0


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"\xff\xfe", b'{"said": NaN}', b'{"said": "\\ud800"}', b"[" * 5000, b'"text"', b"null", b"[]"],
)
def test_what_is_not_a_json_object_is_refused(raw: bytes) -> None:
    assert refused(raw).code == "invalid_json"


@pytest.mark.parametrize(
    ("raw", "param", "code"),
    [
        (b"{}", "said", "missing_required_parameter"),
        (b'{"said": []}', "said", "invalid_value"),
        (b'{"said": "x"}', "said", "invalid_value"),
        (b'{"said": [{}]}', "said[0].content", "missing_required_parameter"),
        (b'{"said": [{"content": 1}]}', "said[0].content", "invalid_value"),
        (b'{"said": [{"content": [{"type": "text"}]}]}', "said[0].content[0].text", "missing_required_parameter"),
        (b'{"said": [{"content": [{"type": "sound"}]}]}', "said[0].content[0].type", "invalid_value"),
        (b'{"said": [{"content": "a", "warmth": "1"}]}', "said[0].warmth", "invalid_value"),
        (b'{"said": [{"content": "a", "warmth": 3}]}', "said[0].warmth", "invalid_value"),
        (b'{"said": [{"content": "a"}], "n": true}', "n", "invalid_value"),
        (b'{"said": [{"content": "a", "mood": 1}]}', "said[0].mood", "unknown_parameter"),
    ],
)
def test_a_wrong_field_is_named(raw: bytes, param: str, code: str) -> None:
    error = refused(raw)
    assert (error.param, error.code) == (param, code)
    assert param in error.message
