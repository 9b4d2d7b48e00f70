"""The loss at the labels, without ever holding the logits of a whole row.

The last step of a language model multiplies hidden states [tokens, width] by the output head [vocabulary, width]. With
32k tokens and a vocabulary of 150k the logits in fp32 would take 20 GB, their gradient as much again, and most of them
belong to tokens without a label (prompts, tool output). So only positions that predict a label are multiplied, one
chunk at a time. A chunk's logits give its part of the loss; the gradient of the loss with respect to the logits is
softmax minus one-hot, which is written over them, multiplied into the gradients of hidden states and head, and
forgotten.

`label_loss` (fine-tuning) knows each label's factor beforehand and makes these gradients in the forward pass.
`label_logprobs` (RL) does not, because its loss is not linear in the log-probabilities; it computes the logits once
more in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coa.training.settings import LOGIT_BYTES


def label_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, scales: Tensor, *, chunk: int | None = None
) -> Tensor:
    """Sum over positions of `scale * -log p(target)`.

    `hidden` is [labels, width], the last hidden states at the positions that predict a label; `weight` is the output
    head, [vocabulary, width]; `targets` and `scales` are [labels]. Gradients are made in the forward pass, while a
    chunk's logits exist, so nothing is computed twice and nothing large is kept.
    """
    hidden, weight, bias = _as_autocast(hidden, weight, bias)
    return _LabelLoss.apply(hidden, weight, bias, targets, scales, chunk or _chunk(weight))  # type: ignore[no-any-return, no-untyped-call]


def label_logprobs(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *, chunk: int | None = None
) -> Tensor:
    """log p(target) of each position, [labels]; logits are computed again in the backward pass."""
    hidden, weight, bias = _as_autocast(hidden, weight, bias)
    return _LabelLogprobs.apply(hidden, weight, bias, targets, chunk or _chunk(weight))  # type: ignore[no-any-return, no-untyped-call]


def _chunk(weight: Tensor) -> int:
    return max(LOGIT_BYTES // (4 * weight.shape[0]), 16)


def _as_autocast(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Autocast does not see a custom function, so cast as it would cast a linear layer."""
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    return hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.nn.functional.linear(hidden, weight, bias).float()


def _softmax_minus_one_hot(logits: Tensor, normaliser: Tensor, targets: Tensor) -> Tensor:
    """d(-log p)/d(logits), [labels, vocabulary], in the memory of the logits."""
    slope = logits.sub_(normaliser[:, None]).exp_()
    slope[torch.arange(len(targets), device=targets.device), targets] -= 1
    return slope


class _Gradients:
    """Gradients of hidden states, head and bias, as far as they are wanted, filled chunk by chunk."""

    def __init__(self, wanted: tuple[bool, ...], hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        self.hidden = torch.empty_like(hidden) if wanted[0] else None
        # Summed in fp32: with a hundred chunks bf16 would lose the small ones.
        self.weight = torch.zeros_like(weight, dtype=torch.float32) if wanted[1] else None
        self.bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and wanted[2] else None

    def add(self, part: slice, slope: Tensor, hidden: Tensor, weight: Tensor) -> None:
        narrow = slope.to(hidden.dtype)
        if self.hidden is not None:
            torch.mm(narrow, weight, out=self.hidden[part])
        if self.weight is not None and self.weight.dtype == narrow.dtype:
            self.weight.addmm_(narrow.t(), hidden[part])
        elif self.weight is not None:
            self.weight += narrow.t() @ hidden[part]
        if self.bias is not None:
            self.bias += slope.sum(0)

    def scaled(self, by: Tensor | None, like: tuple[Tensor, Tensor, Tensor | None]) -> tuple[Tensor | None, ...]:
        grads = (self.hidden, self.weight, self.bias)
        return tuple(
            None if grad is None or tensor is None else (grad if by is None else grad.mul_(by)).to(tensor.dtype)
            for grad, tensor in zip(grads, like, strict=True)
        )


class _LabelLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, scales: Tensor, chunk: int
    ) -> Tensor:
        wanted = ctx.needs_input_grad[:3]
        gradients = _Gradients(wanted, hidden, weight, bias)
        total = torch.zeros((), device=hidden.device)
        for start in range(0, len(hidden), chunk):
            part = slice(start, start + chunk)
            logits = _logits(hidden[part], weight, bias)
            normaliser = logits.logsumexp(-1)
            picked = logits.gather(1, targets[part, None])[:, 0]
            total += ((normaliser - picked) * scales[part]).sum()
            if any(wanted):
                slope = _softmax_minus_one_hot(logits, normaliser, targets[part]).mul_(scales[part, None])
                gradients.add(part, slope, hidden, weight)
        ctx.gradients, ctx.like = gradients, (hidden.new_empty(0), weight.new_empty(0), bias)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None  # scaled in place: the head's take gigabytes
        return (*gradients.scaled(grads[0], ctx.like), None, None, None)


class _LabelLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, chunk: int) -> Tensor:
        logprobs = torch.empty(len(hidden), device=hidden.device)
        normalisers = torch.empty_like(logprobs)
        for start in range(0, len(hidden), chunk):
            part = slice(start, start + chunk)
            logits = _logits(hidden[part], weight, bias)
            normalisers[part] = logits.logsumexp(-1)
            logprobs[part] = logits.gather(1, targets[part, None])[:, 0] - normalisers[part]
        ctx.save_for_backward(hidden, weight, bias, targets, normalisers)
        ctx.chunk = chunk
        return logprobs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, normalisers = ctx.saved_tensors
        gradients = _Gradients(ctx.needs_input_grad[:3], hidden, weight, bias)
        for start in range(0, len(hidden), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            logits = _logits(hidden[part], weight, bias)
            slope = _softmax_minus_one_hot(logits, normalisers[part], targets[part]).mul_(-grads[0][part, None])
            gradients.add(part, slope, hidden, weight)
        return (*gradients.scaled(None, (hidden, weight, bias)), None, None)
