"""From groups to new weights: what happens between the attempts of a step and the next policy.

`Trainer.learn` splits a step's groups into mini-batches and makes one optimiser update from each. For an update,
attempts are packed into rows without padding (`training/packing.py`); a prompt that several attempts share is computed
once (`shared_prefix.py`). For each row the model gives the log-probabilities of the tokens that it wrote, the policy
loss turns them and the advantages into one loss per token (`algorithms/`), and the weighted sum is differentiated.
Gradients of all rows add up until the optimiser takes its step. As an update is spread over several rows, its mean
loss is taken by weights: each token's loss is multiplied by its share of the mean (`token_weights`), and the sums of
all rows add up to it. Tokens that the environment wrote have no loss.

Three log-probabilities of each token matter. *Sampled* ones were recorded when the engine wrote the token. *Current*
ones are recomputed here and carry the gradient. *Proximal* ones are those from which clipping counts: the sampled ones,
which belong to the policy before the step, so that groups of an earlier step need no correction but the ratio in the
loss. With `importance_sampling_cap`, attempts of earlier weights are treated otherwise: their proximal
log-probabilities are those of the policy as it first sees them in this step, and a weight makes up for the difference
to the sampled ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from coa.errors import TrainingError
from coa.rl.algorithms import policy_loss
from coa.rl.algorithms.base import TokenBatch
from coa.rl.algorithms.ppo_clip import MAX_LOG_RATIO
from coa.rl.config import MICRO_BATCH_TOKENS, RlConfig
from coa.rl.groups import Group, RewardedAttempt, advantages_of
from coa.rl.policy import Policy
from coa.rl.shared_prefix import PrefixBatch, SharedPrefixes, prefix_batches
from coa.training.attention import PrefixCache
from coa.training.packed_model import logprobs_of
from coa.training.packing import TokenSample, on, to_row
from coa.training.rows import balanced, rows_needed


@dataclass(frozen=True)
class Item:
    """An attempt with the advantages of its tokens."""

    attempt: RewardedAttempt
    advantages: Sequence[float]
    """One for each token that the model wrote."""
    fresh: bool
    """Whether it was sampled with the weights as they were when the step began."""

    @property
    def sample(self) -> TokenSample:
        sample = self.attempt.sample
        targets = [sample.labels.get(at, token) for at, token in enumerate(sample.ids)]
        return TokenSample(
            ids=torch.tensor(sample.ids, dtype=torch.int32),
            weights=torch.tensor(sample.mask, dtype=torch.float32),
            targets=torch.tensor(targets, dtype=torch.int32),
        )

    @property
    def tokens(self) -> int:
        """How many tokens the model wrote."""
        return self.attempt.sample.trained

    @property
    def sampled_logprobs(self) -> list[float]:
        sample = self.attempt.sample
        assert sample.logprobs is not None
        return [logprob for logprob, written in zip(sample.logprobs, sample.mask, strict=True) if written]

    @property
    def turns(self) -> list[int]:
        """For each token that the model wrote, the number of the turn in which it did."""
        turns, turn, before = [], -1, False
        for written in self.attempt.sample.mask:
            turn += written and not before
            if written:
                turns.append(turn)
            before = written
        return turns


@dataclass
class UpdateStats:
    """What was measured in an update; sums are over tokens that the model wrote."""

    loss: float = 0.0
    tokens: int = 0
    clipped: float = 0.0
    """Number of tokens whose gradient clipping took away."""
    kl: float = 0.0
    """Sum of the KL divergence to the initial model."""
    policy_kl: float = 0.0
    """Sum of the KL divergence to the policy that sampled, over this step's attempts; after the first update only."""
    policy_kl_tokens: int = 0
    """Number of tokens in `policy_kl`."""
    norms: list[float] = field(default_factory=list)
    """The gradient's norm, before it is clipped."""
    skipped: int = 0
    """1 if the gradient was not finite and the update was left out."""
    logprob_diffs: list[tuple[int, float]] = field(default_factory=list)
    """Turn and |sampled - recomputed log-probability| of tokens whose weights have not changed in between."""


def items_of(groups: Sequence[Group], config: RlConfig, step: int) -> list[Item]:
    return [
        Item(attempt, advantages, group.step == step)
        for group in groups
        for attempt, advantages in zip(group.attempts, advantages_of(group, config), strict=True)
    ]


