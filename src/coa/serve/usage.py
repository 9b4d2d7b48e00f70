"""Tokens of a served run, as every protocol reports them."""

from __future__ import annotations

from typing import NamedTuple

from coa.trajectory import Author, Trajectory, Usage


class TokenCount(NamedTuple):
    read: int
    """Input tokens of all model calls, cached ones included."""
    cached: int
    """The part of `read` that the model server took from its cache."""
    written: int
    """Output tokens of all model calls."""
    reasoning: int
    """The part of `written` that is not in the answer."""

    @property
    def total(self) -> int:
        return self.read + self.written


def tokens_of(trajectory: Trajectory, before: Usage | None = None) -> TokenCount:
    """What the run took. `before` is what it had taken when an earlier request ended, for a run that was resumed."""
    usage, past = trajectory.usage, before or Usage()
    written = max(usage.completion_tokens - past.completion_tokens, 0)
    return TokenCount(
        max(usage.prompt_tokens - past.prompt_tokens, 0),
        max(usage.cached_tokens - past.cached_tokens, 0),
        written,
        max(written - _answer_tokens(trajectory), 0),
    )


def _answer_tokens(trajectory: Trajectory) -> int:
    """Tokens of the answer. Where the model reports no ids, its share of the model's characters decides."""
    answer = next((step for step in reversed(trajectory.steps) if step.agent == "answer"), None)
    if answer is None or answer.author is not Author.MODEL:
        return 0
    if answer.tokens is not None:
        return len(answer.tokens.ids)
    written = sum(len(step.text) for step in trajectory.steps if step.author is Author.MODEL)
    return round(trajectory.usage.completion_tokens * len(answer.text) / written) if written else 0
