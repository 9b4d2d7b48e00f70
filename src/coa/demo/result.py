"""The results of the demo, for terminal and page: a few figures, whether the goals were reached, a question to try."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from coa.compare.page import success
from coa.report import plural
from coa.trajectory import Trajectory, read

NAMES: Final = {"team": "team", "base": "untrained", "sft": "fine-tuned", "rl": "after RL"}
"""What people call the evaluations in the demo's folders."""
FEWER_TOKENS: Final = 0.846
"""How many fewer tokens the paper's models need than the teams that they learnt from."""
ENOUGH_TASKS: Final = 200


@dataclass(frozen=True, slots=True)
class Goal:
    """Something that the demo should show beyond noise."""

    claim: str
    found: str
    reached: bool

    def line(self) -> str:
        return f"{'shown:' if self.reached else 'not shown:':<10} {self.claim}: {self.found}"


def short_table(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Names of the columns, and a row for each run; narrow enough for a terminal of 80 columns."""
    rows = []
    for run in found["runs"]:
        name, count = NAMES.get(run["name"], run["name"]), f"{run['results']['tasks']:,}"
        tokens = _middle(run["tokens_per_success"], ",.0f")
        calls = _middle(run["tool_calls_per_success"], ".1f")
        rate, repaired = success(run), f"{run['repairs']['share_of_attempts']:.0%}"
        solved = f"{rate['value']:.1%} [{100 * rate['low']:.0f}, {100 * rate['high']:.0f}]"
        rows.append([name, count, solved, tokens, calls, repaired])
    return ["model", "questions", "solved", "tokens/solved", "tool calls/solved", "repaired"], rows


def _middle(ratio: Mapping[str, Any] | None, form: str) -> str:
    """A cost per success without its interval, which the report has; "-" without a success."""
    return "-" if ratio is None or ratio["value"] is None else format(ratio["value"], form)


def goals(found: Mapping[str, Any]) -> list[Goal]:
    """What the demo should show beyond noise: the end of each interval counts, not the value in it."""
    pairs = {(pair["first"], pair["second"]): pair for pair in found["pairs"]}
    claims = {
        ("base", "sft"): "fine-tuning solves more questions",
        ("sft", "rl"): "RL solves more again",
    }
    found_goals = [_above(pairs[pair], claim) for pair, claim in claims.items() if pair in pairs]
    if cheaper := pairs.get(("team", "rl")):
        found_goals.append(_cheaper(cheaper))
    return found_goals


def _above(pair: Mapping[str, Any], claim: str) -> Goal:
    gain = pair["success"]
    found = f"{100 * gain['value']:+.1f} points [{100 * gain['low']:+.1f}, {100 * gain['high']:+.1f}]"
    return Goal(claim, found, gain["low"] > 0)


def _cheaper(pair: Mapping[str, Any]) -> Goal:
    claim = f"at least {FEWER_TOKENS:.1%} fewer tokens than the team"
    ratio = pair["tokens_per_success"]
    if ratio is None or ratio["high"] is None:
        return Goal(claim, "too few solved to decide", False)
    found = f"{1 - ratio['value']:.1%} [{1 - ratio['high']:.1%}, {1 - ratio['low']:.1%}]"
    reached = 1 - ratio["high"] >= FEWER_TOKENS and pair["tasks"] >= ENOUGH_TASKS
    return Goal(claim, found, reached)


def is_right(run: Trajectory) -> bool:
    return any(score.value == 1 for score in run.scores.values())


def new_question(out: Path) -> tuple[str, str]:
    """A question that no evaluation has asked, and what to expect. It needs search, pages and code; if the model gets
    fewer than half of such questions right, it is of the family that the model is best at."""
    found: dict[str, list[bool]] = {}
    asked = set()
    for run in read(out / "eval" / "rl"):
        asked.add(run.task.id)
        found.setdefault(str(run.task.meta["family"]), []).append(is_right(run))

    def worth(task: dict[str, Any]) -> tuple[bool, bool, float]:
        family = task["meta"]["family"]
        share = statistics.fmean(found.get(family, [False]))
        return share >= 0.5, family == "arithmetic", share

    tasks = (orjson.loads(line) for line in (out / "world" / "tasks" / "test.jsonl").read_bytes().splitlines())
    task = max((task for task in tasks if task["id"] not in asked), key=worth)
    rights = found.get(task["meta"]["family"], [])
    answer = task["answer"] if isinstance(task["answer"], str) else task["answer"][0]
    return task[
        "question"
    ], f"The right answer: {answer}. It solved {sum(rights)} of {plural(len(rights), 'such question')}."
