"""What a team spent and what the same runs cost as one model's trajectories, per task and per success.

A team's tokens are those that its servers counted, over every call of every agent; so are those of a trajectory that
was really run. A trajectory that was never run is counted with a tokenizer: the tokens written are those of the model's
steps, and the tokens read are the context at the start of each stretch that the model writes, as a server counts
prompts. Only for these is `sequence_tokens` known, which counts everything once, as a server does that keeps the
context: no server reports it, and to tokenise every run that a server has metered would take hours for a large file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, partial
from pathlib import Path

from coa.blocking import run_blocking
from coa.distill.filters.quality import SCORE
from coa.distill.importers.detect import read_traces
from coa.distill.known_tasks import KnownTasks
from coa.distill.team_run import CodeCall, ModelCall, Purpose, Skipped, TeamRun, ToolCall, ToolResult
from coa.errors import StoreError
from coa.models.tokenizer import SMOLLM2, load_tokenizer
from coa.runtime.sides import Side, sides_of
from coa.scoring import Scorer, verdict_of
from coa.scoring.opening import JudgeConfig, open_judge, open_scorer
from coa.trajectory import Profile, Tokenizer, Trajectory, Usage, load_profile, profile_of, with_profile
from coa.trajectory.counting import Counted, count_tokens
from coa.trajectory.formats.tasks import read_tasks


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
    sequence_tokens: int | None = None
    """None if it is not known of every run."""
    cost: float | None = None
    """What the traces or the run's prices say; None where no run says it."""
    unpriced_runs: int = 0
    """Runs of which nobody says what they cost: with some of these, and a cost, the cost is a lower bound."""
    unmetered_calls: int = 0
    """Model calls whose tokens nobody counted: with any of these the tokens are a lower bound."""
    tasks: set[str] = field(default_factory=set)

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def add(
        self, task: str, usage: Usage, *, right: float | None, sequence: int | None = None, unmetered: int = 0
    ) -> None:
        before = self.sequence_tokens if self.runs else 0
        self.sequence_tokens = None if before is None or sequence is None else before + sequence
        self.runs += 1
        self.tasks.add(task)
        self.successes += right is not None and right >= 1
        self.unscored += right is None
        for name in ("model_calls", "tool_calls", "prompt_tokens", "completion_tokens"):
            setattr(self, name, getattr(self, name) + getattr(usage, name))
        if usage.cost is None:
            self.unpriced_runs += 1
        else:
            self.cost = (self.cost or 0.0) + usage.cost
        self.unmetered_calls += unmetered

    def to_json(self) -> dict[str, object]:
        sums = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "tasks"}
        spent = (
            "model_calls",
            "tool_calls",
            "prompt_tokens",
            "completion_tokens",
            "total_tokens",
            "sequence_tokens",
            "cost",
        )
        tasks = len(self.tasks)
        return {
            **sums,
            "tasks": tasks,
            "total_tokens": self.total_tokens,
            "per_task": self._each(spent, tasks),
            "per_success": self._each(spent, self.successes),
        }

    def _each(self, spent: Iterable[str], count: int) -> dict[str, float | None] | None:
        if not count:
            return None
        sums: dict[str, float | None] = {name: getattr(self, name) for name in spent}
        return {name: None if value is None else value / count for name, value in sums.items()}


@dataclass(frozen=True, slots=True)
class CostReport:
    rows: tuple[Spending, ...]
    """For each path, a sum over its team runs and one over its trajectories, where it holds such runs."""
    unreadable: tuple[Skipped, ...]
    """Places that could not be read and are not in these sums."""


def measure_cost(
    paths: Sequence[str | Path],
    *,
    tokenizer: str = "smollm2",
    profile: str | None = None,
    tasks: str | Path | None = None,
    judge: str | None = None,
    shared: bool = False,
) -> CostReport:
    """Tokens and calls of team traces beside those of trajectories; `shared` takes only tasks that all paths hold.
    Shards of one evaluation are added up.

    `tokenizer` counts trajectories that were never run. `tasks` is a file with right answers for traces that have none,
    and `judge` the URL of a model that judges answers which no rule can compare.
    """
    chosen_profile, counting = load_profile(profile) if profile else None, cache(partial(load_tokenizer, tokenizer))
    if tokenizer != SMOLLM2:
        counting()  # a name that is wrong is reported at once; the default is loaded when a run needs it
    known = KnownTasks(read_tasks(tasks) if tasks else ())
    unreadable: dict[tuple[str, str], Skipped] = {}
    sides = sides_of(paths)

    def items(side: Side) -> Iterator[TeamRun | Trajectory]:
        for item in read_traces(side.paths):
            if isinstance(item, Skipped):
                unreadable[item.file, item.place] = item
            else:
                task = known.find(item.task)
                yield item if task is item.task else item.model_copy(update={"task": task})

    async def measure() -> list[Spending]:
        wanted = set.intersection(*({item.task.id for item in items(side)} for side in sides)) if shared else None
        rows: list[Spending] = []
        async with open_judge(JudgeConfig(judge=judge)) as model, open_scorer("auto", model) as scorer:
            for side in sides:
                chosen = (item for item in items(side) if wanted is None or item.task.id in wanted)
                name = side.name if side.shards else str(side.paths[0])
                rows += await spending(name, chosen, scorer, chosen_profile, counting)
        return rows

    rows = run_blocking(measure())
    if not rows:
        named = [f"{place.file} {place.place}".strip() + f": {place.reason}" for place in unreadable.values()]
        more = f" (and {len(named) - 1:,} more)" if len(named) > 1 else ""
        found = f"; {named[0]}{more}" if named else ""
        raise StoreError(
            "there is no run to count" + (" that all paths hold" if shared else "") + found,
            hint="paths with --shared must hold the same tasks; for traces that do not name theirs, add --tasks"
            if shared
            else "give traces or trajectories",
        )
    return CostReport(tuple(rows), tuple(unreadable.values()))


