"""What a team has and what it did, collected over many runs: the facts behind a proposed profile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from coa.distill.compose import CHECK, PLAN, REFLECTION, SUGGESTED, compose
from coa.distill.config import Complexity
from coa.distill.importers.content import FINISHING
from coa.distill.importers.trace_format import Imported
from coa.distill.roles import Decider, Role, RoleMap, Roles
from coa.distill.splice import Moment, MomentKind, splice
from coa.distill.team_run import Skipped, TeamRun
from coa.distill.tool_names import DROP, own_tag
from coa.distill.tool_use import ToolUse, definitions_of
from coa.errors import ProfileError
from coa.report import plural
from coa.trajectory import (
    OBSERVATION,
    Agent,
    Author,
    Kind,
    Profile,
    Reading,
    Step,
    Trajectory,
    load_profile,
    profile_of,
)
from coa.trajectory.profile import ScoreVerdict, Thresholds
from coa.trajectory.shapes import read

THINK, ANSWER = "think", "answer"
ROLES: Final = (PLAN, REFLECTION, SUGGESTED, CHECK)
_MOST_CALLS: Final = Complexity().most_calls
"""Runs with more calls are dropped by default (`complexity.most_calls`)."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run as steps of a profile."""

    name: str
    steps: tuple[Step, ...]
    problems: tuple[str, ...] = ()


@dataclass
class Survey:
    """What the team has: tools, and agents that plan, reflect or verify."""

    given: RoleMap
    runs: int = 0
    tools: dict[str, ToolUse] = field(default_factory=dict)
    taken: dict[str, Agent] = field(default_factory=dict)
    """Tool agents of trajectories that are mixed with the traces, as their own profile has them."""
    kinds: Counter[MomentKind] = field(default_factory=Counter)
    roles: Counter[str] = field(default_factory=Counter)
    """Role agents in trajectories that are mixed with the traces."""
    defined: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)
    decided: dict[str, str] = field(default_factory=dict)
    lost: Counter[str] = field(default_factory=Counter)
    skipped: list[Skipped] = field(default_factory=list)

    def add(self, item: Imported) -> None:
        match item:
            case Skipped():
                self.skipped.append(item)
            case TeamRun():
                self._team_run(item)
            case Trajectory():
                self._trajectory(item)

    def _team_run(self, run: TeamRun) -> None:
        self.runs += 1
        assigned = Roles(self.given)
        moments = splice(run, assigned)
        self.decided |= {name: f"{made.role} by {made.by}" for name, made in assigned.decided.items()}
        self.kinds.update(moment.kind for moment in moments if moment.texts or moment.kind is MomentKind.CHECK)
        for moment in moments:
            if moment.problem:
                self.lost[f"{moment.tool}: {moment.problem}"] += 1
        called = {self._call(moment) for moment in moments if moment.kind is MomentKind.CALL and not moment.problem}
        self._count_runs(called - {None})
        for one in run.root.walk():
            self.called |= {one.agent, *(call.name for event in one.model_calls for call in event.calls)}
            for name, definition in definitions_of(one).items():
                self.defined.add(name)
                if (use := self.tools.get(self._tag(name))) is not None:
                    use.define(definition)

    def _call(self, moment: Moment) -> str | None:
        tag = self._tag(moment.tool)
        if tag == DROP:
            return None
        self.tools.setdefault(tag, ToolUse(tag)).add(moment.tool, moment.arguments)
        return tag

    def _tag(self, name: str) -> str:
        return self.given.tools.get(name) or own_tag(name)

    def _count_runs(self, tags: Iterable[str | None]) -> None:
        for tag in tags:
            if tag is not None:
                self.tools[tag].runs += 1

    def _trajectory(self, run: Trajectory) -> None:
        try:
            profile = profile_of(run)
        except ProfileError as error:
            self.skipped.append(Skipped(file=run.task.id, reason=error.message))
            return
        self.runs += 1
        called = set()
        for step in run.steps:
            agent = profile.agents.get(step.agent)
            if agent is None or agent.kind is Kind.ANSWER:
                continue
            if agent.kind is Kind.ROLE:
                self.roles[step.agent] += 1
            elif agent.kind is Kind.TOOL:
                reading = read(agent.shape, step.text)
                arguments = reading.arguments if isinstance(reading, Reading) else {}
                self.tools.setdefault(step.agent, ToolUse(step.agent)).add(step.agent, arguments)
                self.taken.setdefault(step.agent, agent)
                called.add(step.agent)
        self._count_runs(called)

    def converted(self, items: Iterable[Imported], profile: Profile) -> Iterable[Run]:
        for item in items:
            if isinstance(item, TeamRun):
                roles = Roles(self.given)
                composed = compose(splice(item, roles), profile, roles)
                yield Run(item.task.id, composed.steps, composed.problems)
            elif isinstance(item, Trajectory):
                yield Run(item.task.id, item.steps)

    def role_tags(self) -> list[str]:
        kinds = {
            PLAN: MomentKind.PLAN, REFLECTION: MomentKind.REFLECTION, SUGGESTED: MomentKind.CHECK,
            CHECK: MomentKind.CHECK,
        }  # fmt: skip
        return [tag for tag in ROLES if self.kinds[kinds[tag]] or self.roles[tag]]

    def parts(self) -> dict[str, str]:
        return {name: made for name, made in sorted(self.decided.items()) if not name.startswith("tool ")}

    def notes(self) -> list[str]:
        unused = sorted(self.defined - self.called - FINISHING)
        dropped = [name for name, made in self.parts().items() if made.startswith(Role.DROP) and Decider.NAME in made]
        notes = [f"{text} ({plural(count, 'time')})" for text, count in self.lost.most_common(10)]
        notes += [note for tag in self.tools for note in self._agent(tag)[1]]
        if unused:
            notes.append(f"defined but never called, and therefore not in the profile: {', '.join(unused)}")
        if dropped:
            notes.append(f"left out because of their names: {', '.join(dropped)} (a roles.toml can give them a part)")
        return notes

    def _agent(self, tag: str) -> tuple[Agent, list[str]]:
        if tag in self.taken and len(self.tools[tag].names) == 1:
            return self.taken[tag].model_copy(update={"next": (), "thought": False, "max": None}), []
        return self.tools[tag].propose()

    def agents(self) -> dict[str, Agent]:
        """Every agent that the team needs, without rules."""
        shipped = load_profile("all").agents
        roles = {tag: shipped[tag].model_copy(update=_FREE) for tag in (THINK, *self.role_tags())}
        if CHECK in roles:
            roles[CHECK] = shipped[CHECK].model_copy(update={**_FREE, "verdict": shipped[CHECK].verdict})
        tools = {tag: self._agent(tag)[0] for tag in sorted(self.tools, key=lambda tag: -self.tools[tag].calls)}
        return {**roles, **tools, ANSWER: shipped[ANSWER].model_copy(update=_FREE)}


