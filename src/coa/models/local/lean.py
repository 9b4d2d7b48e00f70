"""The forward pass of an engine on a CPU, for models built like Llama: packed weights, and no Python per operation.

A pass over a few dozen rows is about two thousand small operations. Called one by one from Python, they take longer
than the arithmetic, and engines that work side by side wait for the interpreter lock at every one. Here the layers are
one compiled function, which does not need the lock. Its weights are copies in the order in which the kernels of oneDNN
read them, with any adapter added in. So few rows cost little more than the arithmetic (measured on a core of an EPYC,
the largest product of SmolLM2's layers: 13 rows at 75 instead of 26 GFLOP/s, its head 68 instead of 30). Before it is
used, its results are compared with those of the model's own forward pass.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.jit.frontend import FrontendError
from transformers import PreTrainedModel

from coa.models.local.slots import NAME, Chunk, EngineStep, Slots

log = logging.getLogger(__name__)
KINDS: Final = frozenset({"LlamaModel", "Qwen2Model", "Qwen3Model", "MistralModel"})
LARGEST: Final = 1_000_000_000
"""Number of weights above which a second copy takes too much memory."""
_TOGETHER: Final = {
    "qkv": ("self_attn", ("q_proj", "k_proj", "v_proj")),
    "o": ("self_attn", ("o_proj",)),
    "gate_up": ("mlp", ("gate_proj", "up_proj")),
    "down": ("mlp", ("down_proj",)),
}
"""Products of the same input are computed as one."""


class _Packed(NamedTuple):
    layers: list[dict[str, Tensor]]
    head: Tensor
    head_bias: Tensor | None


class Lean:
    """The decoder and the head of the model. Several engines may share it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._decoder: Any = model.get_decoder()  # type: ignore[no-untyped-call]
        self._head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        attention = self._decoder.layers[0].self_attn
        self._width, self._scale = int(attention.head_dim), float(attention.scaling)
        self._heads = attention.q_proj.out_features // self._width
        self._eps = float(self._decoder.config.rms_norm_eps)
        self._packed: _Packed | None = None
        self._packing = threading.Lock()

    def forget(self) -> None:
        """The weights have changed or are about to. The copies are made again when they are needed."""
        with self._packing:
            self._packed = None

    def hidden(self, ids: Tensor, positions: Tensor, step: EngineStep) -> Tensor:
        """Last hidden states, [tokens, width]."""
        hidden = self._decoder.embed_tokens(ids)
        cos, sin = self._decoder.rotary_emb(hidden[None], position_ids=positions[None])
        turned = torch.cat([-sin[0, :, : self._width // 2], sin[0, :, self._width // 2 :]], -1)
        mask = step.mask(None, hidden.dtype) if step.decoding else hidden
        chunks = [(chunk.slot, chunk.start, chunk.first, chunk.last) for chunk in step.chunks]
        layers = self._weights().layers
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]  # shapes differ at each pass, so fusing does not pay
            hidden = _layers()(
                hidden, cos[0, :, None], turned[:, None], layers, step.slots.keys, step.slots.values, step.written,
                mask, step.longest, step.decoding, chunks, self._scale, self._eps, self._width, self._heads,
            )  # fmt: skip
        return torch.rms_norm(hidden, hidden.shape[-1:], self._decoder.norm.weight, self._eps)

    def logits(self, hidden: Tensor) -> Tensor:
        packed = self._weights()
        return torch.ops.mkldnn._linear_pointwise(hidden, packed.head, packed.head_bias, "none", [], "")  # type: ignore[no-any-return]

    def _weights(self) -> _Packed:
        with self._packing:  # several engines may ask at the same time
            if self._packed is None:
                layers = [_layer(layer) for layer in self._decoder.layers]
                self._packed = _Packed(layers, _pack(_effective(self._head)), self._head.bias)
            return self._packed


def lean(model: PreTrainedModel) -> Lean | None:
    """None if the model is built in another way, or if any assumption of this file does not hold for it."""
    decoder: Any = model.get_decoder()  # type: ignore[no-untyped-call]
    first = next(model.parameters())
    if type(decoder).__name__ not in KINDS or first.device.type != "cpu" or first.dtype != torch.float32:
        return None
    packs = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not packs or sum(weight.numel() for weight in model.parameters()) > LARGEST:
        return None
    config = decoder.config
    if config.hidden_act != "silu" or any(getattr(layer.self_attn, "sliding_window", None) for layer in decoder.layers):
        return None
    if getattr(config, "sliding_window", None) and type(decoder).__name__ == "MistralModel":
        return None
    try:
        found = Lean(model)
        return found if _agrees(found, decoder, model) else None
    except (AttributeError, KeyError, OSError, RuntimeError, TypeError, FrontendError) as error:
        log.info("using the forward pass of transformers: %s", error)
        return None


@torch.inference_mode()
def _agrees(found: Lean, decoder: Any, model: PreTrainedModel) -> bool:
    """Compared on one row that reads a prompt and two that decode."""
    model.set_attn_implementation(NAME)
    generator = torch.Generator().manual_seed(0)
    size = decoder.embed_tokens.weight.shape[0]
    read, asked = torch.randint(size, (12,), generator=generator), torch.randint(size, (6,), generator=generator)

    def passed(forward: Callable[[Tensor, Tensor, EngineStep], Tensor]) -> Tensor:
        slots = Slots(model, count=3, length=16)
        none = torch.empty(0, dtype=torch.long)
        first = EngineStep(slots, none, [Chunk(0, 0, 0, 5), Chunk(1, 0, 5, 12)])
        one = forward(read, torch.cat([torch.arange(5), torch.arange(7)]), first)
        then = EngineStep(slots, torch.tensor([5, 7]), [Chunk(2, 0, 2, 6)])
        return torch.cat([one, forward(asked, torch.cat([torch.tensor([5, 7]), torch.arange(4)]), then)])

    def own(ids: Tensor, positions: Tensor, step: EngineStep) -> Tensor:
        out = decoder(input_ids=ids[None], position_ids=positions[None], use_cache=False, coa_step=step)
        return out.last_hidden_state[0]  # type: ignore[no-any-return]

    ours, theirs = passed(found.hidden), passed(own)
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    pairs = [(ours, theirs), (found.logits(theirs), head(theirs))]
    return all(torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max())) for one, other in pairs)