async def spending(
    name: str, items: Iterable[TeamRun | Trajectory], scorer: Scorer, profile: Profile | None,
    tokenizer: Callable[[], Tokenizer],
) -> Iterator[Spending]:  # fmt: skip
    """A sum for the team runs and one for the trajectories among the items, where there are any."""
    team, own = Spending(name, "team"), Spending(name, "trajectories")
    for item in items:
        if isinstance(item, TeamRun):
            verdict = await verdict_of(scorer, item.task, item.answer)
            team.add(item.task.id, item.usage, right=verdict.value, unmetered=item.unmetered_calls)
            continue
        if item.meta.get("copy"):
            continue  # a copy of the same run, written to weigh more in training
        known = item.scores.get(SCORE)
        right = known.value if known is not None else (await verdict_of(scorer, item.task, item.answer)).value
        usage, sequence = trajectory_usage(item, tokenizer, profile)
        own.add(item.task.id, usage, right=right, sequence=sequence)
    return iter([part for part in (team, own) if part.runs])


def trajectory_usage(
    trajectory: Trajectory, tokenizer: Callable[[], Tokenizer], profile: Profile | None
) -> tuple[Usage, int | None]:
    """What it cost, or would cost if it were run as it is; and its length, if that had to be counted."""
    if trajectory.usage.model_calls:
        return trajectory.usage, None  # it was really run: what the server counted is the truth
    chosen = profile_of(with_profile(trajectory, profile) if profile else trajectory)
    counted = count_tokens(trajectory, tokenizer(), chosen)
    return counted.usage, counted.length


def written_by_team(run: TeamRun) -> dict[str, int]:
    """Tokens that each agent of a team wrote, as its servers counted them."""
    written: dict[str, int] = {}
    for agent in run.root.walk():
        spent = Usage.sum(call.usage for call in agent.model_calls if call.usage is not None)
        written[agent.agent] = written.get(agent.agent, 0) + spent.completion_tokens
    return written


def count_team_tokens(run: TeamRun, tokenizer: Tokenizer) -> Counted:
    """The same run counted with a tokenizer: each call reads its system prompt and all that its agent has read so far.

    A trace keeps what was said, not how a chat template wrapped it, nor the descriptions of tools that a server adds;
    a rewritten context is counted from its new messages. So this is less than what a server bills.
    """

    def size(*texts: str) -> int:
        return sum(map(len, tokenizer.encode([text for text in texts if text])))

    read = length = 0
    written: dict[str, int] = {}
    for agent in run.root.walk():
        # Where the calls record what they read, they include the agent's own words; otherwise they are collected here.
        recorded = any(call.messages for call in agent.model_calls)
        system = size(agent.system)
        context, pending = system + (0 if recorded else size(agent.request)), 0
        for event in agent.events:
            if event.copied:
                continue
            if isinstance(event, ModelCall):
                context = system if event.rewritten else context
                if event.purpose in (Purpose.PLAN, Purpose.TOOL):
                    # It has another prompt, which the agent's other calls do not read; what it reads besides is
                    # the agent's history, counted here if no call has read it before.
                    read += size(*(message.text for message in event.messages)) if recorded else context - system
                    if event.purpose is Purpose.PLAN:
                        story = (message for message in event.messages if message.role not in ("system", "user"))
                        context += size(*(message.text for message in story))
                else:
                    context += size(*(message.text for message in event.messages))
                    read += context
                pending = size(event.thought, event.text, *(_spelled(call) for call in event.calls))
                written[agent.agent] = written.get(agent.agent, 0) + pending
                context += 0 if recorded else pending
            elif isinstance(event, ToolResult | CodeCall) and not recorded:
                context += size(event.text)
        length += context + (pending if recorded else 0)
    usage = run.usage.model_copy(
        update={"prompt_tokens": read, "completion_tokens": sum(written.values()), "cached_tokens": 0}
    )
    return Counted(usage, length, written)


def _spelled(call: ToolCall) -> str:
    """A call as text: code as it is, other calls as the name and the arguments in JSON."""
    if set(call.arguments) == {"code"}:
        return str(call.arguments["code"])
    return f"{call.name} {json.dumps(dict(call.arguments), ensure_ascii=False)}"
