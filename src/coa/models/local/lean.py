"""The forward pass of an engine on a CPU, for models built like Llama: packed weights and few operations.

The modules of transformers make about two thousand small operations of a pass over a few dozen rows. Called from
Python, they take longer than the arithmetic, and engines that work side by side wait for the interpreter lock at every
one. Here a layer is about twenty operations and some views, because products of the same input are one, queries and
keys are turned together, and all layers share what only depends on positions. Weights are copies in the order in which
the kernels of oneDNN read them, with any adapter added in, so that few rows cost little more than the arithmetic
(measured on a core of an EPYC, the largest product of SmolLM2's layers: 13 rows at 75 instead of 26 GFLOP/s, its head
68 instead of 30). Before it is used, its results are compared with those of the model's own forward pass.

With `bf16` the copies are bf16, and so are the inputs and results of products, which add up in fp32. Everything between
products (residuals, norms, rotary positions, attention and its keys and values) stays in fp32.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, silu
from transformers import PreTrainedModel

from coa.models.local.slots import NAME, Chunk, EngineStep, RowBatch, Slots

log = logging.getLogger(__name__)
KINDS: Final = frozenset({"LlamaModel", "Qwen2Model", "Qwen3Model", "MistralModel"})
LARGEST: Final = 1_000_000_000
"""Number of weights above which a second copy takes too much memory."""
_TOLERANCE: Final = 1e-3
_TOLERANCE_BF16: Final = 0.1
"""Share of the largest value. An assumption that does not hold is off by more than this, rounding to bf16 by less."""


class _Product:
    """The product with the weights of one linear layer or of several with the same input, packed."""

    def __init__(self, modules: Sequence[Any], *, bf16: bool) -> None:
        self._dtype = torch.bfloat16 if bf16 else torch.float32
        weight = torch.cat([_effective(module) for module in modules]).to(self._dtype).contiguous()
        biased = any(module.bias is not None for module in modules)
        self._bias = torch.cat([module.bias.detach() for module in modules]).to(self._dtype) if biased else None
        # Without at least AVX-512, oneDNN has no kernels for packed bf16.
        self._packed = not bf16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self._packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed:
            return _pointwise(x.to(self._dtype), self._weight, self._bias, "none", [], "")
        return linear(x.to(self._dtype), self._weight, self._bias)


_pointwise: Final[Callable[..., Tensor]] = torch.ops.mkldnn._linear_pointwise.default


class _Layer(NamedTuple):
    before: Tensor
    """Weight of the norm before attention."""
    between: Tensor
    """Weight of the norm between attention and feed-forward."""
    norms: Tensor | None
    """Weights of the norms of queries and keys, [heads + key heads, width]."""
    qkv: _Product
    o: _Product
    gate_up: _Product
    down: _Product


class _Packed(NamedTuple):
    layers: list[_Layer]
    head: _Product


class _Pass(NamedTuple):
    """What all layers of a pass share."""

    cos: Tensor
    """[tokens, heads + key heads, width], times the scale of attention where the heads are those of queries."""
    sin: Tensor
    """As `cos`, its first half negated, so that rotary positions need only a roll by half the width."""
    written: Tensor
    """Index of each new key in a buffer of keys viewed as a list of [width] vectors: token after token, all heads."""
    batches: list[tuple[RowBatch, Tensor]]
    """Batches of decoding rows, and what is added to their scores, [rows, 1, 1, keys]."""
    chunks: list[tuple[Chunk, Tensor]]
    """Chunks, and what is added to their scores, [new tokens, keys]."""


class Lean:
    """The decoder and the head of the model. Several engines may share it."""

    def __init__(self, model: PreTrainedModel, *, bf16: bool = False) -> None:
        self._decoder: Any = model.get_decoder()  # type: ignore[no-untyped-call]
        self._head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        attention = self._decoder.layers[0].self_attn
        self._width, self._scale = int(attention.head_dim), float(attention.scaling)
        self._heads = attention.q_proj.out_features // self._width
        self._shared = attention.k_proj.out_features // self._width
        self._eps = float(self._decoder.config.rms_norm_eps)
        self._bf16 = bf16
        self._packed: _Packed | None = None
        self._packing = threading.Lock()

    def forget(self) -> None:
        """The weights have changed or are about to. The copies are made again when they are needed."""
        with self._packing:
            self._packed = None

    def hidden(self, ids: Tensor, positions: Tensor, step: EngineStep) -> Tensor:
        """Last hidden states, [tokens, width]."""
        hidden = self._decoder.embed_tokens(ids).float()
        shared = self._pass(hidden, positions, step)
        for layer, keys, values in zip(self._weights().layers, step.slots.keys, step.slots.values, strict=True):
            self._layer(layer, hidden, keys, values, shared)
        return self._norm(hidden, self._decoder.norm.weight.float())

    def logits(self, hidden: Tensor) -> Tensor:
        return self._weights().head(hidden)

    def _pass(self, hidden: Tensor, positions: Tensor, step: EngineStep) -> _Pass:
        cos, sin = self._decoder.rotary_emb(hidden[None], position_ids=positions[None])
        half = self._width // 2
        scale = torch.ones(self._heads + self._shared, 1)
        scale[: self._heads] = self._scale
        mask = step.mask(None, hidden.dtype) if step.decoding else hidden
        return _Pass(
            cos=cos[0, :, None] * scale,
            sin=torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)[:, None] * scale,
            written=_written(positions, step),
            batches=[(rows, mask[rows.first : rows.last, :, :, : rows.longest]) for rows in step.batches],
            chunks=[(chunk, _causal(chunk)) for chunk in step.chunks],
        )

    def _layer(self, layer: _Layer, hidden: Tensor, keys: Tensor, values: Tensor, shared: _Pass) -> None:
        """Adds to `hidden` in place."""
        x = self._norm(hidden, layer.before)
        projected = layer.qkv(x).float().view(len(hidden), -1, self._width)
        hidden += layer.o(self._attended(layer, projected, keys, values, shared).reshape(len(hidden), -1))
        gate, up = layer.gate_up(self._norm(hidden, layer.between)).chunk(2, 1)
        hidden += layer.down(silu(gate).mul_(up))

    def _attended(self, layer: _Layer, projected: Tensor, keys: Tensor, values: Tensor, shared: _Pass) -> Tensor:
        """Attention over the slots, in which the new keys and values are stored first; [tokens, heads, width].

        `projected` is [tokens, heads + 2 key heads, width]: queries, keys and values.
        """
        width, rotated = self._width, projected[:, : self._heads + self._shared]
        if layer.norms is not None:
            rotated = torch.rms_norm(rotated, [width], None, self._eps) * layer.norms
        rotated = torch.addcmul(rotated * shared.cos, rotated.roll(width // 2, -1), shared.sin)
        query, key = rotated[:, : self._heads], rotated[:, self._heads :]
        keys.view(-1, width).index_copy_(0, shared.written, key.reshape(-1, width))
        value = projected[:, self._heads + self._shared :]
        values.view(-1, width).index_copy_(0, shared.written, value.reshape(-1, width))
        query = query.view(len(query), self._shared, -1, width)  # [tokens, key heads, groups, width]
        mixed = []
        for (first, last, longest), mask in shared.batches:
            scores = torch.matmul(query[first:last], keys[first:last, :, :longest].transpose(-1, -2)).add_(mask)
            mixed.append(torch.matmul(scores.softmax(-1), values[first:last, :, :longest]))
        for chunk, mask in shared.chunks:
            seen = slice(0, mask.shape[1])
            asked = query[chunk.first : chunk.last].permute(1, 2, 0, 3)
            # All query heads of a key head are one batch of rows: [key heads, groups * new tokens, width].
            scores = torch.matmul(asked.reshape(self._shared, -1, width), keys[chunk.slot, :, seen].transpose(-1, -2))
            scores = scores.view(*asked.shape[:3], -1).add_(mask).softmax(-1).flatten(1, 2)
            part = torch.matmul(scores, values[chunk.slot, :, seen]).view(asked.shape)
            mixed.append(part.permute(2, 0, 1, 3))
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return torch.rms_norm(x, (x.shape[-1],), weight, self._eps)

    def _weights(self) -> _Packed:
        with self._packing:  # several engines may ask at the same time
            if self._packed is None:
                layers = [self._pack(layer) for layer in self._decoder.layers]
                self._packed = _Packed(layers, _Product([self._head], bf16=self._bf16))
            return self._packed

    def _pack(self, layer: Any) -> _Layer:
        attention, mlp, norms = layer.self_attn, layer.mlp, None
        if hasattr(attention, "q_norm"):
            query, key = attention.q_norm.weight.detach().float(), attention.k_norm.weight.detach().float()
            norms = torch.cat([query.expand(self._heads, -1), key.expand(self._shared, -1)])

        def product(*modules: Any) -> _Product:
            return _Product(modules, bf16=self._bf16)

        return _Layer(
            before=layer.input_layernorm.weight.detach().float(),
            between=layer.post_attention_layernorm.weight.detach().float(),
            norms=norms,
            qkv=product(attention.q_proj, attention.k_proj, attention.v_proj),
            o=product(attention.o_proj),
            gate_up=product(mlp.gate_proj, mlp.up_proj),
            down=product(mlp.down_proj),
        )


def suits(model: PreTrainedModel) -> bool:
    """Whether the model is of a kind and size that this file knows."""
    decoder: Any = model.get_decoder()  # type: ignore[no-untyped-call]
    if type(decoder).__name__ not in KINDS or next(model.parameters()).device.type != "cpu":
        return False
    packs = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not packs or sum(weight.numel() for weight in model.parameters()) > LARGEST:
        return False
    config = decoder.config
    if config.hidden_act != "silu" or any(getattr(layer.self_attn, "sliding_window", None) for layer in decoder.layers):
        return False
    return not (getattr(config, "sliding_window", None) and type(decoder).__name__ == "MistralModel")


def lean(model: PreTrainedModel, *, bf16: bool = False) -> Lean | None:
    """None if the model is built in another way, or if any assumption of this file does not hold for it."""
    plain = next(model.parameters()).dtype == torch.float32
    if not suits(model) or not (plain or bf16):
        return None
    try:
        if plain and not _agrees(Lean(model), model, _TOLERANCE):
            return None
        if not bf16:
            return Lean(model)
        if _agrees(found := Lean(model, bf16=True), model, _TOLERANCE_BF16):
            return found
        log.warning("products in bf16 do not give the model's numbers on this machine")
        return Lean(model) if plain else None
    except (AttributeError, KeyError, OSError, RuntimeError, TypeError) as error:
        log.info("using the forward pass of transformers: %s", error)
        return None


@torch.inference_mode()
def _agrees(found: Lean, model: PreTrainedModel, tolerance: float) -> bool:
    """Compared on one row that reads a prompt and two that decode."""
    model.set_attn_implementation(NAME)
    decoder: Any = model.get_decoder()  # type: ignore[no-untyped-call]
    generator = torch.Generator().manual_seed(0)
    size = decoder.embed_tokens.weight.shape[0]
    read, asked = torch.randint(size, (12,), generator=generator), torch.randint(size, (6,), generator=generator)

    def passed(forward: Callable[[Tensor, Tensor, EngineStep], Tensor], dtype: torch.dtype | None = None) -> Tensor:
        slots = Slots(model, count=3, length=16, dtype=dtype)
        none = torch.empty(0, dtype=torch.long)
        first = EngineStep(slots, none, [Chunk(0, 0, 0, 5), Chunk(1, 0, 5, 12)])
        one = forward(read, torch.cat([torch.arange(5), torch.arange(7)]), first)
        then = EngineStep(slots, torch.tensor([5, 7]), [Chunk(2, 0, 2, 6)])
        return torch.cat([one, forward(asked, torch.cat([torch.tensor([5, 7]), torch.arange(4)]), then)])

    def own(ids: Tensor, positions: Tensor, step: EngineStep) -> Tensor:
        out = decoder(input_ids=ids[None], position_ids=positions[None], use_cache=False, coa_step=step)
        return out.last_hidden_state[0]  # type: ignore[no-any-return]

    ours, theirs = passed(found.hidden, torch.float32), passed(own)
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    pairs = [(ours, theirs.float()), (found.logits(theirs).float(), head(theirs).float())]
    return all(
        torch.allclose(one, other, rtol=tolerance, atol=tolerance * float(other.abs().max())) for one, other in pairs
    )


def _written(positions: Tensor, step: EngineStep) -> Tensor:
    """For each token and key head, where in the slots its key belongs, in units of [width]."""
    slots = list(range(step.decoding))
    for chunk in step.chunks:
        slots += [chunk.slot] * (chunk.last - chunk.first)
    heads = torch.arange(step.slots.heads)
    first = torch.tensor(slots, dtype=torch.long)[:, None] * step.slots.heads + heads
    return (first * step.slots.length + positions[:, None]).flatten()


def _causal(chunk: Chunk) -> Tensor:
    new = chunk.last - chunk.first
    return torch.full((new, chunk.start + new), float("-inf")).triu_(chunk.start + 1)


def _effective(module: Any) -> Tensor:
    """The weight of a linear layer in fp32, including adapters of peft."""
    weight: Tensor = module.weight.detach().float()
    if not hasattr(module, "base_layer") or module.disable_adapters or module.merged:
        return weight
    for active in module.active_adapters:
        if active not in module.lora_A:
            continue
        if getattr(module, "use_dora", {}).get(active) or module.lora_bias.get(active):
            raise TypeError("the adapter is not a plain LoRA")
        low, high = module.lora_A[active].weight.detach(), module.lora_B[active].weight.detach()
        weight = torch.addmm(weight, high.float(), low.float(), alpha=float(module.scaling[active]))
    return weight
