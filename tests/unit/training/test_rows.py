"""Rows: packed samples are what they are alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GemmaConfig, GemmaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from coa.errors import ModelError
from coa.training.packed_model import check, give_back, logprobs_of, take_rows
from coa.training.packing import TokenSample, to_row
from coa.training.rows import balanced, rows_needed
from support.tiny import tiny_model


def example(length: int, seed: int, *, trained_from: int = 3) -> TokenSample:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.ones(length)
    weights[:trained_from] = 0
    return TokenSample(torch.randint(250, (length,), generator=generator).int(), weights)


def test_a_row_says_where_labels_are_predicted() -> None:
    """Two samples: 10 11 12 (12 is a label) and 20 21 22 23 (21 counts half, 23 full)."""
    one = TokenSample(torch.tensor([10, 11, 12]), torch.tensor([0.0, 0.0, 1.0]))
    two = TokenSample(torch.tensor([20, 21, 22, 23]), torch.tensor([0.0, 0.5, 0.0, 1.0]))
    row = to_row([one, two], total_weight=2.5)
    assert row["segments"] == (3, 4)
    assert torch.as_tensor(row["input_ids"]).tolist() == [[10, 11, 12, 20, 21, 22, 23]]
    assert torch.as_tensor(row["position_ids"]).tolist() == [[0, 1, 2, 0, 1, 2, 3]]
    assert torch.as_tensor(row["where"]).tolist() == [1, 3, 5]
    assert torch.as_tensor(row["targets"]).tolist() == [12, 21, 23]
    assert torch.allclose(torch.as_tensor(row["scales"]), torch.tensor([0.4, 0.2, 0.4]))


def test_the_first_token_of_a_sample_is_never_predicted_from_its_neighbour() -> None:
    row = to_row(
        [TokenSample(torch.tensor([1, 2]), torch.ones(2)), TokenSample(torch.tensor([3, 4]), torch.ones(2))],
        total_weight=1,
    )
    assert torch.as_tensor(row["targets"]).tolist() == [2, 4]


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_packed_loss_and_gradients_equal_the_mean_over_single_samples(window: int | None, checkpointing: bool) -> None:
    examples = [example(9, 1), example(17, 2), example(5, 3), example(30, 4)]
    total = sum(e.weight for e in examples)

    def grads(rows: list[list[TokenSample]]) -> tuple[float, list[torch.Tensor]]:
        model, _ = tiny_model(sliding_window=window)
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        take_rows(model)
        loss = sum(model(**to_row(row, total_weight=total)).loss for row in rows)
        loss.backward()
        return loss.item(), [p.grad for p in model.parameters()]  # type: ignore[misc]

    packed, packed_grads = grads([examples])
    single, single_grads = grads([[e] for e in examples])
    assert abs(packed - single) < 1e-5
    for one, other in zip(packed_grads, single_grads, strict=True):
        assert torch.allclose(one, other, atol=1e-5)

    model, _ = tiny_model(sliding_window=window)  # and both equal transformers' own loss, weighed by labels
    plain = 0.0
    for e in examples:
        labels = torch.where(e.weights > 0, e.ids.long(), -100)[None]
        plain += model(input_ids=e.ids[None].long(), labels=labels, use_cache=False).loss.item() * e.labels / total
    assert abs(packed - plain) < 1e-5


def test_a_neighbour_changes_nothing() -> None:
    """Not one bit of a sample's log-probabilities depends on the samples beside it."""
    model, _ = tiny_model()
    take_rows(model)
    with torch.no_grad():
        one = logprobs_of(model, to_row([example(12, 1), example(8, 2)], total_weight=1))
        other = logprobs_of(model, to_row([example(12, 1), example(8, 3)], total_weight=1))
    assert torch.equal(one[:9], other[:9]) and not torch.equal(one[9:], other[9:])


def test_given_back_the_model_is_what_it_was() -> None:
    model, _ = tiny_model()
    ids = torch.arange(10)[None]
    with torch.no_grad():
        before = model(input_ids=ids).logits
        take_rows(model)
        give_back(model)
        assert torch.equal(model(input_ids=ids).logits, before)


def test_models_whose_rows_are_right_pass_the_check() -> None:
    sizes: dict[str, Any] = {
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "head_dim": 8,
    }
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1}
    for model in (
        tiny_model()[0],
        Qwen3ForCausalLM(Qwen3Config(**sizes, **heads)),
        GemmaForCausalLM(GemmaConfig(**sizes, **heads)),
    ):
        take_rows(model)
        check(model)


def test_a_head_that_is_not_a_plain_product_is_refused() -> None:
    from transformers import CohereConfig, CohereForCausalLM

    torch.manual_seed(0)
    config = CohereConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        logit_scale=0.0625,
        initializer_range=0.5,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = CohereForCausalLM(config)
    take_rows(model)
    with pytest.raises(ModelError, match="does not give the same"):
        check(model)


@settings(deadline=None)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.integers(100, 300))
def test_every_sample_is_in_one_row_and_rows_hold_what_they_may(lengths: list[int], row_tokens: int) -> None:
    rows = balanced(lengths, rows_needed(lengths, row_tokens))
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    assert all(row for row in rows)
    assert max(sum(lengths[index] for index in row) for row in rows) <= row_tokens
