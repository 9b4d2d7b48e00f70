"""Attempts -> figures: success by every metric, what was spent, how runs ended. Equal attempts give equal figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any, Final

from coa.choices import Select
from coa.evaluate.attempts import Attempt, broken_down
from coa.evaluate.metrics import mean, pass_at_k, shares
from coa.runtime.best_of import highest, majority
from coa.trajectory import Usage

TaskAttempts = Mapping[str, Sequence[Attempt]]
Figures = dict[str, Any]
SPENT: Final = ("prompt_tokens", "cached_tokens", "completion_tokens", "total_tokens", "model_calls", "tool_calls")


def figures(
    tasks: TaskAttempts, *, samples: int, planned: int, ks: Sequence[int] = (), groups: Sequence[str] = (),
    select: Select | None = None,
) -> Figures:  # fmt: skip
    """Everything but times. `planned` is the number of tasks to solve, whether or not they have an attempt."""
    attempts = [attempt for listed in tasks.values() for attempt in listed]
    return {
        "results": results(tasks, samples=samples, planned=planned, ks=ks, select=select),
        "spent": spent(tasks, select),
        "agents": agents(attempts),
        "stops": dict(sorted(Counter(attempt.stop.value for attempt in attempts).items())),
        "repairs": {
            "attempts_with": sum(attempt.repairs > 0 for attempt in attempts),
            "share_of_attempts": _share(sum(attempt.repairs > 0 for attempt in attempts), len(attempts)),
            "total": sum(attempt.repairs for attempt in attempts),
        },
        "breakdown": {
            key: {name: _group(part, samples) for name, part in found.items()}
            for key, found in broken_down(tasks, groups).items()
        },
    }


def results(
    tasks: TaskAttempts, *, samples: int, planned: int, ks: Sequence[int] = (), select: Select | None = None
) -> Figures:
    attempts = [attempt for listed in tasks.values() for attempt in listed]
    unscored = sum(attempt.unscored for attempt in attempts)
    found: Figures = {
        "tasks": planned,
        "attempts_per_task": samples,
        "attempts": len(attempts),
        "missing": planned * samples - len(attempts),
        "right": sum(attempt.right for attempt in attempts),
        "unanswered": sum(not attempt.answered and not attempt.failed for attempt in attempts),
        "failed": sum(attempt.failed for attempt in attempts),
        "unscored": unscored,
        "metrics": metrics(tasks, samples=samples, ks=ks, select=select) if attempts else {},
    }
    if unscored:
        found["success_if_all_unscored_were_right"] = fmean(
            fmean(attempt.right or attempt.unscored for attempt in listed) for listed in tasks.values()
        )
    return found


def metrics(
    tasks: TaskAttempts, *, samples: int, ks: Sequence[int] = (), select: Select | None = None
) -> dict[str, dict[str, float]]:
    """Over tasks that have an attempt. Metrics of k attempts are given where every task has k.

    A choice is reported only if it was made at every task that has an answer: a choice not yet made is not wrong.
    """
    fewest = min(map(len, tasks.values()))
    counted = [[attempt.counted for attempt in listed] for listed in tasks.values()]
    found = {"pass@1": mean([[float(attempt.right) for attempt in listed] for listed in tasks.values()])}
    if samples > 1:
        found[f"avg@{samples}"] = mean(counted)
    elif any(value not in (0.0, 1.0) for values in counted for value in values):
        found["mean score"] = mean(counted)
    for k in sorted({*ks, *_powers(samples)}):
        if 1 < k <= fewest:
            chances = [pass_at_k(len(listed), sum(a.right for a in listed), k) for listed in tasks.values()]
            found[f"pass@{k}"] = shares(chances)
    if samples > 1 and fewest == samples:
        checked = any(attempt.own_score for listed in tasks.values() for attempt in listed)
        for how in Select:
            picked = _picked(tasks, how)
            if picked and (how is not Select.SELF_CHECK or checked or select is how):
                found[metric_of(how, samples)] = shares([float(pick is not None and pick.right) for pick in picked])
    return {name: asdict(estimate) for name, estimate in found.items()}


def metric_of(how: Select | None, samples: int, usual: str = "pass@1") -> str:
    """The name of the number that counts: that of the chosen attempt, or of all `samples` attempts."""
    if how is None:
        return f"avg@{samples}" if usual.startswith("avg") and samples > 1 else "pass@1"
    return f"majority@{samples}" if how is Select.MAJORITY else f"best of {samples} by {how}"


def chosen(attempts: Sequence[Attempt], how: Select) -> Attempt | None:
    """The attempt that this way of choosing takes; None where there is nothing to choose or no choice was made.

    A judge's choice is the one it made when the evaluation ran, provided that it was among all present answers.
    """
    answered = [attempt for attempt in attempts if attempt.answered]
    if how is Select.JUDGE:
        among = (0, len(answered))  # 0 in old files, which do not record it
        return next((a for a in attempts if a.selected == how and a.selected_among in among), None)
    if not answered or (answered[0].program and how is Select.MAJORITY):
        return None
    if how is Select.MAJORITY:
        return majority(answered)
    return highest(answered, [attempt.own_score for attempt in answered])


def _picked(tasks: TaskAttempts, how: Select) -> list[Attempt | None]:
    """The chosen attempt of each task, None where no attempt has an answer.

    Empty if a task that has answers has no chosen one, or if no task has one.
    """
    picked = [chosen(listed, how) for listed in tasks.values()]
    open_ = any(
        pick is None and any(attempt.answered for attempt in listed)
        for pick, listed in zip(picked, tasks.values(), strict=True)
    )
    return [] if open_ or not any(picked) else picked


def spent(tasks: TaskAttempts, select: Select | None = None) -> Figures:
    """Sums, and what was spent per attempt, per task and per success (all attempts' sum by the number of right ones).

    Where one attempt is chosen, also by the number of tasks at which that one is right.
    """
    attempts = [attempt for listed in tasks.values() for attempt in listed]
    usage = Usage.sum(attempt.usage for attempt in attempts)
    total: dict[str, float | None] = {name: getattr(usage, name) for name in SPENT}
    if attempts and all(attempt.sequence_tokens is not None for attempt in attempts):
        total["sequence_tokens"] = sum(attempt.sequence_tokens or 0 for attempt in attempts)
    total["cost"] = usage.cost
    picked = _picked(tasks, select) if select is not None else []
    won = sum(pick is not None and pick.right for pick in picked)
    return {
        **({"per_chosen_success": _each(total, won)} if picked else {}),
        "total": total,
        "per_attempt": _each(total, len(attempts)),
        "per_task": _each(total, len(tasks)),
        "per_success": _each(total, sum(attempt.right for attempt in attempts)),
        "unmetered_calls": sum(attempt.unmetered_calls for attempt in attempts),
    }


def times(tasks: TaskAttempts) -> Figures:
    """Separate from the rest, because no two runs take equally long."""
    attempts = [attempt for listed in tasks.values() for attempt in listed]
    seconds = sum(attempt.usage.seconds for attempt in attempts)
    right = sum(attempt.right for attempt in attempts)
    return {
        "seconds": seconds,
        "seconds_per_attempt": _share(seconds, len(attempts)),
        "seconds_per_task": _share(seconds, len(tasks)),
        "seconds_per_success": _share(seconds, right),
    }


def agents(attempts: Sequence[Attempt]) -> Figures:
    """Tokens that each agent wrote, and its share of all."""
    written: Counter[str] = Counter()
    for attempt in attempts:
        written.update(attempt.written)
    whole = sum(written.values())
    rows = sorted(written.items(), key=lambda item: (-item[1], item[0]))
    return {
        "written_tokens": dict(rows),
        "share": {name: _share(count, whole) for name, count in rows},
        "shared_out_by_length": any(attempt.shared_out and attempt.written for attempt in attempts),
    }


def _group(tasks: TaskAttempts, samples: int) -> Figures:
    found = results(tasks, samples=samples, planned=len(tasks))
    return {
        **{name: found[name] for name in ("tasks", "attempts", "right", "failed", "unscored")},
        "pass@1": found["metrics"]["pass@1"],
        "tokens_per_success": spent(tasks)["per_success"]["total_tokens"] if found["right"] else None,
    }


def _each(total: Mapping[str, float | None], count: int) -> dict[str, float | None] | None:
    if not count:
        return None
    return {name: None if value is None else value / count for name, value in total.items()}


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _powers(samples: int) -> list[int]:
    """Powers of two below `samples`, and `samples`."""
    return [*(1 << n for n in range(1, samples.bit_length()) if 1 << n < samples), samples]
