"""What a request to `/v1/responses` may contain, and how it is refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from coa.serve.api_error import ApiError
from coa.serve.bodies import read_body
from coa.serve.responses.body import REFUSED, CreateResponse


def read(**fields: Any) -> CreateResponse:
    body = read_body(CreateResponse, orjson.dumps({"model": "m", "input": "?", **fields}))
    body.check()
    return body


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        read(**fields)
    assert error.value.status == 400
    return error.value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"type": "message", "role": "wizard", "content": "?"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 1}]}]}, "input[0].content[0].text"),
        ({"input": [{"role": "user", "content": [{"text": "?"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": "?", "name": "bob"}]}, "input[0].name"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].type"),
        ({"input": [{"type": ["message"], "role": "user", "content": "?"}]}, "input[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "a"}]}, "input[0].output"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"stream": "yes"}, "stream"),
        ({"store": 1}, "store"),
        ({"max_output_tokens": 2.5}, "max_output_tokens"),
        ({"max_output_tokens": 1}, "max_output_tokens"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"reasoning": {"effort": "extreme"}}, "reasoning.effort"),
        ({"reasoning": {"depth": 1}}, "reasoning.depth"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {}}}}, "text.format.type"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"include": ["message.output_text.logprobs"]}, "include[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "has space"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "f", "parameters": []}]}, "tools[0].parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]}},
         "tool_choice.tools[0].name"),
        ({"background": True, "store": False}, "store"),
        ({"no_such_field": 1}, "no_such_field"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_the_name_of_its_field(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert error.param == param
    assert param.split(".")[0].split("[")[0] in error.message


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_effect_is_refused_unless_it_is_empty(name: str) -> None:
    assert refused(**{name: {"id": "x"}}).code == "unsupported_parameter"
    assert refused(**{name: True}).param == name
    for empty in (None, 0):
        read(**{name: empty})


def test_what_common_clients_always_send_is_accepted() -> None:
    read(
        user="u", safety_identifier="s", prompt_cache_key="k", prompt_cache_retention="24h", service_tier="auto",
        parallel_tool_calls=False, truncation="auto", stream_options={"include_obfuscation": False}, include=[],
        text={"format": {"type": "text"}, "verbosity": "medium"}, reasoning={"effort": "low", "summary": "auto"},
        tools=[], tool_choice="auto", metadata={}, instructions=None, previous_response_id=None,
    )  # fmt: skip


def test_allowed_tools_and_none_choose_among_the_tools() -> None:
    tools = [{"type": "function", "name": name} for name in "abc"]
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "b"}]}
    assert [tool.name for tool in read(tools=tools).offered()] == ["a", "b", "c"]
    assert [tool.name for tool in read(tools=tools, tool_choice=allowed).offered()] == ["b"]
    assert read(tools=tools, tool_choice="none").offered() == []
    assert read(tools=tools, tool_choice={**allowed, "mode": "none"}).offered() == []
