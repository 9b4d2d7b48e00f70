"""What a call cost is kept from wherever a trace says so."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from coa.cli import app
from coa.distill.importers.content import as_usage
from coa.distill.importers.spans.span import TraceSpan
from coa.distill.importers.spans.tree import read_span


@pytest.mark.parametrize(
    ("row", "cost"),
    [
        ({"prompt_tokens": 1, "cost_usd": 0.5}, 0.5),
        ({"prompt_tokens": 1, "cost": 0}, 0.0),
        ({"prompt_tokens": 1, "total_cost": 2}, 2.0),
        ({"input_tokens": 1, "cost": {"input": 0.1, "total": 0.3}}, 0.3),
        ({"prompt_tokens": 1, "cost": -1}, None),
        ({"prompt_tokens": 1, "cost": True}, None),
        ({"prompt_tokens": 1, "cost": "much"}, None),
        ({"prompt_tokens": 1}, None),
    ],
)
def test_a_cost_is_read_by_its_usual_names(row: dict[str, Any], cost: float | None) -> None:
    usage = as_usage(row)
    assert usage is not None and usage.cost == cost


@pytest.mark.parametrize(
    "attributes",
    [
        {"openinference.span.kind": "LLM", "llm.token_count.prompt": 3, "llm.cost.total": 0.25},
        {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 3, "gen_ai.usage.cost": 0.25},
        {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 3, "operation.cost": 0.25},
    ],
)
def test_spans_carry_costs(attributes: dict[str, Any]) -> None:
    span = TraceSpan(id="a", trace="t", parent=None, name="chat", start=1.0, order=1, attributes=attributes)
    usage = read_span(span).usage
    assert usage is not None and (usage.prompt_tokens, usage.cost) == (3, 0.25)


def test_the_command_names_the_damage_where_nothing_can_be_counted(tmp_path: Any) -> None:
    (tmp_path / "torn.json").write_text('{"schema_version": "ATIF-v1.8", "steps": [')
    done = CliRunner().invoke(app, ["cost", str(tmp_path)])
    assert done.exit_code == 1 and "torn.json" in str(done.exception) and "not valid JSON" in str(done.exception)


@pytest.mark.parametrize(
    ("counts", "prompt", "cached"),
    [
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}, 9, 4),
        ({"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}}, 9, 4),
        ({"input_tokens": 9, "input_token_details": {"cache_read": 4}}, 9, 4),
        ({"input_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2}, 9, 4),
        ({"prompt_tokens": 9, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2}, 9, 4),
        ({"prompt_tokens": 9, "input_tokens": 9}, 9, 0),
    ],
    ids=["openai", "responses", "langchain", "anthropic", "a proxy before anthropic", "both names"],
)
def test_tokens_that_were_read_are_counted_once(counts: dict[str, object], prompt: int, cached: int) -> None:
    usage = as_usage(counts)
    assert usage is not None and (usage.prompt_tokens, usage.cached_tokens) == (prompt, cached)
