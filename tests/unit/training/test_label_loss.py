"""The chunked loss against the plain one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coa.training.loss import label_logprobs, label_loss

LABELS, WIDTH, VOCABULARY = 23, 8, 50


def inputs(*, bias: bool = True) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(LABELS, WIDTH, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, requires_grad=True)
    shift = torch.randn(VOCABULARY, requires_grad=True) if bias else None
    return hidden, weight, shift, torch.randint(VOCABULARY, (LABELS,)), torch.rand(LABELS)


def plain(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    logits = torch.nn.functional.linear(hidden, weight, bias)
    return logits.log_softmax(-1)[torch.arange(len(targets)), targets]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chunk", [1, 7, 23, 1000])
def test_loss_and_gradients_equal_the_plain_ones(chunk: int, bias: bool) -> None:
    hidden, weight, shift, targets, scales = inputs(bias=bias)
    wanted = [tensor for tensor in (hidden, weight, shift) if tensor is not None]
    expected = -(plain(hidden, weight, shift, targets) * scales).sum() * 3
    expected_grads = torch.autograd.grad(expected, wanted)
    found = label_loss(hidden, weight, shift, targets, scales, chunk=chunk) * 3
    found_grads = torch.autograd.grad(found, wanted)
    assert torch.allclose(found, expected, atol=1e-5)
    for one, other in zip(found_grads, expected_grads, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_logprobs_carry_any_gradient(chunk: int) -> None:
    """A loss that is not linear in them, as RL's clipped ratio is."""
    hidden, weight, shift, targets, scales = inputs()
    assert shift is not None
    expected = (plain(hidden, weight, shift, targets).exp() * scales).pow(2).sum()
    found = (label_logprobs(hidden, weight, shift, targets, chunk=chunk).exp() * scales).pow(2).sum()
    for one, other in zip(
        torch.autograd.grad(found, [hidden, weight, shift]),
        torch.autograd.grad(expected, [hidden, weight, shift]),
        strict=True,
    ):
        assert torch.allclose(one, other, atol=1e-5)


def test_a_frozen_head_gets_no_gradient_and_the_rest_is_the_same() -> None:
    hidden, weight, _, targets, scales = inputs()
    (with_head,) = torch.autograd.grad(label_loss(hidden, weight, None, targets, scales), [hidden])
    frozen = weight.detach()
    (without,) = torch.autograd.grad(label_loss(hidden, frozen, None, targets, scales), [hidden])
    assert torch.equal(with_head, without)


def test_under_autocast_it_computes_as_a_linear_layer_does() -> None:
    hidden, weight, _, targets, scales = inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = label_loss(hidden, weight, None, targets, scales)
        logits = torch.nn.functional.linear(hidden, weight)
    assert logits.dtype == torch.bfloat16
    expected = -(logits.float().log_softmax(-1)[torch.arange(LABELS), targets] * scales).sum()
    assert torch.allclose(found, expected, atol=1e-4)
    grads = torch.autograd.grad(found, [hidden, weight])
    assert all(grad.dtype == torch.float32 for grad in grads)


def test_no_more_than_a_chunk_of_logits_is_ever_there() -> None:
    """64 MB of logits for all labels at once; what is allocated at a time stays below a tenth of it."""
    labels, vocabulary = 2048, 8192
    torch.manual_seed(0)
    hidden = torch.randn(labels, 16, requires_grad=True)
    weight = torch.randn(vocabulary, 16, requires_grad=True)
    targets, scales = torch.randint(vocabulary, (labels,)), torch.ones(labels)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        label_loss(hidden, weight, None, targets, scales, chunk=64).backward()
    largest = max((event.self_cpu_memory_usage // max(event.count, 1) for event in profile.key_averages()), default=0)
    assert 0 < largest < labels * vocabulary * 4 / 10
