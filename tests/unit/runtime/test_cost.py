"""What a run costs, and the budget for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coa.errors import ModelError
from coa.models.base import Context
from coa.models.price import Price, price_of, read_prices
from coa.models.scripted import ScriptedModel
from coa.trajectory import Limits, Stop, Task, Trajectory, Usage, read, write
from coa.trajectory.store.parquet import schema
from support.builders import make_trajectory
from support.runs import run, run_many
from support.tokenizers import tokenizer
from support.tools import searching

PRICE = Price(input=1.0, cached=0.1, output=10.0)


def endless(context: Context) -> str:
    if context.text.endswith("<answer>"):
        return "Ada</answer>"
    return f"<think>t</think>\n<web_search>q{len(context.text)}</web_search>"


def test_cached_input_has_a_price_of_its_own() -> None:
    usage = Usage(prompt_tokens=1_000_000, cached_tokens=400_000, completion_tokens=50_000)
    assert PRICE.of(usage) == pytest.approx(0.6 * 1.0 + 0.4 * 0.1 + 0.05 * 10.0)
    assert Price(input=1.0, output=10.0).of(usage) == pytest.approx(1.0 + 0.5)


def test_without_prices_the_cost_is_unknown_and_not_zero() -> None:
    done = asyncio.run(run("?", ScriptedModel(["<answer>a</answer>"])))
    assert done.usage.cost is None
    assert (Usage() + Usage()).cost is None
    assert (Usage(cost=0.5) + Usage()).cost == (Usage() + Usage(cost=0.5)).cost == 0.5


@pytest.mark.parametrize("limit", [0.002, 0.01, 0.05])
def test_when_the_money_runs_out_the_run_is_led_to_an_answer_within_it(limit: float) -> None:
    model = ScriptedModel(endless, tokenizer=tokenizer("smollm2"))
    limits = Limits(cost=limit, steps=1000, tool_calls=1000)
    done = asyncio.run(run("Who?", model, {"web_search": searching()}, "nano", limits=limits, price=PRICE))
    assert done.stop is Stop.COST and done.answer == "Ada"
    spent = PRICE.of(done.usage)
    assert done.usage.cost == pytest.approx(spent) and spent <= limit


def test_one_call_writes_no_more_than_can_be_paid() -> None:
    tok = tokenizer("smollm2")
    model = ScriptedModel(
        lambda context: "Ada</answer>" if context.text.endswith("<answer>") else "<think>" + "word " * 5000,
        tokenizer=tok,
    )
    done = asyncio.run(run("Who?", model, profile="nano", limits=Limits(cost=0.02), price=PRICE))
    assert done.stop is Stop.COST and PRICE.of(done.usage) <= 0.02


def test_a_cost_limit_without_prices_is_refused_before_anything_is_spent() -> None:
    model = ScriptedModel(endless)
    with pytest.raises(ModelError, match="price of a token"):
        asyncio.run(run("?", model, limits=Limits(cost=1.0)))

    async def many() -> list[Trajectory]:
        return [t async for t in run_many([Task(id="1", question="?")], model, limits=Limits(cost=1.0))]

    with pytest.raises(ModelError, match="price of a token"):
        asyncio.run(many())
    assert model.calls == []


def test_prices_come_from_a_file_by_the_models_name(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text('["org/big"]\ninput = 2\noutput = 8\n\n[small]\ninput = 0.1\ncached = 0.01\noutput = 0.4\n')
    assert price_of("org/big", path) == Price(input=2, output=8)
    assert read_prices(path)["small"].cached == 0.01
    with pytest.raises(ModelError, match="no price for the model 'other'; it has org/big, small"):
        price_of("other", path)


@pytest.mark.parametrize(
    ("text", "said"),
    [("x = 3", "price of 'x'"), ("[x]\ninptu = 3", "inptu"), ("[x]\ninput = -1", "input"), ("[", "TOML")],
)
def test_a_bad_price_file_says_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ModelError, match=said):
        read_prices(path)
    with pytest.raises(ModelError, match="cannot read the prices"):
        read_prices(tmp_path / "none.toml")


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
def test_cost_survives_the_file_and_so_does_its_absence(tmp_path: Path, name: str) -> None:
    runs = [
        make_trajectory(("answer", "a")).model_copy(update={"usage": usage}) for usage in (Usage(), Usage(cost=0.25))
    ]
    write(tmp_path / name, runs)
    assert [t.usage.cost for t in read(tmp_path / name)] == [None, 0.25]


def test_parquet_from_before_costs_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write(path, [make_trajectory(("answer", "a"))])
    rows = pq.read_table(path).to_pylist()
    for row in rows:
        del row["usage"]["cost"]
    usage = pa.struct([field for field in schema().field("usage").type if field.name != "cost"])
    older = schema().set(schema().get_field_index("usage"), pa.field("usage", usage))
    pq.write_table(pa.Table.from_pylist(rows, schema=older), path)
    assert [t.usage for t in read(path)] == [Usage()]
