"""From groups to new weights: rows without padding, logprobs where the model wrote, the loss, the optimiser.

Old logprobs are those with which the tokens were sampled. They are the policy's own at that time, so groups of an
earlier step need no other correction than the ratio that is in the loss anyway. With `importance_cap` that ratio is
taken apart: a weight for what has changed since they were sampled, and a clip for what their own updates change.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from coa.errors import TrainingError
from coa.rl.config import RlConfig
from coa.rl.groups import Attempt, Group
from coa.rl.loss import Clip, clipped_loss, importance, kl_to, log_ratios, token_weights
from coa.rl.policy import Policy
from coa.rl.prompts import Part, Shared, parts_of
from coa.training.attention import Beginnings
from coa.training.packing import Example, balanced, on, rows_needed, to_row
from coa.training.policy import logprobs_of

ROW_TOKENS: Final = 1024
"""Through the model at a time, unless told otherwise."""


@dataclass(frozen=True)
class Item:
    """An attempt with its advantage."""

    attempt: Attempt
    advantage: float
    fresh: bool
    """Sampled with the weights as they were when the step began."""

    @property
    def example(self) -> Example:
        sample = self.attempt.sample
        targets = [sample.labels.get(at, token) for at, token in enumerate(sample.ids)]
        return Example(
            ids=torch.tensor(sample.ids, dtype=torch.int32),
            weights=torch.tensor(sample.mask, dtype=torch.float32),
            targets=torch.tensor(targets, dtype=torch.int32),
        )

    @property
    def tokens(self) -> int:
        return self.attempt.sample.trained

    @property
    def old(self) -> list[float]:
        sample = self.attempt.sample
        assert sample.logprobs is not None
        return [logprob for logprob, written in zip(sample.logprobs, sample.mask, strict=True) if written]

    @property
    def turns(self) -> list[int]:
        """Which stretch of the model's own each of its tokens is in."""
        turns, turn, before = [], -1, False
        for written in self.attempt.sample.mask:
            turn += written and not before
            if written:
                turns.append(turn)
            before = written
        return turns


@dataclass
class Told:
    """What an update, or the updates of a step, came to."""

    loss: float = 0.0
    tokens: int = 0
    held: float = 0.0
    """Tokens that a clip held, and so gave no gradient."""
    kl: float = 0.0
    moved: float = 0.0
    """Sum over this step's tokens of the distance from the policy that sampled them; after its first update only."""
    moved_tokens: int = 0
    norms: list[float] = field(default_factory=list)
    skipped: int = 0
    gaps: list[tuple[int, float]] = field(default_factory=list)
    """Turn and |sampled - recomputed logprob| of tokens whose weights have not changed since."""


def items_of(groups: Sequence[Group], config: RlConfig, step: int) -> list[Item]:
    return [
        Item(attempt, advantage, group.step == step)
        for group in groups
        for attempt, advantage in zip(group.attempts, group.advantages(config), strict=True)
    ]