def _layer(layer: Any) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {
        "before": layer.input_layernorm.weight,
        "between": layer.post_attention_layernorm.weight,
    }
    for name in ("q_norm", "k_norm"):
        if hasattr(layer.self_attn, name):
            found[name] = getattr(layer.self_attn, name).weight
    for name, (part, linears) in _TOGETHER.items():
        modules = [getattr(getattr(layer, part), linear) for linear in linears]
        found[name] = _pack(torch.cat([_effective(module) for module in modules]))
        if any(module.bias is not None for module in modules):
            found[f"{name}_bias"] = torch.cat([module.bias.detach() for module in modules])
    return found


def _pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())  # type: ignore[no-any-return]


def _effective(module: Any) -> Tensor:
    """The weight of a linear layer, including adapters of peft."""
    weight: Tensor = module.weight.detach()
    if not hasattr(module, "base_layer") or module.disable_adapters or module.merged:
        return weight
    for active in module.active_adapters:
        if active not in module.lora_A:
            continue
        if getattr(module, "use_dora", {}).get(active) or module.lora_bias.get(active):
            raise TypeError("the adapter is not a plain LoRA")
        low, high = module.lora_A[active].weight.detach(), module.lora_B[active].weight.detach()
        weight = torch.addmm(weight, high, low, alpha=float(module.scaling[active]))
    return weight


@cache
def _layers() -> Callable[..., Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions recommend another way to compile whole models
        return torch.jit.script(_all_layers)


def _linear(x: Tensor, layer: dict[str, Tensor], name: str) -> Tensor:
    bias = layer[name + "_bias"] if name + "_bias" in layer else None  # noqa: SIM401  # dict.get cannot be compiled
    return torch.ops.mkldnn._linear_pointwise(x, layer[name], bias, "none", [], "")  # type: ignore[no-any-return]


def _all_layers(
    hidden: Tensor, cos: Tensor, sin: Tensor, layers: list[dict[str, Tensor]], keys: list[Tensor], values: list[Tensor],
    written: Tensor, mask: Tensor, longest: int, decoding: int, chunks: list[tuple[int, int, int, int]],
    scale: float, eps: float, width: int, heads: int,
) -> Tensor:  # fmt: skip
    """`sin` has its first half negated, so that rotary positions need only a roll by half the width."""
    tokens, size = hidden.shape[0], hidden.shape[1]
    for number, layer in enumerate(layers):
        x = torch.rms_norm(hidden, [size], layer["before"], eps)
        projected = _linear(x, layer, "qkv").view(tokens, -1, width)
        shared = (projected.shape[1] - heads) // 2
        query, key = projected[:, :heads], projected[:, heads : heads + shared]
        value = projected[:, heads + shared :]
        if "q_norm" in layer:
            query = torch.rms_norm(query, [width], layer["q_norm"], eps)
            key = torch.rms_norm(key, [width], layer["k_norm"], eps)
        query = torch.addcmul(query * cos, torch.roll(query, width // 2, -1), sin) * scale
        key = torch.addcmul(key * cos, torch.roll(key, width // 2, -1), sin)
        groups = heads // shared
        kept, worth = keys[number], values[number]
        out = torch.empty_like(query)
        if decoding > 0:
            kept.view(-1, width).index_copy_(0, written, key[:decoding].reshape(-1, width))
            worth.view(-1, width).index_copy_(0, written, value[:decoding].reshape(-1, width))
            asked = query[:decoding].reshape(decoding, shared, groups, width)
            scores = torch.matmul(asked, kept[:decoding, :, :longest].transpose(-1, -2)) + mask
            mixed = torch.matmul(torch.softmax(scores, -1), worth[:decoding, :, :longest])
            out[:decoding] = mixed.reshape(decoding, heads, width)
        for slot, start, first, last in chunks:
            new, end = last - first, start + last - first
            kept[slot, :, start:end] = key[first:last].transpose(0, 1)
            worth[slot, :, start:end] = value[first:last].transpose(0, 1)
            asked = query[first:last].transpose(0, 1).reshape(shared, groups * new, width)
            scores = torch.matmul(asked, kept[slot, :, :end].transpose(-1, -2)).view(shared, groups, new, end)
            hidden_from = torch.ones([new, end], dtype=torch.bool, device=scores.device).triu(start + 1)
            scores = scores.masked_fill(hidden_from, float("-inf"))
            mixed = torch.matmul(torch.softmax(scores, -1).view(shared, groups * new, end), worth[slot, :, :end])
            out[first:last] = mixed.view(heads, new, width).transpose(0, 1)
        hidden = hidden + _linear(out.view(tokens, heads * width), layer, "o")
        x = torch.rms_norm(hidden, [size], layer["between"], eps)
        gate, up = _linear(x, layer, "gate_up").chunk(2, 1)
        hidden = hidden + _linear(torch.nn.functional.silu(gate) * up, layer, "down")
    return hidden
