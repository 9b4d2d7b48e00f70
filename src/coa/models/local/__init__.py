"""Weights in this process: continuous batching over a Hugging Face causal LM, on a CPU or a GPU."""

from coa.models.local.model import LocalModel, load_local

__all__ = ["LocalModel", "load_local"]
