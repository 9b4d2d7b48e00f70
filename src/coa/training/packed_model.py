"""A Hugging Face model that takes packed rows: attention per sample, and a forward pass that ends in the loss.

The model stays the object it is, so that saving, sharding, adapters and gradient checkpointing see no difference; only
its `forward` is replaced by one that takes a row (`packing.py`) and computes the loss where labels are (`loss.py`). It
is called as usual, so that FSDP and DeepSpeed gather weights as they always do. Fine-tuning calls `forward`; RL, which
needs log-probabilities instead of a loss, calls `logprobs_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import MethodType
from typing import Any, Final

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from coa.errors import ModelError
from coa.training.attention import NAME, PrefixCache
from coa.training.loss import label_logprobs, label_loss
from coa.training.packing import TokenSample, on, to_row
from coa.training.sequence_parallel import SequenceGroup

SEGMENTS: Final = "segments"
"""Name of our own attention; any other is one of transformers'."""


def take_rows(model: PreTrainedModel, *, attention: str = SEGMENTS, sequence: SequenceGroup | None = None) -> None:
    """From now on `model(**row)` gives `.loss`. The model is used as it is given, under an adapter too.

    With `sequence`, a row is a piece of one that the processes of that group share.
    """
    model.set_attn_implementation(NAME if attention == SEGMENTS else attention)
    model.config.use_cache = False
    model.forward = MethodType(partial(_forward, coa_sequence=sequence), model)
    head = _head_of(model)
    head.forward = MethodType(_head_loss, head)


def give_back(model: PreTrainedModel) -> None:
    """Undo `take_rows`."""
    model.__dict__.pop("forward", None)
    _head_of(model).__dict__.pop("forward", None)
    model.set_attn_implementation("sdpa")
    model.config.use_cache = True


def vocabulary_of(model: PreTrainedModel) -> int:
    """For how many tokens the model has embeddings."""
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    return len(weight)


def logprobs_of(
    model: PreTrainedModel, row: dict[str, Any], prefix: PrefixCache | None = None, *, temperature: float = 1.0
) -> Tensor:
    """The log-probability of each label of a row, [labels], in the order of `targets`."""
    rest = {} if prefix is None else {"coa_prefix": prefix}
    hidden = _hidden(model, row["input_ids"], row["position_ids"], row["segments"], **rest)
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    bias = getattr(head, "bias", None)
    predicting = hidden[row["where"]]  # [labels, width]
    if temperature != 1:  # divides the logits, without making a copy of them
        predicting, bias = predicting / temperature, None if bias is None else bias / temperature
    return label_logprobs(predicting, head.weight, bias, row["targets"])


def keys_of(model: PreTrainedModel, row: dict[str, Any]) -> dict[int, tuple[Tensor, Tensor]]:
    """Keys and values of a row by layer, each [1, key heads, tokens, width], for samples that go on from it."""
    kept = dict[int, tuple[Tensor, Tensor]]()
    _hidden(model, row["input_ids"], row["position_ids"], row["segments"], coa_collect=kept)
    return kept


def _forward(
    self: PreTrainedModel,
    input_ids: Tensor,
    position_ids: Tensor,
    segments: Sequence[int],
    where: Tensor,
    targets: Tensor,
    scales: Tensor,
    coa_sequence: SequenceGroup | None = None,
    **_: Any,
) -> CausalLMOutput:
    rest = {} if coa_sequence is None else {"coa_sequence": coa_sequence}
    hidden = _hidden(self, input_ids, position_ids, segments, **rest)
    loss = _head_of(self)(hidden[where], targets, scales)
    return CausalLMOutput(loss=loss)


def _head_of(model: PreTrainedModel) -> torch.nn.Module:
    return model.get_output_embeddings()  # type: ignore[no-untyped-call, no-any-return]


def _head_loss(self: torch.nn.Module, hidden: Tensor, targets: Tensor, scales: Tensor) -> Tensor:
    """The loss in place of the logits. It is the head's own `forward`, because FSDP and DeepSpeed put the shards of a
    module's weights together when the module is called."""
    weight, bias = self.weight, getattr(self, "bias", None)
    assert isinstance(weight, Tensor) and (bias is None or isinstance(bias, Tensor))
    return label_loss(hidden, weight, bias, targets, scales)


def _hidden(
    model: PreTrainedModel, input_ids: Tensor, position_ids: Tensor, segments: Sequence[int], **rest: Any
) -> Tensor:
    # [tokens, width]. With the cache on, transformers takes the row for one sequence, and samples see each other.
    out = model.get_decoder()(  # type: ignore[no-untyped-call]
        input_ids=input_ids,
        position_ids=position_ids,
        attention_mask=None,
        use_cache=False,
        coa_segments=tuple(segments),
        **rest,
    )
    return out.last_hidden_state[0]  # type: ignore[no-any-return]


@torch.no_grad()
def check(model: PreTrainedModel) -> None:
    """Refuse a model for which rows are not what its own forward pass gives on each sample alone.

    Soft-capped logits, a head with a scale, or layers that mix positions outside attention (state-space, convolution)
    would otherwise train something else than what is run afterwards. Costs two forward passes over a dozen tokens.
    """
    device = next(model.parameters()).device
    size = vocabulary_of(model)
    generator = torch.Generator().manual_seed(0)
    examples = [
        TokenSample(torch.randint(size, (length,), generator=generator), torch.ones(length)) for length in (5, 7)
    ]
    training = model.training
    model.train(False)
    ours = logprobs_of(model, on(device, to_row(examples, total_weight=1.0))).cpu()
    plain = []
    replaced = {part: part.__dict__.pop("forward") for part in (model, _head_of(model)) if "forward" in part.__dict__}
    for example in examples:
        ids = example.ids[None].to(device)
        logits = model(input_ids=ids, use_cache=False).logits.float()
        plain.append(logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0].cpu())
    for part, forward in replaced.items():
        part.forward = forward
    model.train(training)
    theirs = torch.cat(plain)
    absolute = 2e-3 if next(model.parameters()).dtype == torch.float32 else 0.3
    if not torch.allclose(ours, theirs, rtol=1e-3 if ours.dtype == theirs.dtype else 5e-2, atol=absolute):
        raise ModelError(
            f"{type(model).__name__} does not give the same for samples in one row as for each alone "
            f"(log-probabilities differ by up to {(ours - theirs).abs().max():.2g})",
            hint="its head or its layers are of a kind that this trainer does not know; train it with another one: "
            "`coa export DATA --to messages`",
        )
