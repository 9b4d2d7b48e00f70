"""Checks in every step: what goes wrong in RL shows in a few numbers before it shows in the reward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coa.errors import TrainingError
from coa.report import plural
from coa.rl.config import Guards


@dataclass(frozen=True)
class LogprobDiff:
    """How much log-probabilities from sampling and from training differ for the same tokens and weights."""

    mean: float
    most: float
    turns: list[float]
    """The mean of each turn; if later turns have a larger one, the contexts of the two probably differ."""

    @classmethod
    def of(cls, diffs: Iterable[tuple[int, float]]) -> LogprobDiff | None:
        """From pairs of turn and difference; None if there are none."""
        by_turn: dict[int, list[float]] = defaultdict(list)
        for turn, diff in diffs:
            by_turn[turn].append(diff)
        if not by_turn:
            return None
        everything = [diff for found in by_turn.values() for diff in found]
        # NaN is worse than any number.
        most = max((diff if diff == diff else float("inf") for diff in everything), default=0.0)
        turns = [sum(found) / len(found) for _, found in sorted(by_turn.items())]
        return cls(sum(everything) / len(everything), most, turns)


@dataclass
class Watch:
    """Applies the guards. It remembers what they need between steps; `warnings` collects what to report now."""

    guards: Guards
    first_length: float | None = None
    idle: int = 0
    bad: int = 0
    warnings: list[str] = field(default_factory=list)

    def logprob_diff(self, diff: LogprobDiff | None) -> None:
        """To be called before the weights change."""
        if diff is None or not self.guards.max_logprob_diff:
            return
        if not diff.mean <= self.guards.max_logprob_diff:
            raise TrainingError(
                f"log-probabilities from sampling and training differ by {diff.mean:.3g} on average (turn by turn: "
                f"{', '.join(f'{turn:.2g}' for turn in diff.turns)}); training on them would harm the model",
                hint="the last checkpoint is unharmed; look for a tool or tokenizer that changes contexts, "
                "or raise guards.max_logprob_diff if the model is in bf16",
            )

    def groups(self, *, drawn: int, used: int, equal: Mapping[str, int], left_out: str = "") -> None:
        """`used` counts the groups to learn from, `equal` those without a difference by kind (all right, all wrong, all
        equal); `left_out` describes attempts that are in no group."""
        if left_out:
            self.warnings.append(left_out)
        if used:
            self.idle = 0
            return
        self.idle += 1
        kinds = ", ".join(f"{count} {name}" for name, count in equal.items() if count)
        kinds = kinds or "none could be scored"
        problem = f"nothing to learn: in none of {plural(drawn, 'group')} do rewards differ ({kinds})"
        self.warnings.append(problem)
        if self.idle >= self.guards.max_idle_steps:
            raise TrainingError(
                f"{problem}, for {self.idle} consecutive steps" + (f"; {left_out}" if left_out else ""),
                hint="use tasks that the model solves sometimes, a larger num_generations, or fine-tune more first",
            )

    def attempts(self, *, entropy: float, length: float) -> None:
        if entropy < self.guards.min_entropy:
            self.warnings.append(f"entropy is down to {entropy:.3g}: attempts at a task hardly differ any more")
        if self.first_length is None:
            self.first_length = length
        elif length < self.guards.min_length_ratio * self.first_length:
            self.warnings.append(f"attempts have {length:.0f} tokens; the first ones had {self.first_length:.0f}")

    def policy_kl(self, distance: float) -> None:
        if self.guards.max_policy_kl and distance > self.guards.max_policy_kl:
            self.warnings.append(
                f"this step moved the policy by a KL of {distance:.3g} per token: lower lr, or raise warmup_steps"
            )

    def update(self, *, skipped: bool) -> None:
        self.bad = self.bad + 1 if skipped else 0
        if skipped:
            self.warnings.append("the gradient is not finite; the update was skipped")
        if self.bad >= self.guards.max_bad_updates:
            raise TrainingError(
                f"{self.bad} consecutive updates had a gradient that is not finite",
                hint="lower lr, or look at the last groups with `coa inspect`",
            )

    def state(self) -> dict[str, Any]:
        return {"first_length": self.first_length, "idle": self.idle, "bad": self.bad}

    def restore(self, state: dict[str, Any]) -> None:
        self.first_length, self.idle, self.bad = state["first_length"], state["idle"], state["bad"]
