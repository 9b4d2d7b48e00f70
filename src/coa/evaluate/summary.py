"""Attempts -> figures: success by every metric, what was spent, how runs ended. Equal attempts give equal figures.

A `Summary` reads the attempts once, task by task, and keeps a few bytes of each, so that a million of them can be
summed up. What needs all tasks at once (intervals, pass@k) is computed at the end from columns of numbers.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any, Final

from coa.choices import Select
from coa.evaluate.attempts import Attempt
from coa.evaluate.metrics import Estimate, mean_of, pass_at_k, shares
from coa.runtime.best_of import highest, majority
from coa.scoring import Agreement, outcome

Tasks = Iterable[tuple[str, Sequence[Attempt]]]
"""Tasks in order, each with its attempts: an `AttemptStore`, or the items of `by_task`."""
Figures = dict[str, Any]
SPENT: Final = ("prompt_tokens", "cached_tokens", "completion_tokens", "total_tokens", "model_calls", "tool_calls")
_MOST_GROUPS: Final = 20
"""A key that divides the tasks into more groups than this is no way to break results down."""


def summed_up(
    tasks: Tasks, *, groups: Sequence[str] = (), select: Select | None = None, scorer: str | None = None
) -> Summary:
    found = Summary(groups, select, scorer)
    for _, attempts in tasks:
        found.add(attempts)
    return found


@dataclass
class Counts:
    """Counts over some tasks."""

    attempts: int = 0
    right: int = 0
    unanswered: int = 0
    failed: int = 0
    unscored: int = 0
    tokens: int = 0
    tried: array[int] = field(default_factory=lambda: array("I"))
    """Attempts at each task."""
    right_of: array[int] = field(default_factory=lambda: array("I"))
    """The right ones of them."""
    right_at_most: array[int] = field(default_factory=lambda: array("I"))
    """The right and the unscored ones."""

    def add(self, attempts: Sequence[Attempt]) -> None:
        right = unscored = 0
        for attempt in attempts:
            right += attempt.right
            unscored += attempt.unscored
            failed = attempt.failed
            self.failed += failed
            self.unanswered += not failed and not attempt.answered
            self.tokens += attempt.usage.total_tokens
        self.attempts += len(attempts)
        self.right += right
        self.unscored += unscored
        self.tried.append(len(attempts))
        self.right_of.append(right)
        self.right_at_most.append(right + unscored)

    @property
    def tasks(self) -> int:
        return len(self.tried)

    def pass_at_1(self) -> Estimate:
        means = array("d", (right / tried for right, tried in zip(self.right_of, self.tried, strict=True)))
        return mean_of(means, self.attempts, binary=True)


@dataclass
class Chosen:
    """What one way of choosing takes at each task."""

    right: array[int] = field(default_factory=lambda: array("b"))
    picked: bool = False
    """Whether it takes an attempt anywhere."""
    open: bool = False
    """Whether a task that has answers has no chosen one."""

    def add(self, attempts: Sequence[Attempt], how: Select) -> None:
        pick = chosen(attempts, how)
        self.right.append(pick is not None and pick.right)
        self.picked |= pick is not None
        self.open |= pick is None and any(attempt.answered for attempt in attempts)

    @property
    def is_complete(self) -> bool:
        """A choice is reported only if it was made at every task with an answer: one not yet made is not wrong."""
        return self.picked and not self.open


class Summary:
    """`groups` are keys of a task's meta; `select` is how one attempt is chosen; `scorer` is the one that decides."""

    def __init__(self, groups: Sequence[str] = (), select: Select | None = None, scorer: str | None = None) -> None:
        self.counts = Counts()
        self._select, self._scorer = select, scorer
        self._keys = list(dict.fromkeys(groups))
        self._groups: dict[str, dict[str, Counts]] = {}
        self._chosen = {how: Chosen() for how in Select}
        self._counted = array("d")
        """Mean value of each task, where values may lie between right and wrong."""
        self._binary = True
        self._checked = False
        self._usage: Counter[str] = Counter()
        self._seconds = 0.0
        self._cost: float | None = None
        self._sequence: int | None = 0
        self._unmetered = 0
        self._written: Counter[str] = Counter()
        self._shared_out = False
        self._stops: Counter[str] = Counter()
        self._repaired = self._repairs = 0
        self._verdicts: dict[str, Counter[str]] = {}

    def add(self, attempts: Sequence[Attempt]) -> None:
        """Add a task with its attempts."""
        self._add_to_groups(attempts)
        self.counts.add(attempts)
        count = len(attempts)
        values = [attempt.counted for attempt in attempts]
        self._counted.append(fmean(values))
        self._binary = self._binary and all(value in (0.0, 1.0) for value in values)
        for how, found in self._chosen.items():
            if count > 1 or how is self._select:
                found.add(attempts, how)
        for attempt in attempts:
            self._add(attempt)

    def _add(self, attempt: Attempt) -> None:
        usage = attempt.usage
        for name in SPENT:
            self._usage[name] += getattr(usage, name)
        self._seconds += usage.seconds
        if usage.cost is not None:
            self._cost = usage.cost if self._cost is None else self._cost + usage.cost
        if attempt.sequence_tokens is None:
            self._sequence = None
        elif self._sequence is not None:
            self._sequence += attempt.sequence_tokens
        self._unmetered += attempt.unmetered_calls
        self._checked |= bool(attempt.own_score)
        self._stops[attempt.stop.value] += 1
        self._repaired += attempt.repairs > 0
        self._repairs += attempt.repairs
        for name, written in attempt.written.items():
            self._written[name] += written
        self._shared_out |= bool(attempt.shared_out and attempt.written)
        if self._scorer is not None and self._scorer in attempt.scores:
            for name, value in attempt.scores.items():
                if name != self._scorer:
                    cell = outcome(attempt.scores[self._scorer], value)
                    self._verdicts.setdefault(name, Counter())[cell] += 1

    def _add_to_groups(self, attempts: Sequence[Attempt]) -> None:
        """Tasks without a key are under an empty name, also those that came before the first one with it."""
        meta = attempts[0].meta
        for key in self._keys if meta or self._groups else ():
            value, groups = meta.get(key, ""), self._groups.get(key)
            if groups is None:
                if not value:
                    continue
                groups = self._groups[key] = {"": deepcopy(self.counts)} if self.counts.tasks else {}
            groups.setdefault(value, Counts()).add(attempts)
            if len(groups) > _MOST_GROUPS:
                self._keys = [other for other in self._keys if other != key]
                del self._groups[key]

    def figures(self, *, samples: int, planned: int, ks: Sequence[int] = ()) -> Figures:
        """Everything but times. `planned` is the number of tasks to solve, whether or not they have an attempt."""
        return {
            "results": self._results(samples, planned, ks),
            "spent": self._spent(),
            "agents": self._agents(),
            "stops": dict(sorted(self._stops.items())),
            "repairs": {
                "attempts_with": self._repaired,
                "share_of_attempts": _share(self._repaired, self.counts.attempts),
                "total": self._repairs,
            },
            "breakdown": {
                key: {name: _group(part) for name, part in sorted(self._groups[key].items())}
                for key in self._keys
                if len(self._groups.get(key, ())) >= 2
            },
        }

    @property
    def samples(self) -> int:
        """The most attempts at one task."""
        return max(self.counts.tried, default=1)

    def _results(self, samples: int, planned: int, ks: Sequence[int]) -> Figures:
        counts = self.counts
        found: Figures = {
            "tasks": planned,
            "attempts_per_task": samples,
            "attempts": counts.attempts,
            "missing": planned * samples - counts.attempts,
            "right": counts.right,
            "unanswered": counts.unanswered,
            "failed": counts.failed,
            "unscored": counts.unscored,
            "metrics": self._metrics(samples, ks) if counts.attempts else {},
        }
        if counts.unscored:
            at_most = zip(counts.right_at_most, counts.tried, strict=True)
            found["success_if_all_unscored_were_right"] = fmean(right / tried for right, tried in at_most)
        return found

    def _metrics(self, samples: int, ks: Sequence[int]) -> dict[str, dict[str, float]]:
        """Over tasks that have an attempt. Metrics of k attempts are given where every task has k."""
        counts = self.counts
        fewest = min(counts.tried)
        found = {"pass@1": counts.pass_at_1()}
        if samples > 1:
            found[f"avg@{samples}"] = mean_of(self._counted, counts.attempts, binary=self._binary)
        elif not self._binary:
            found["mean score"] = mean_of(self._counted, counts.attempts, binary=False)
        for k in sorted({*ks, *_powers(samples)}):
            if 1 < k <= fewest:
                both = zip(counts.tried, counts.right_of, strict=True)
                found[f"pass@{k}"] = shares(array("d", (pass_at_k(tried, right, k) for tried, right in both)))
        if samples > 1 and fewest == samples:
            for how, picked in self._chosen.items():
                asked = how is not Select.SELF_CHECK or self._checked or self._select is how
                if picked.is_complete and asked:
                    found[metric_of(how, samples)] = shares(array("d", picked.right))
        return {name: asdict(estimate) for name, estimate in found.items()}

    def _spent(self) -> Figures:
        """Sums, and what was spent per attempt, per task and per success (the sum by the number of right ones).

        Where one attempt is chosen, also by the number of tasks at which that one is right.
        """
        counts = self.counts
        total: dict[str, float | None] = {name: self._usage[name] for name in SPENT}
        if counts.attempts and self._sequence is not None:  # a tokenizer counted, which does not know what was cached
            total |= {"sequence_tokens": self._sequence, "cached_tokens": None}
        total["cost"] = self._cost
        picked = self._chosen[self._select] if self._select is not None else None
        return {
            **({"per_chosen_success": _each(total, sum(picked.right))} if picked and picked.is_complete else {}),
            "total": total,
            "per_attempt": _each(total, counts.attempts),
            "per_task": _each(total, counts.tasks),
            "per_success": _each(total, counts.right),
            "unmetered_calls": self._unmetered,
        }

    def times(self) -> Figures:
        """Separate from the rest, because no two runs take equally long."""
        counts = self.counts
        return {
            "seconds": self._seconds,
            "seconds_per_attempt": _share(self._seconds, counts.attempts),
            "seconds_per_task": _share(self._seconds, counts.tasks),
            "seconds_per_success": _share(self._seconds, counts.right),
        }

    def _agents(self) -> Figures:
        """Tokens that each agent wrote, and its share of all."""
        whole = sum(self._written.values())
        rows = sorted(self._written.items(), key=lambda item: (-item[1], item[0]))
        return {
            "written_tokens": dict(rows),
            "share": {name: _share(count, whole) for name, count in rows},
            "shared_out_by_length": self._shared_out,
        }

    def agreements(self) -> Figures:
        """How often the scorer that decides and each other scorer agree."""
        found: Figures = {}
        for other in sorted(self._verdicts):
            counts = Agreement(**self._verdicts[other])
            if counts.compared:
                found[other] = {**asdict(counts), "rate": counts.rate, "kappa": counts.kappa}
        return found


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


def _group(counts: Counts) -> Figures:
    return {
        "tasks": counts.tasks,
        "attempts": counts.attempts,
        "right": counts.right,
        "failed": counts.failed,
        "unscored": counts.unscored,
        "pass@1": asdict(counts.pass_at_1()),
        "tokens_per_success": counts.tokens / counts.right if counts.right else None,
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
