"""The loss where labels are. Logits exist for one chunk of labelled positions at a time, never for the whole context.

With 32k tokens and a vocabulary of 150k, all logits in fp32 would take 20 GB, their gradient as much again, and most of
them belong to tokens without a label.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

LOGIT_BYTES: Final = 128 << 20
"""About how much a chunk of logits may take."""


def label_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, scales: Tensor, *, chunk: int | None = None
) -> Tensor:
    """Sum over positions of `scale * -log p(target)`.

    `hidden` is [labels, width], the last hidden states at the positions that predict a label; `weight` the output
    head's, [vocabulary, width]. Gradients are made on the way forward, while a chunk's logits are there, so nothing is
    computed twice and nothing large is kept.
    """
    hidden, weight, bias = _as_autocast(hidden, weight, bias)
    return _LabelLoss.apply(hidden, weight, bias, targets, scales, chunk or _chunk(weight))  # type: ignore[no-any-return, no-untyped-call]


def label_logprobs(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *, chunk: int | None = None
) -> Tensor:
    """log p(target) of each position, for losses that are not linear in them; logits are computed anew going back."""
    hidden, weight, bias = _as_autocast(hidden, weight, bias)
    return _LabelLogprobs.apply(hidden, weight, bias, targets, chunk or _chunk(weight))  # type: ignore[no-any-return, no-untyped-call]


def _chunk(weight: Tensor) -> int:
    return max(LOGIT_BYTES // (4 * weight.shape[0]), 16)


def _as_autocast(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """A custom function is not seen by autocast; cast as a linear layer would be."""
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    return hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.nn.functional.linear(hidden, weight, bias).float()


def _softmax_minus_one_hot(logits: Tensor, normaliser: Tensor, targets: Tensor) -> Tensor:
    """d(-log p)/d(logits), in the memory of the logits."""
    slope = logits.sub_(normaliser[:, None]).exp_()
    slope[torch.arange(len(targets), device=targets.device), targets] -= 1
    return slope


class _Gradients:
    """Of the head's inputs, as far as they are wanted, filled chunk by chunk."""

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
            None if grad is None or tensor is None else (grad if by is None else grad * by).to(tensor.dtype)
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
        return (*ctx.gradients.scaled(grads[0], ctx.like), None, None, None)


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
