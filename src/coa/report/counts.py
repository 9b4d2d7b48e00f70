"""Counts in messages: `1 task`, `1,200 tasks`."""

from __future__ import annotations


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count and its noun. `many` is for nouns that do not end in s: `plural(2, "trajectory", "trajectories")`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
