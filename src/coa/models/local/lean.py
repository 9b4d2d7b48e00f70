"""The forward pass of a step, for models built like Llama, without Python in between.

A step over a few dozen rows is some two thousand small operations. Called one by one from Python, they take longer than
the arithmetic, and engines that work side by side wait for each other's turn with the interpreter at every one. Here
the layers are one compiled function, which runs without it. It reads the model's own weights, so that training and
adapters are in it at once, and is compared with the model's own forward pass before it is used.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from coa.models.local.slots import Chunk, Slots, Step

log = logging.getLogger(__name__)
KINDS: Final = frozenset({"LlamaModel", "Qwen2Model", "Qwen3Model", "MistralModel"})
_PARTS: Final = {
    "q": ("self_attn", "q_proj"), "k": ("self_attn", "k_proj"), "v": ("self_attn", "v_proj"),
    "o": ("self_attn", "o_proj"), "gate": ("mlp", "gate_proj"), "up": ("mlp", "up_proj"), "down": ("mlp", "down_proj"),
}  # fmt: skip


class Lean:
    """As the model's decoder, for steps of the engine."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        attention = decoder.layers[0].self_attn
        self._width, self._scale = int(attention.head_dim), float(attention.scaling)
        self._eps = float(decoder.config.rms_norm_eps)
        self._layers = [_weights(layer) for layer in decoder.layers]

    def __call__(self, ids: Tensor, positions: Tensor, step: Step) -> Tensor:
        """Last hidden states, [tokens, width]."""
        hidden = self._decoder.embed_tokens(ids)
        cos, sin = self._decoder.rotary_emb(hidden[None], position_ids=positions[None])
        turned = torch.cat([-sin[0, :, : self._width // 2], sin[0, :, self._width // 2 :]], -1)
        mask = step.mask(None, hidden.dtype) if step.decoding else hidden
        chunks = [(chunk.slot, chunk.start, chunk.first, chunk.last) for chunk in step.chunks]
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]  # no time is spent on fusing what is different at each step
            hidden = _layers()(
                hidden, cos[0, :, None], turned[:, None], self._layers, step.slots.keys, step.slots.values,
                step.written, mask, step.longest, step.decoding, chunks, self._scale, self._eps, self._width,
            )  # fmt: skip
        return torch.rms_norm(hidden, hidden.shape[-1:], self._decoder.norm.weight, self._eps)


def lean(model: PreTrainedModel) -> Lean | None:
    """None where the model is of another build, or anything about it is not as it is taken to be here."""
    decoder: Any = model.get_decoder()  # type: ignore[no-untyped-call]
    if type(decoder).__name__ not in KINDS or next(model.parameters()).device.type != "cpu":
        return None
    config = decoder.config
    if config.hidden_act != "silu" or any(getattr(layer.self_attn, "sliding_window", None) for layer in decoder.layers):
        return None
    if getattr(config, "sliding_window", None) and type(decoder).__name__ == "MistralModel":
        return None
    try:
        found = Lean(decoder)
        return found if _agrees(found, decoder, model) else None
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        log.info("the model's own forward pass is used: %s", error)
        return None


@torch.inference_mode()
def _agrees(found: Lean, decoder: Any, model: PreTrainedModel) -> bool:
    """On a row that reads and two that decode."""
    generator = torch.Generator().manual_seed(0)
    size = decoder.embed_tokens.weight.shape[0]
    read, asked = torch.randint(size, (12,), generator=generator), torch.randint(size, (6,), generator=generator)

    def passed(forward: Callable[[Tensor, Tensor, Step], Tensor]) -> Tensor:
        slots = Slots(model, count=3, length=16)
        none = torch.empty(0, dtype=torch.long)
        first = Step(slots, none, [Chunk(0, 0, 0, 5), Chunk(1, 0, 5, 12)])
        one = forward(read, torch.cat([torch.arange(5), torch.arange(7)]), first)
        then = Step(slots, torch.tensor([5, 7]), [Chunk(2, 0, 2, 6)])
        return torch.cat([one, forward(asked, torch.cat([torch.tensor([5, 7]), torch.arange(4)]), then)])

    def own(ids: Tensor, positions: Tensor, step: Step) -> Tensor:
        out = decoder(input_ids=ids[None], position_ids=positions[None], use_cache=False, coa_step=step)
        return out.last_hidden_state[0]  # type: ignore[no-any-return]

    ours, theirs = passed(found), passed(own)
    tolerance = 1e-3 if ours.dtype == torch.float32 else 0.1
    return torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance * float(theirs.abs().max()))


def _weights(layer: Any) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {
        "before": layer.input_layernorm.weight,
        "between": layer.post_attention_layernorm.weight,
    }
    for name in ("q_norm", "k_norm"):
        if hasattr(layer.self_attn, name):
            found[name] = getattr(layer.self_attn, name).weight
    for name, (part, linear) in _PARTS.items():
        module = getattr(getattr(layer, part), linear)
        found[name] = module.weight
        if module.bias is not None:
            found[f"{name}_bias"] = module.bias
        if hasattr(module, "base_layer"):
            found.update(_adapter(name, module))
    return found


def _adapter(name: str, module: Any) -> dict[str, Tensor]:
    """Of a linear layer, as peft has it."""
    if module.disable_adapters or module.merged or not module.active_adapters:
        return {}
    (active,) = module.active_adapters
    if active not in module.lora_A:
        return {}
    if getattr(module, "use_dora", {}).get(active) or module.lora_bias.get(active):
        raise TypeError("an adapter of another kind")
    return {
        f"{name}_a": module.lora_A[active].weight,
        f"{name}_b": module.lora_B[active].weight,
        f"{name}_scale": torch.tensor(float(module.scaling[active])),
    }


_compiled: Callable[..., Tensor] | None = None


def _layers() -> Callable[..., Tensor]:
    global _compiled
    if _compiled is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer versions would rather have models compiled as a whole
            _compiled = torch.jit.script(_all_layers)
    return _compiled


def _linear(x: Tensor, layer: dict[str, Tensor], name: str) -> Tensor:
    y = torch.mm(x, layer[name].t())
    if name + "_bias" in layer:
        y = y + layer[name + "_bias"]
    if name + "_a" in layer:
        low = torch.mm(x, layer[name + "_a"].t()) * layer[name + "_scale"]
        y = torch.addmm(y, low, layer[name + "_b"].t())
    return y


def _all_layers(
    hidden: Tensor,
    cos: Tensor,
    sin: Tensor,
    layers: list[dict[str, Tensor]],
    keys: list[Tensor],
    values: list[Tensor],
    written: Tensor,
    mask: Tensor,
    longest: int,
    decoding: int,
    chunks: list[tuple[int, int, int, int]],
    scale: float,
    eps: float,
    width: int,
) -> Tensor:
    """`sin` has its first half negated, so that turning by halves is all there is to rotary positions."""
    tokens, size = hidden.shape[0], hidden.shape[1]
    for number, layer in enumerate(layers):
        x = torch.rms_norm(hidden, [size], layer["before"], eps)
        query = _linear(x, layer, "q").view(tokens, -1, width)
        key = _linear(x, layer, "k").view(tokens, -1, width)
        value = _linear(x, layer, "v").view(tokens, -1, width)
        if "q_norm" in layer:
            query = torch.rms_norm(query, [width], layer["q_norm"], eps)
            key = torch.rms_norm(key, [width], layer["k_norm"], eps)
        query = torch.addcmul(query * cos, torch.roll(query, width // 2, -1), sin) * scale
        key = torch.addcmul(key * cos, torch.roll(key, width // 2, -1), sin)
        heads, shared = query.shape[1], key.shape[1]
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
        hidden = hidden + _linear(
            torch.nn.functional.silu(_linear(x, layer, "gate")) * _linear(x, layer, "up"), layer, "down"
        )
    return hidden
