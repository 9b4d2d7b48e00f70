"""bf16 where the CPU has units for it. The check is faked, so both ways are tested on any machine."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GemmaConfig, PreTrainedModel

from coa.choices import Precision
from coa.models import precision
from coa.models.base import Context, Generation, Sampling
from coa.models.local import LocalModel, load_local
from coa.models.local.model import uses_bf16
from coa.models.local.narrow import narrow_products
from coa.models.precision import computes_in_bf16, cpu_has_bf16
from support.tiny import tiny_model
from support.words import word_model

SAMPLED = Sampling(temperature=1.0, top_p=1.0, top_k=0, max_tokens=24, seed=7)


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "cpu_has_bf16", lambda: True)


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("fpu sse2 avx2 avx512f avx512bw avx512_bf16", True),
        ("fpu sse2 avx2 amx_bf16 amx_tile", True),
        ("fpu sse2 avx2 f16c", False),
        ("fpu avx512f avx512bw avx512_vnni", False),
    ],
)
def test_the_units_are_read_from_what_the_kernel_lists(tmp_path: Path, flags: str, found: bool) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor\t: 0\nmodel name\t: a CPU with avx512_bf16 in its name\nflags\t\t: {flags}\n")
    assert cpu_has_bf16(info) is found
    assert not cpu_has_bf16(tmp_path / "absent")


def test_auto_follows_the_device_and_a_setting_overrides_it(units: None) -> None:
    assert computes_in_bf16(Precision.AUTO, gpu=None) and not computes_in_bf16(Precision.FP32, gpu=None)
    assert not computes_in_bf16(Precision.AUTO, gpu=False), "with a GPU the CPU does not matter"


def test_without_units_auto_is_fp32_and_bf16_is_slow_but_allowed(caplog: pytest.LogCaptureFixture) -> None:
    precision._warn_of_slowness.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert not computes_in_bf16(Precision.AUTO, gpu=None) and not caplog.records
        assert computes_in_bf16(Precision.BF16, gpu=None) and computes_in_bf16(Precision.BF16, gpu=None)
    assert [record.message for record in caplog.records if "slower than fp32" in record.message] == [
        "precision=bf16: this CPU has no units for bf16 (AVX-512 BF16 or AMX), so it will be many times slower than "
        "fp32"
    ], "once"


def written(model: LocalModel, contexts: list[list[int]]) -> list[Generation]:
    async def go() -> list[Generation]:
        try:
            calls = [model.generate(Context([], "", ids), stop=[], sampling=SAMPLED) for ids in contexts]
            return await asyncio.wait_for(asyncio.gather(*calls), 60)
        finally:
            await model.close()

    return asyncio.run(go())


def gaps(made: list[Generation], contexts: list[list[int]], model: PreTrainedModel) -> torch.Tensor:
    """|sampled - fp32| of the log-probability of every token that was written."""
    model.set_attn_implementation("eager")
    found = []
    for ids, generation in zip(contexts, made, strict=True):
        tokens = generation.tokens
        assert tokens is not None and tokens.logprobs is not None
        whole = torch.tensor([[*ids, *tokens.ids]])
        with torch.no_grad():
            logprobs = model(whole, use_cache=False).logits[0].float().log_softmax(-1)
        expected = logprobs[len(ids) - 1 : -1].gather(1, whole[0, len(ids) :, None])[:, 0]
        found.append((torch.tensor(tokens.logprobs) - expected).abs())
    return torch.cat(found)


CONTEXTS = [[10 + 7 * row + at % 50 for at in range(3 + 5 * row)] for row in range(8)]


def test_bf16_agrees_with_fp32_within_its_rounding() -> None:
    def gap(*, bf16: bool) -> torch.Tensor:
        local = LocalModel(*tiny_model(3), name="tiny", bf16=bf16)
        return gaps(written(local, CONTEXTS), CONTEXTS, tiny_model(3)[0])

    # Measured: mean 0.030 and max 0.31 in bf16, 1.1e-6 and 4.8e-6 in fp32. The weights of this model are ten times as
    # large as those of a trained one, and so are its logits.
    exact, rounded = gap(bf16=False), gap(bf16=True)
    assert exact.max() < 1e-4
    assert 1e-3 < rounded.mean() < 0.06 and rounded.max() < 0.6


def test_a_model_of_another_build_multiplies_in_bf16_and_adds_in_fp32() -> None:
    def model() -> PreTrainedModel:
        torch.manual_seed(5)
        sizes = GemmaConfig(
            vocab_size=tiny_model(3)[1].vocabulary_size, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, initializer_range=0.3, tie_word_embeddings=True,
        )  # fmt: skip
        found: PreTrainedModel = AutoModelForCausalLM.from_config(sizes)
        return found

    narrowed = model()
    narrow_products(narrowed)
    types = {name: weight.dtype for name, weight in narrowed.named_parameters()}
    assert types["model.layers.0.self_attn.q_proj.weight"] == torch.bfloat16
    assert types["model.layers.0.input_layernorm.weight"] == torch.float32
    local = LocalModel(narrowed, tiny_model(3)[1], name="tiny", bf16=True)
    assert local._engines._lean is None and local._engines._all[0]._slots.keys[0].dtype == torch.float32
    found = gaps(written(local, CONTEXTS), CONTEXTS, model())
    assert 1e-3 < found.mean() < 0.06 and found.max() < 0.6


@pytest.mark.parametrize(("asked", "dtype"), [("auto", torch.bfloat16), ("fp32", torch.float32)])
def test_a_model_opened_by_name_follows_the_setting(
    units: None, tmp_path: Path, asked: str, dtype: torch.dtype
) -> None:
    local = load_local(word_model(tmp_path / "words"), max_rows=2, precision=Precision(asked))
    try:
        assert uses_bf16(Precision(asked)) is (dtype == torch.bfloat16)
        packed = local._engines._lean
        assert packed is not None and packed._weights().head._dtype == dtype
        assert local._engines._all[0]._slots.keys[0].dtype == torch.float32
    finally:
        asyncio.run(local.close())
