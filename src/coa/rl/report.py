"""The report of a step: numbers for metrics.jsonl and the trackers, a line for people."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from coa.models.base import CountsTokens
from coa.progress import Progress
from coa.report import plural
from coa.rl.config import RlConfig
from coa.rl.groups import Attempt, AttemptT, Collected, Group
from coa.rl.guards import LogprobDiff
from coa.rl.reward import SUCCESS
from coa.rl.update import UpdateStats
from coa.training.run_folder import append, clock

FOLLOW_S: Final = 0.5
SAMPLING: Final = "sampling"


def of_groups(collected: Collected[AttemptT], config: RlConfig) -> dict[str, float]:
    """Metrics of what was sampled in this step; if the surplus made sampling needless, of what is learnt from."""
    seen = collected.drawn or collected.used
    attempts = [attempt for group in seen for attempt in group.attempts]
    found: dict[str, float] = {
        "groups_drawn": len(collected.drawn),
        "groups_used": len(collected.used),
        "groups_surplus": len(collected.surplus),
        "groups_stale": collected.stale,
        "gen_batches": collected.gen_batches,
        **{f"groups_{name}": count for name, count in equal(collected.drawn, config).items()},
        "failed": sum(group.failed for group in collected.drawn),
        "refilled": sum(group.refilled for group in collected.drawn),
        "unscored": sum(_unscored(group) for group in collected.drawn),
    }
    if attempts:
        scores = [value for attempt in attempts if (value := attempt.success) is not None]
        found |= {
            "reward": _mean([attempt.reward for attempt in attempts]),
            **({"success": _mean(scores)} if scores else {}),
            "model_tokens": _mean([attempt.model_tokens for attempt in attempts]),
            "tool_calls": _mean([attempt.trajectory.usage.tool_calls for attempt in attempts]),
            "entropy": entropy(attempts),
            "answered": _mean([attempt.trajectory.stop.value == "answered" for attempt in attempts]),
        }
    return found


def entropy(attempts: Sequence[Attempt]) -> float:
    """The mean of -logprob over sampled tokens: an estimate of the entropy that costs nothing."""
    return -sum(attempt.logprob_sum for attempt in attempts) / max(sum(attempt.model_tokens for attempt in attempts), 1)


def equal(groups: Sequence[Group[AttemptT]], config: RlConfig) -> dict[str, int]:
    """Numbers of groups that teach nothing, by reason."""
    flat = [group for group in groups if not group.teaches(config) and group.attempts]
    scores = [[attempt.counted for attempt in group.attempts] for group in flat]
    right = sum(all(value == 1 for value in found) for found in scores)
    wrong = sum(all(value == 0 for value in found) for found in scores)
    return {"all_right": right, "all_wrong": wrong, "all_equal": len(flat) - right - wrong}


def left_out(groups: Sequence[Group[AttemptT]]) -> str:
    """How many attempts failed or could not be scored, with one reason, and whether the scorer gave no verdict on a
    whole group; empty if there is nothing of that kind."""
    failed, unscored = sum(group.failed for group in groups), sum(group.unscored for group in groups)
    example, said = next((group for group in groups if group.why), None), list[str]()
    if example is not None and failed + unscored:
        counts = ", ".join(f"{count} {what}" for count, what in ((failed, "failed"), (unscored, "unscored")) if count)
        said.append(f"attempts left out: {counts}; one of task {example.task.id}: {example.why}")
    silent = [group for group in groups if _unscored(group) and all(one.success is None for one in group.attempts)]
    if silent:
        reasons = (one.trajectory.scores[SUCCESS].reason for one in silent[0].attempts)
        why = next(filter(None, reasons), silent[0].why)
        where = f"any attempt at {len(silent)} of {plural(len(groups), 'task')}"
        said.append(f"the scorer gave no verdict on {where}; task {silent[0].task.id}: {why}")
    return "; ".join(said)


def _unscored(group: Group[AttemptT]) -> int:
    """Attempts without the scorer's verdict, also those that a reward function of the user's rewarded all the same."""
    return group.unscored + sum(attempt.success is None for attempt in group.attempts)


def of_updates(updates: Sequence[UpdateStats], diff: LogprobDiff | None, lr: float) -> dict[str, Any]:
    """Metrics of a step's updates; none if there was no group to learn from."""
    if not updates:
        return {}
    tokens, later = sum(one.tokens for one in updates), sum(one.policy_kl_tokens for one in updates)
    found = {
        "loss": _mean([one.loss for one in updates]),
        "grad_norm": _mean([norm for one in updates for norm in one.norms]),
        "clip_fraction": sum(one.clipped for one in updates) / max(tokens, 1),
        "kl": sum(one.kl for one in updates) / max(tokens, 1),
        **({"policy_kl": sum(one.policy_kl for one in updates) / later} if later else {}),
        "trained_tokens": tokens,
        "updates_skipped": sum(one.skipped for one in updates),
        "lr": lr,
    }
    if diff is None:
        return found
    by_turn = {"logprob_diff_by_turn": diff.turns}
    return {**found, "logprob_diff_mean": diff.mean, "logprob_diff_max": diff.most, **by_turn}


