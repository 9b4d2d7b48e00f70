"""What goes wrong in RL is seen in a few numbers before it is seen in the reward. They are looked at in every step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coa.errors import TrainingError
from coa.report import plural
from coa.rl.config import Guards


@dataclass(frozen=True)
class Gap:
    """How far the logprobs as sampled are from those that training computes for the same tokens and weights."""

    mean: float
    most: float
    turns: list[float]
    """Mean of each turn; a later one that is larger points at contexts that do not agree."""

    @classmethod
    def of(cls, gaps: Iterable[tuple[int, float]]) -> Gap | None:
        by_turn: dict[int, list[float]] = defaultdict(list)
        for turn, gap in gaps:
            by_turn[turn].append(gap)
        if not by_turn:
            return None
        everything = [gap for found in by_turn.values() for gap in found]
        # A gap that is no number is worse than any that is.
        most = max((gap if gap == gap else float("inf") for gap in everything), default=0.0)
        turns = [sum(found) / len(found) for _, found in sorted(by_turn.items())]
        return cls(sum(everything) / len(everything), most, turns)


@dataclass
class Watch:
    """Remembers what has to be remembered between steps; `warnings` are what is to be said now."""

    guards: Guards
    first_length: float | None = None
    idle: int = 0
    bad: int = 0
    warnings: list[str] = field(default_factory=list)

    def gap(self, gap: Gap | None) -> None:
        """Before anything is changed."""
        if gap is None or not self.guards.logprob_gap:
            return
        if not gap.mean <= self.guards.logprob_gap:
            raise TrainingError(
                f"logprobs as sampled and as recomputed differ by {gap.mean:.3g} on average (turn by turn: "
                f"{', '.join(f'{turn:.2g}' for turn in gap.turns)}); training on them would unlearn",
                hint="the last checkpoint is as it was; look for a tool or tokenizer that changes contexts, "
                "or raise guards.logprob_gap if the model is a narrow one (bf16)",
            )

    def groups(self, *, drawn: int, used: int, equal: Mapping[str, int], left_out: str = "") -> None:
        """`used`: groups with a spread of rewards; `equal`: how many had rewards that were all right, all wrong, or
        equal otherwise; `left_out` tells of attempts that are in no group."""
        if left_out:
            self.warnings.append(left_out)
        if used:
            self.idle = 0
            return
        self.idle += 1
        told = ", ".join(f"{count} {name}" for name, count in equal.items() if count)
        told = told or "none could be scored"
        said = f"nothing to learn: none of {plural(drawn, 'group')} has a spread of rewards ({told})"
        self.warnings.append(said)
        if self.idle >= self.guards.idle_steps:
            raise TrainingError(
                f"{said}, and so it was for {plural(self.idle, 'step')}" + (f"; {left_out}" if left_out else ""),
                hint="take tasks that the model solves sometimes, larger groups, or more fine-tuning first",
            )

    def attempts(self, *, entropy: float, length: float) -> None:
        if entropy < self.guards.entropy:
            self.warnings.append(f"entropy is down to {entropy:.3g}: attempts at a task are hardly different any more")
        if self.first_length is None:
            self.first_length = length
        elif length < self.guards.length * self.first_length:
            self.warnings.append(f"attempts have {length:.0f} tokens; the first ones had {self.first_length:.0f}")

    def moved(self, distance: float) -> None:
        if self.guards.moved and distance > self.guards.moved:
            self.warnings.append(
                f"this step moved the policy by {distance:.3g} from the one that sampled: lower lr, raise warmup_steps"
            )

    def update(self, *, skipped: bool) -> None:
        self.bad = self.bad + 1 if skipped else 0
        if skipped:
            self.warnings.append("the gradient is not a number; the update is left out")
        if self.bad >= self.guards.bad_updates:
            raise TrainingError(
                f"{plural(self.bad, 'update')} in a row had a gradient that is not a number",
                hint="lower lr, or look at the last groups with `coa inspect`",
            )

    def state(self) -> dict[str, Any]:
        return {"first_length": self.first_length, "idle": self.idle, "bad": self.bad}

    def restore(self, state: dict[str, Any]) -> None:
        self.first_length, self.idle, self.bad = state["first_length"], state["idle"], state["bad"]