class Trainer:
    def __init__(self, policy: Policy, config: RlConfig) -> None:
        self.policy, self._config = policy, config
        self._weights = list(policy.trained.values())
        if not self._weights:
            raise TrainingError("no weight is left to train", hint="lower freeze_layers, or widen lora.targets")
        self.optimizer = torch.optim.AdamW(
            self._weights, lr=config.lr, betas=(0.9, config.beta2), weight_decay=config.weight_decay
        )
        self.updates = 0
        self._device = self._weights[0].device
        self._met: dict[int, Tensor] = {}
        """Logprobs of attempts of earlier weights, as the policy had them when it met them in this step."""

    def learn(self, groups: Sequence[Group], step: int) -> Iterator[Told]:
        """All updates of a step, one after another; what is told of the first holds before it changes anything."""
        parts = self._parts(groups, step)
        self._met.clear()
        self.policy.forget()  # the updates need its memory
        for epoch in range(self._config.epochs):
            for number, part in enumerate(parts):
                items = items_of(part, self._config, step)
                told = self._gradient(items, unchanged=epoch == 0 and number == 0)
                yield told
                self._step(told, step)

    def _parts(self, groups: Sequence[Group], step: int) -> list[list[Group]]:
        """Whole groups, in another order each step, in as many parts as there are updates."""
        order = list(groups)
        random.Random(f"{self._config.seed} parts {step}").shuffle(order)
        count = min(self._config.updates, len(order))
        return [order[at::count] for at in range(count)]

    def _gradient(self, items: Sequence[Item], *, unchanged: bool) -> Told:
        config, told = self._config, Told()
        self.optimizer.zero_grad(set_to_none=True)
        weight_of = token_weights([item.tokens for item in items], mean=config.mean)
        examples = [item.example for item in items]
        limit = max(config.row_tokens or ROW_TOKENS, *map(len, examples))
        # Dropout is drawn anew for each prompt; a GPU has no fast kernel for queries that begin in the middle.
        apart = self.policy.drops or self._device.type != "cpu"
        parts = [Part(list(range(len(items))))] if apart else parts_of(examples, limit)
        with self.policy.updating():
            for part in parts:
                shared = Shared(self.policy.inner, part, self._device) if part.shared else None
                own = [examples[member].after(part.begin(member)) for member in part.members]
                lengths = [len(example) for example in own]
                for places in balanced(lengths, rows_needed(lengths, limit)):
                    members = [part.members[at] for at in places]
                    self._row(
                        [items[member] for member in members],
                        [own[at] for at in places],
                        [weight_of[member] for member in members],
                        told,
                        unchanged=unchanged,
                        beginnings=shared.beginnings(members) if shared else None,
                    )
                if shared:
                    shared.learn()
        return told

    def _row(
        self,
        items: Sequence[Item],
        own: Sequence[Example],
        weight_of: Sequence[float],
        told: Told,
        *,
        unchanged: bool,
        beginnings: Beginnings | None,
    ) -> None:
        """`own`: what is each item's own, where it shares its beginning."""
        config, device = self._config, self._device
        row = self._fed(own)
        counts = torch.tensor([item.tokens for item in items])
        whose = torch.arange(len(items)).repeat_interleave(counts).to(device)
        advantages = torch.tensor([item.advantage for item in items], device=device)[whose]
        weights = torch.tensor(list(weight_of), device=device)[whose]
        old = torch.tensor([logprob for item in items for logprob in item.old], device=device)
        logprobs = self._logprobs(self.policy.inner, row, beginnings)
        clip = Clip(config.clip_low, config.clip_high, config.dual_clip)
        near = self._near(items, logprobs.detach(), old) if config.importance_cap else old
        losses, held = clipped_loss(log_ratios(logprobs, near, whose, level=config.ratio), advantages, clip)
        if config.importance_cap:
            losses = losses * importance(log_ratios(near, old, whose, level=config.ratio), config.importance_cap)
        if config.kl and config.kl_in == "loss":
            # Whole attempts, one by one where the row holds only their ends: together they might be too long for a row.
            wholes = [own] if beginnings is None else [[item.example] for item in items]
            with torch.no_grad(), self.policy.as_at_start() as start:
                reference = torch.cat([self._logprobs(start, self._fed(whole)) for whole in wholes])
            distance = kl_to(reference, logprobs)
            losses = losses + config.kl * distance
            told.kl += float(distance.detach().sum())
        loss = (losses * weights).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        told.loss += float(loss.detach())
        told.tokens += len(old)
        told.held += float(held.sum())
        if not unchanged:
            fresh = torch.tensor([item.fresh for item in items], device=device)[whose]
            told.moved += float(kl_to(logprobs.detach(), old)[fresh].sum())
            told.moved_tokens += int(fresh.sum())
        else:
            gaps = (self._as_sampled(logprobs.detach(), row) - old).abs().tolist()
            of = [(turn, item.fresh) for item in items for turn in item.turns]
            told.gaps += [(turn, gap) for (turn, fresh), gap in zip(of, gaps, strict=True) if fresh]

    def _logprobs(self, model: PreTrainedModel, row: dict[str, Any], beginnings: Beginnings | None = None) -> Tensor:
        return logprobs_of(model, row, beginnings, temperature=self._config.temperature)

    def _fed(self, examples: Sequence[Example]) -> dict[str, Any]:
        return on(self._device, to_row(examples, total_weight=1.0))

    def _near(self, items: Sequence[Item], now: Tensor, old: Tensor) -> Tensor:
        """The logprobs from which clips count."""
        counts = [item.tokens for item in items]
        return torch.cat(
            [
                sampled if item.fresh else self._met.setdefault(id(item.attempt), met)
                for item, met, sampled in zip(items, torch.split(now, counts), torch.split(old, counts), strict=True)
            ]
        )

    @torch.no_grad()
    def _as_sampled(self, logprobs: Tensor, row: dict[str, Any]) -> Tensor:
        """Without dropout, which sampling does not know: a difference that it makes is none between the two."""
        if not self.policy.drops:
            return logprobs
        with self.policy.still():
            return self._logprobs(self.policy.inner, row)

    def _step(self, told: Told, step: int) -> None:
        config = self._config
        most = config.max_grad_norm or math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(self._weights, most))
        told.norms.append(norm)
        if not math.isfinite(norm) or not math.isfinite(told.loss):
            told.skipped += 1  # one broken number would be in all weights after the update
            self.optimizer.zero_grad(set_to_none=True)
            return
        self.updates += 1
        for group in self.optimizer.param_groups:
            group["lr"] = config.rate(step, self.updates)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.policy.forget()

    @torch.no_grad()
    def distances(self, attempts: Sequence[Attempt]) -> list[float]:
        """Sum over an attempt's tokens of the logprob as sampled less that of the model at the start: what it has moved
        away, for rewards that count it."""
        found = []
        for attempt in attempts:
            item = Item(attempt, 0.0, True)
            with self.policy.as_at_start() as start:
                reference = self._logprobs(start, self._fed([item.example]))
            found.append(float((torch.tensor(item.old, device=self._device) - reference).sum()))
        return found
