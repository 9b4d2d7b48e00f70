"""What the demo came to, for terminal and page: a few figures of each, and whether its goals were reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from coa.evaluate.comparison_page import success

NAMES: Final = {"team": "team", "base": "SmolLM2", "sft": "fine-tuned", "rl": "reinforced"}
"""Evaluations by folder, as people call them."""
FEWER_TOKENS: Final = 0.846
"""By how much the paper's models undercut the teams that they learnt from."""
ENOUGH_TASKS: Final = 200


@dataclass(frozen=True, slots=True)
class Goal:
    claim: str
    found: str
    reached: bool

    def line(self) -> str:
        return f"{'reached' if self.reached else 'NOT reached'}: {self.claim}: {self.found}"


def short_table(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Names of the columns, and a row for each of them; narrow enough for any terminal."""
    rows = [
        [
            NAMES.get(run["name"], run["name"]),
            f"{run['results']['tasks']:,}",
            _share(success(run)),
            _per(run["tokens_per_success"], 0),
            _per(run["tool_calls_per_success"], 1),
            f"{run['repairs']['share_of_attempts']:.1%}",
        ]
        for run in found["runs"]
    ]
    return ["", "tasks", "success", "tokens/success", "calls/success", "mended"], rows


def goals(found: Mapping[str, Any]) -> list[Goal]:
    """What the demo is to show, beyond noise: each interval is compared, not the value in it."""
    pairs = {(pair["first"], pair["second"]): pair for pair in found["pairs"]}
    told = [
        _above(pairs[first, second], f"{NAMES[second]} above {NAMES[first]}")
        for first, second in (("base", "sft"), ("sft", "rl"))
        if (first, second) in pairs
    ]
    if cheaper := pairs.get(("team", "rl")):
        told.append(_cheaper(cheaper))
    return told


def _above(pair: Mapping[str, Any], claim: str) -> Goal:
    gain = pair["success"]
    found = f"{100 * gain['value']:+.1f} points, paired 95 % [{100 * gain['low']:+.1f}, {100 * gain['high']:+.1f}]"
    return Goal(claim, f"{found}, {pair['tasks']:,} tasks", gain["low"] > 0)


def _cheaper(pair: Mapping[str, Any]) -> Goal:
    claim = f"tokens per success {FEWER_TOKENS:.1%} below the team's, {ENOUGH_TASKS} tasks"
    ratio = pair["tokens_per_success"]
    if ratio is None or ratio["high"] is None:
        return Goal(claim, "too few successes to tell", False)
    found = f"{1 - ratio['value']:.1%} below, 95 % [{1 - ratio['high']:.1%}, {1 - ratio['low']:.1%}]"
    reached = 1 - ratio["high"] >= FEWER_TOKENS and pair["tasks"] >= ENOUGH_TASKS
    return Goal(claim, f"{found}, {pair['tasks']:,} tasks", reached)


def _share(value: Mapping[str, float]) -> str:
    return f"{value['value']:.1%} [{100 * value['low']:.0f}, {100 * value['high']:.0f}]"


def _per(value: Mapping[str, Any] | None, digits: int) -> str:
    if value is None:
        return "-"
    high = "no end" if value["high"] is None else f"{value['high']:,.{digits}f}"
    return f"{value['value']:,.{digits}f} [{value['low']:,.{digits}f}, {high}]"
