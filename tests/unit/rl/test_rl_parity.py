"""Our loss and its gradient beside those of TRL and verl, on random tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from coa.rl.algorithms import policy_loss
from coa.rl.algorithms.base import TokenBatch
from coa.rl.algorithms.grpo import group_advantages
from coa.rl.algorithms.ppo_clip import ClipRange
from coa.rl.config import RlConfig
from coa.rl.update import kl_to, token_weights

BATCH, LENGTH, CLIP = 6, 17, ClipRange(0.2, 0.28, 3.0)
TOKEN, SEQUENCE = "token-mean", "seq-mean-token-mean"


class Case:
    """Logprobs of attempts, some tokens of them the environment's, and ratios far enough out to meet every clip."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.old = -torch.rand(BATCH, LENGTH, generator=generator) * 3
        self.new = self.old + torch.randn(BATCH, LENGTH, generator=generator) * 0.8
        self.mask = torch.rand(BATCH, LENGTH, generator=generator) > 0.3
        self.mask[:, 0] = True
        self.advantages = torch.randn(BATCH, generator=generator)
        self.reference = self.old + torch.randn(BATCH, LENGTH, generator=generator) * 0.2

    def ours(self, *, mode: str = TOKEN, loss: str = "ppo_clip", kl: float = 0.0) -> tuple[Tensor, Tensor]:
        new = self.new.clone().requires_grad_(True)
        whose = self.mask.nonzero()[:, 0]
        old = self.old[self.mask]
        config = RlConfig(clip_ratio_low=CLIP.low, clip_ratio_high=CLIP.high, clip_ratio_c=CLIP.dual)
        losses, _ = policy_loss(loss)(TokenBatch(new[self.mask], old, old, self.advantages[whose], whose), config)
        if kl:
            losses = losses + kl * kl_to(self.reference[self.mask], new[self.mask])
        weights = torch.tensor(token_weights(self.mask.sum(1).tolist(), mode=mode))  # type: ignore[arg-type]
        total = (losses * weights[whose]).sum()
        total.backward()
        assert new.grad is not None
        return total.detach(), new.grad


def trl_loss(case: Case, *, loss_type: str, level: str, beta: float) -> tuple[Tensor, Tensor]:
    """TRL's own `_compute_loss`, with the logprobs given in place of a model's."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    new = case.new.clone().requires_grad_(True)
    whole = torch.ones(BATCH, LENGTH)
    trainer: Any = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (new, torch.zeros_like(new), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=level,
        beta=beta,
        loss_type=loss_type,
        epsilon_low=CLIP.low,
        epsilon_high=CLIP.high,
        args=SimpleNamespace(delta=CLIP.dual, use_bias_correction_kl=False, steps_per_generation=1),
        use_vllm=False,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        _metrics={"train": _Lists()},
        _entropy_bonus_enabled=False,
    )
    inputs = {
        "prompt_ids": torch.zeros(BATCH, 1, dtype=torch.long),
        "prompt_mask": torch.ones(BATCH, 1),
        "completion_ids": torch.zeros(BATCH, LENGTH, dtype=torch.long),
        "completion_mask": whole,
        "tool_mask": case.mask.float(),
        "advantages": case.advantages,
        "old_per_token_logps": case.old,
        "ref_per_token_logps": case.reference,
        "num_items_in_batch": case.mask.sum(),
    }
    loss = GRPOTrainer._compute_loss(trainer, torch.nn.Identity(), inputs)
    loss.backward()
    assert new.grad is not None
    return loss.detach(), new.grad


class _Lists(dict[str, list[float]]):
    def __missing__(self, key: str) -> list[float]:
        self[key] = []
        return self[key]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("loss_type", "level", "beta", "mode"),
    [("dapo", "token", 0.0, TOKEN), ("dapo", "token", 0.1, TOKEN), ("grpo", "token", 0.0, SEQUENCE),
     ("grpo", "sequence", 0.0, SEQUENCE)],
    ids=["dapo", "dapo with kl", "grpo", "gspo"],
)  # fmt: skip
def test_loss_and_gradient_are_those_of_trl(seed: int, loss_type: str, level: str, beta: float, mode: str) -> None:
    pytest.importorskip("trl", reason="trl is not installed")
    case = Case(seed)
    ours, gradient = case.ours(mode=mode, loss="gspo" if level == "sequence" else "ppo_clip", kl=beta)
    theirs, expected = trl_loss(case, loss_type=loss_type, level=level, beta=beta)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-5)
    assert torch.allclose(gradient, expected, atol=1e-5)
    assert not gradient[~case.mask].any()


def verl_algorithms() -> Any:
    return pytest.importorskip(
        "verl.trainer.ppo.core_algos",
        reason="verl is not installed; it needs another transformers, so an environment of its own",
        exc_type=ImportError,
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", [TOKEN, SEQUENCE])
def test_loss_and_gradient_are_those_of_verl(seed: int, mode: str) -> None:
    algorithms = verl_algorithms()
    case = Case(seed)
    ours, gradient = case.ours(mode=mode)
    new = case.new.clone().requires_grad_(True)
    settings = SimpleNamespace(
        clip_ratio=CLIP.low, clip_ratio_low=CLIP.low, clip_ratio_high=CLIP.high, global_batch_info={}
    )
    settings.get = lambda name, default=None: CLIP.dual if name == "clip_ratio_c" else default
    theirs, *_ = algorithms.get_policy_loss_fn("vanilla")(
        old_log_prob=case.old,
        log_prob=new,
        advantages=case.advantages[:, None].expand(-1, LENGTH),
        response_mask=case.mask.float(),
        loss_agg_mode=mode,
        config=settings,
    )
    theirs.backward()
    assert new.grad is not None
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-5)
    assert torch.allclose(gradient, new.grad, atol=1e-5)


def test_advantages_are_those_of_verl() -> None:
    algorithms = verl_algorithms()
    rewards = [1.0, 0.0, 0.5, 1.0, 0.0, 0.0, 0.0, 1.0]
    import numpy as np

    given = torch.zeros(8, 3)
    given[:, -1] = torch.tensor(rewards)
    found, _ = algorithms.compute_grpo_outcome_advantage(given, torch.ones(8, 3), np.array(["a"] * 4 + ["b"] * 4))
    ours = [*group_advantages(rewards[:4]), *group_advantages(rewards[4:])]
    assert found[:, 0].tolist() == pytest.approx(ours, abs=1e-5)