def line(step: int, steps: int, found: Mapping[str, Any], left_s: float) -> str:
    def shown(name: str, form: str) -> str:
        return format(found[name], form) if found.get(name) is not None else "-"

    parts = [
        f"step {step}/{steps}",
        f"reward {shown('reward', '.3f')}",
        f"success {shown('success', '.1%')}",
        f"length {shown('model_tokens', '.0f')}",
        f"entropy {shown('entropy', '.3f')}",
        f"clipped {shown('clip_fraction', '.2%')}",
        f"tool calls {shown('tool_calls', '.1f')}",
        f"groups {found['groups_used']:.0f} of {found['groups_drawn']:.0f}",
        f"{shown('tokens_per_s', '.0f')} tokens/s",
        f"{clock(left_s)} left",
    ]
    return "  ".join(parts)


class StepProgress:
    """How far a step has come, between two lines of the report."""

    def __init__(self, progress: Progress, steps: int, sampler: CountsTokens) -> None:
        self._progress, self._steps, self._sampler = progress, steps, sampler
        self._step = self._made = 0
        self._left = self._what = ""
        self._began, self._written_before = time.monotonic(), 0

    def begin(self, step: int, left_s: float | None) -> None:
        self._step, self._made = step, 0
        self._left = "" if left_s is None else f", {clock(left_s)} left"
        self._began, self._written_before = time.monotonic(), self._sampler.tokens_written
        self._what = SAMPLING
        self._show()

    def made(self) -> None:
        """One more attempt has ended."""
        self._made += 1
        self._show()

    def learn(self, groups: int) -> None:
        self._what = f"learning from {plural(groups, 'group')}"
        self._show()

    def pause(self) -> None:
        """Something else is shown until the next step begins."""
        self._what = ""

    async def follow(self) -> None:
        """Keep what is shown up to date while attempts are being made."""
        while True:
            self._show()
            await asyncio.sleep(FOLLOW_S)

    def _show(self) -> None:
        if not self._what:
            return
        tokens = self._sampler.tokens_written - self._written_before
        seconds = max(time.monotonic() - self._began, 1e-9)
        pace = f", {tokens / seconds:.0f} tokens/s" if self._what == SAMPLING else ""
        self._progress.update(
            self._step - 1,
            self._steps,
            f"step {self._step}: {self._what}, {plural(self._made, 'attempt')} made, {tokens:,} tokens sampled"
            f"{pace}{self._left}",
        )


class Log:
    """Writes metrics.jsonl, and to the trackers that the settings name, through accelerate."""

    def __init__(self, path: Path, report_to: Sequence[str]) -> None:
        self._path = path
        self._trackers = [_tracker(name, path.parent) for name in report_to]

    def write(self, step: int, found: Mapping[str, Any]) -> None:
        append(self._path, step, found)
        numbers = {name: value for name, value in found.items() if isinstance(value, int | float)}
        for tracker in self._trackers:
            tracker.log(numbers, step=step)

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.finish()


def _tracker(name: str, out: Path) -> Any:
    from accelerate import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    PartialState()
    if name == "tensorboard":
        tracker: Any = LOGGER_TYPE_TO_CLASS[name]("tensorboard", logging_dir=out)
    else:
        tracker = LOGGER_TYPE_TO_CLASS[name](out.name)
    tracker.start()
    return tracker


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)
