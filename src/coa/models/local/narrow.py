"""bf16 on a CPU for models that have no packed forward pass (`lean.py`)."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers import PreTrainedModel


def narrow_products(model: PreTrainedModel) -> None:
    """Store the weights of linear layers in bf16 and multiply in bf16. All that is between them stays in fp32.

    Autocast would convert the weights in every pass, and attention with them.
    """
    embeddings = model.get_input_embeddings()
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.to(torch.bfloat16)
            module.forward = MethodType(_product, module)  # type: ignore[method-assign]
    if embeddings.weight.dtype == torch.bfloat16:  # they are the weights of the head, too
        embeddings.register_forward_hook(_widen)


def _product(self: torch.nn.Linear, x: Tensor) -> Tensor:
    return linear(x.to(self.weight.dtype), self.weight, self.bias).to(x.dtype)


def _widen(_module: torch.nn.Module, _inputs: Any, out: Tensor) -> Tensor:
    return out.float()
