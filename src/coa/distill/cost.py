"""What a team spent and what the same runs cost as one model's trajectories, per task and per success.

A team's tokens are those its servers counted, every call of every agent. A trajectory that was never run is counted
with a tokenizer: written are the model's steps, read is the context at the start of each stretch the model writes,
as a server counts prompts. `sequence` counts everything once, as a server that keeps the context does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields

from coa.distill.filters import SCORE, calls_of
from coa.distill.team_run import TeamRun
from coa.scoring import Scorer, verdict_of
from coa.trajectory import Author, Profile, Tokenizer, Trajectory, Usage, ledger_of


@dataclass
class Spending:
    """Sums over runs."""

    name: str
    kind: str
    """`team` or `trajectories`."""
    runs: int = 0
    successes: int = 0
    unscored: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    sequence_tokens: int = 0
    unmetered_calls: int = 0
    """Model calls whose tokens nobody counted: with any of these the tokens are a lower bound."""
    tasks: set[str] = field(default_factory=set)

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def add(self, task: str, usage: Usage, *, right: float | None, sequence: int = 0, unmetered: int = 0) -> None:
        self.runs += 1
        self.tasks.add(task)
        self.successes += right is not None and right >= 1
        self.unscored += right is None
        self.model_calls += usage.model_calls
        self.tool_calls += usage.tool_calls
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens
        self.sequence_tokens += sequence
        self.unmetered_calls += unmetered

    def to_json(self) -> dict[str, object]:
        sums = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "tasks"}
        spent = ("model_calls", "tool_calls", "prompt_tokens", "completion_tokens", "total_tokens", "sequence_tokens")
        tasks = len(self.tasks)
        return {
            **sums,
            "tasks": tasks,
            "total_tokens": self.total_tokens,
            "per_task": {name: getattr(self, name) / tasks for name in spent} if tasks else None,
            "per_success": {name: getattr(self, name) / self.successes for name in spent} if self.successes else None,
        }


async def spending(
    name: str, items: Iterable[TeamRun | Trajectory], scorer: Scorer, profile: Profile | None, tokenizer: Tokenizer
) -> Iterator[Spending]:
    """A sum for the team runs and one for the trajectories among the items, where there are any."""
    team, own = Spending(name, "team"), Spending(name, "trajectories")
    for item in items:
        if isinstance(item, TeamRun):
            verdict = await verdict_of(scorer, item.task, item.answer)
            team.add(item.task.id, item.usage, right=verdict.value, unmetered=item.unmetered_calls)
            continue
        if item.meta.get("copy"):
            continue  # the same run, written again to weigh more
        known = item.scores.get(SCORE)
        right = known.value if known is not None else (await verdict_of(scorer, item.task, item.answer)).value
        usage, sequence = trajectory_usage(item, tokenizer, profile)
        own.add(item.task.id, usage, right=right, sequence=sequence)
    return iter([part for part in (team, own) if part.runs])


def trajectory_usage(trajectory: Trajectory, tokenizer: Tokenizer, profile: Profile | None) -> tuple[Usage, int]:
    """What it cost, or would cost if it were run as it stands; and its length."""
    from coa.trajectory import load_profile

    grammar = profile or load_profile(trajectory.profile)
    ledger = ledger_of(trajectory, tokenizer, grammar)
    read = written = calls = context = 0
    writing = False
    for span in ledger.spans:
        if span.author is Author.MODEL:
            if not writing:
                calls, read = calls + 1, read + context
            written += len(span.ids)
        writing = span.author is Author.MODEL
        context += len(span.ids)
    if trajectory.usage.model_calls:  # it was really run: what the server counted is the truth
        return trajectory.usage, context
    tools = len(calls_of(trajectory, grammar))
    return Usage(prompt_tokens=read, completion_tokens=written, model_calls=calls, tool_calls=tools), context