class Trainer:
    def __init__(self, policy: Policy, config: RlConfig) -> None:
        self.policy, self._config = policy, config
        self._weights = list(policy.trained.values())
        if not self._weights:
            raise TrainingError("no weight is left to train", hint="lower freeze_layers, or widen lora.target_modules")
        self.optimizer = torch.optim.AdamW(
            self._weights, lr=config.lr, betas=(0.9, config.adam_beta2), weight_decay=config.weight_decay
        )
        self.updates = 0
        self._device = self._weights[0].device
        self._policy_loss = policy_loss(config.policy_loss)
        self._proximal: dict[int, Tensor] = {}
        """Proximal log-probabilities of attempts of earlier weights, [tokens], by the attempt's id()."""

    def learn(self, groups: Sequence[Group], step: int) -> Iterator[UpdateStats]:
        """All updates of a step, one after another. Each is yielded before it changes the weights."""
        mini_batches = self._mini_batches(groups, step)
        self._proximal.clear()
        self.policy.drop_caches()  # the updates need their memory
        for epoch in range(self._config.ppo_epochs):
            for number, mini_batch in enumerate(mini_batches):
                items = items_of(mini_batch, self._config, step)
                stats = self._gradient(items, unchanged=epoch == 0 and number == 0)
                yield stats
                self._step(stats, step)

    def _mini_batches(self, groups: Sequence[Group], step: int) -> list[list[Group]]:
        """Whole groups, in another order each step."""
        order = list(groups)
        random.Random(f"{self._config.seed} parts {step}").shuffle(order)
        count = min(self._config.num_mini_batches, len(order))
        return [order[at::count] for at in range(count)]

    def _gradient(self, items: Sequence[Item], *, unchanged: bool) -> UpdateStats:
        """Compute the gradient of an update. `unchanged`: the weights are still those of the step's beginning."""
        config, stats = self._config, UpdateStats()
        self.optimizer.zero_grad(set_to_none=True)
        weight_of = token_weights([item.tokens for item in items], mode=config.loss_agg_mode)
        samples = [item.sample for item in items]
        limit = max(config.micro_batch_tokens or MICRO_BATCH_TOKENS, *map(len, samples))
        # Dropout must differ between attempts with the same prompt; and a GPU has no fast attention for queries that
        # begin in the middle of a sequence.
        whole = self.policy.has_dropout or self._device.type != "cpu"
        batches = [PrefixBatch(list(range(len(items))))] if whole else prefix_batches(samples, limit)
        with self.policy.training_mode():
            for batch in batches:
                shared = SharedPrefixes(self.policy.inner, batch, self._device) if batch.prefixes else None
                rests = [samples[member].after(batch.prefix_length(member)) for member in batch.members]
                lengths = [len(rest) for rest in rests]
                for places in balanced(lengths, rows_needed(lengths, limit)):
                    members = [batch.members[at] for at in places]
                    self._row(
                        [items[member] for member in members],
                        [rests[at] for at in places],
                        [weight_of[member] for member in members],
                        stats,
                        unchanged=unchanged,
                        prefix=shared.cache_for(members) if shared else None,
                    )
                if shared:
                    shared.backward()
        return stats

    def _row(
        self,
        items: Sequence[Item],
        rests: Sequence[TokenSample],
        weight_of: Sequence[float],
        stats: UpdateStats,
        *,
        unchanged: bool,
        prefix: PrefixCache | None,
    ) -> None:
        """Add a row's gradient. `rests` are the items' samples without what is in `prefix`.

        All tensors here are [tokens]: the tokens that the model wrote, attempt after attempt.
        """
        config, device = self._config, self._device
        row = self._fed(rests)
        counts = torch.tensor([item.tokens for item in items])  # [attempts]
        attempt = torch.arange(len(items)).repeat_interleave(counts).to(device)
        advantages = torch.tensor([value for item in items for value in item.advantages], device=device)
        weights = torch.tensor(list(weight_of), device=device)[attempt]
        sampled = torch.tensor([logprob for item in items for logprob in item.sampled_logprobs], device=device)
        logprobs = self._logprobs(self.policy.inner, row, prefix)
        proximal = self._proximal_of(items, logprobs.detach(), sampled) if config.importance_sampling_cap else sampled
        losses, clipped = self._policy_loss(TokenBatch(logprobs, proximal, sampled, advantages, attempt), config)
        if config.kl_coef and not config.use_kl_in_reward:
            # If the row holds only the ends of attempts, whole attempts go through the reference model one by one:
            # together they might be too long for a row.
            wholes = [rests] if prefix is None else [[item.sample] for item in items]
            with torch.no_grad(), self.policy.reference_model() as start:
                reference = torch.cat([self._logprobs(start, self._fed(whole)) for whole in wholes])
            distance = kl_to(reference, logprobs)
            losses = losses + config.kl_coef * distance
            stats.kl += float(distance.detach().sum())
        loss = (losses * weights).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        stats.loss += float(loss.detach())
        stats.tokens += len(sampled)
        stats.clipped += float(clipped.sum())
        if not unchanged:
            fresh = torch.tensor([item.fresh for item in items], device=device)[attempt]
            stats.policy_kl += float(kl_to(logprobs.detach(), sampled)[fresh].sum())
            stats.policy_kl_tokens += int(fresh.sum())
        else:
            diffs = (self._without_dropout(logprobs.detach(), row) - sampled).abs().tolist()
            of = [(turn, item.fresh) for item in items for turn in item.turns]
            stats.logprob_diffs += [(turn, diff) for (turn, fresh), diff in zip(of, diffs, strict=True) if fresh]

    def _logprobs(self, model: PreTrainedModel, row: dict[str, Any], prefix: PrefixCache | None = None) -> Tensor:
        return logprobs_of(model, row, prefix, temperature=self._config.temperature)

    def _fed(self, samples: Sequence[TokenSample]) -> dict[str, Any]:
        return on(self._device, to_row(samples, total_weight=1.0))

    def _proximal_of(self, items: Sequence[Item], current: Tensor, sampled: Tensor) -> Tensor:
        """The log-probabilities from which clipping counts; all tensors are [tokens]."""
        counts = [item.tokens for item in items]
        pieces = zip(items, torch.split(current, counts), torch.split(sampled, counts), strict=True)
        return torch.cat(
            [old if item.fresh else self._proximal.setdefault(id(item.attempt), now) for item, now, old in pieces]
        )

    @torch.no_grad()
    def _without_dropout(self, logprobs: Tensor, row: dict[str, Any]) -> Tensor:
        """Log-probabilities to compare with the sampled ones: sampling uses no dropout, so they must not either."""
        if not self.policy.has_dropout:
            return logprobs
        with self.policy.inference_mode():
            return self._logprobs(self.policy.inner, row)

    def _step(self, stats: UpdateStats, step: int) -> None:
        config = self._config
        norm = float(torch.nn.utils.clip_grad_norm_(self._weights, config.max_grad_norm or math.inf))
        stats.norms.append(norm)
        if not math.isfinite(norm) or not math.isfinite(stats.loss):
            stats.skipped += 1  # one number that is not finite would be in all weights after the update
            self.optimizer.zero_grad(set_to_none=True)
            return
        self.updates += 1
        for group in self.optimizer.param_groups:
            group["lr"] = config.lr_at(step, self.updates)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.policy.drop_caches()

    @torch.no_grad()
    def kl_to_start(self, attempts: Sequence[RewardedAttempt]) -> list[float]:
        """For each attempt, the sum over its tokens of sampled log-probability minus that of the initial model."""
        found = []
        for attempt in attempts:
            item = Item(attempt, (), True)
            with self.policy.reference_model() as start:
                reference = self._logprobs(start, self._fed([item.sample]))
            found.append(float((torch.tensor(item.sampled_logprobs, device=self._device) - reference).sum()))
        return found


def token_weights(lengths: Sequence[int], *, mode: Literal["token-mean", "seq-mean-token-mean"]) -> list[float]:
    """The weight of a token of each attempt; `lengths` are the attempts' numbers of tokens.

    The weighted sum over all tokens is the mean over tokens, or the mean over attempts of the mean over their tokens.
    """
    if mode == "token-mean":
        return [1.0 / sum(lengths)] * len(lengths)
    return [1.0 / (length * len(lengths)) for length in lengths]


def kl_to(reference: Tensor, logprobs: Tensor) -> Tensor:
    """An estimate of the KL divergence to the reference at each token which is never negative (k3); [tokens]."""
    difference = (reference - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return difference.exp() - difference - 1