_FREE: Final = {"next": (), "thought": False, "max": None, "verdict": None}


def draft_of(seen: Survey) -> Profile:
    """Anybody may follow anybody."""
    agents = seen.agents()
    everybody = tuple(tag for tag in agents if tag != THINK)
    for tag, agent in agents.items():
        if tag not in (THINK, ANSWER):
            verdict = agent.verdict
            if isinstance(verdict, ScoreVerdict):
                verdict = verdict.model_copy(update={"passed": everybody, "failed": everybody})
            agents[tag] = agent.model_copy(update={"next": everybody, "verdict": verdict})
    if not seen.role_tags() and not seen.tools:
        everybody = (ANSWER,)
    return Profile(name="draft", about="", start=everybody, agents=agents, prompt="")


@dataclass
class Order:
    """Who acted, who followed whom, and how much was written."""

    draft: Profile
    start: Counter[str] = field(default_factory=Counter)
    follows: Counter[tuple[str, str]] = field(default_factory=Counter)
    verdicts: dict[bool, set[str]] = field(default_factory=lambda: {True: set(), False: set()})
    unreadable: int = 0
    """Number of checks without a readable verdict."""
    acted: Counter[str] = field(default_factory=Counter)
    thought: Counter[str] = field(default_factory=Counter)
    answered: int = 0
    calls: Counter[int] = field(default_factory=Counter)
    """Number of answered runs by their number of tool calls."""
    steps: int = 0
    most_calls: int = 0
    written: int = 0
    read: int = 0
    observation: int = 0

    def add(self, run: Run) -> None:
        last, passed, thinking, calls = None, None, False, 0
        for step in run.steps:
            agent = self.draft.agents.get(step.agent)
            if step.agent == OBSERVATION or agent is None or step.author is not Author.MODEL:
                self.observation = max(self.observation, len(step.text))
                thinking = False
                continue
            if agent.kind is Kind.THOUGHT:
                thinking = True
                continue
            if last is None:
                self.start[step.agent] += 1
            else:
                self.follows[last, step.agent] += 1
            if passed is not None:
                self.verdicts[passed].add(step.agent)
            self.acted[step.agent] += 1
            self.thought[step.agent] += thinking
            calls += agent.kind is Kind.TOOL
            passed = agent.verdict.holds(step.text) if agent.verdict is not None else None
            self.unreadable += agent.verdict is not None and passed is None
            last, thinking = step.agent, False
        self.steps, self.most_calls = max(self.steps, len(run.steps)), max(self.most_calls, calls)
        texts = Counter[Author]()
        for step in run.steps:
            texts[step.author] += len(step.text) + 2 * len(step.agent) + 5
        self.written = max(self.written, texts[Author.MODEL])
        self.read = max(self.read, texts.total())
        if any(step.agent == ANSWER for step in run.steps):
            self.answered += 1
            self.calls[calls] += 1

    def followers(self, tags: Iterable[str]) -> set[str]:
        group = set(tags)
        return {after for (before, after), count in self.follows.items() if before in group and count}

    def always_thought(self, tags: Iterable[str]) -> bool:
        """Whether a thought came before every act of these agents."""
        group = list(tags)
        return all(self.acted[tag] == self.thought[tag] for tag in group) and any(self.acted[tag] for tag in group)

    @property
    def fewest_calls(self) -> int:
        """The default, or fewer where a run did with fewer. Runs that called nothing show no cooperation."""
        made = [calls for calls in self.calls if calls]
        return min(Thresholds().min_tool_calls, *made) if made else 0

    def notes(self) -> list[str]:
        notes = []
        if not self.answered:
            notes.append("no run ends with an answer, so that coa distill will keep none of them")
        if silent := self.calls[0] if any(self.calls[calls] for calls in self.calls if calls) else 0:
            notes.append(f"{plural(silent, 'run')} answered without any tool call; coa distill drops such runs")
        if long := sum(count for calls, count in self.calls.items() if calls > _MOST_CALLS):
            setting = f"--set complexity.most_calls={self.most_calls}"
            notes.append(f"{plural(long, 'run')} made more than {_MOST_CALLS} tool calls; {setting} keeps them")
        return notes
