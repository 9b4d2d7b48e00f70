"""Who may act next: the rules of a profile as a small state machine.

The format check of filters, rewards and viewer uses it to find violations. Constrained decoding and hints to the model
use `legal`, which gives the tags that may come next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from coa.trajectory.profile import Kind, Profile
from coa.trajectory.shapes import Slip, read
from coa.trajectory.types import OBSERVATION, Author, Step


class Rule(StrEnum):
    """A rule that a step can break."""

    UNKNOWN_AGENT = "unknown_agent"
    FORGED_OBSERVATION = "forged_observation"
    """The model wrote an observation itself."""
    FOREIGN_AUTHOR = "foreign_author"
    """The environment wrote a step that only the model may write."""
    UNEXPECTED_OBSERVATION = "unexpected_observation"
    MISSING_OBSERVATION = "missing_observation"
    ORDER = "order"
    MISSING_THOUGHT = "missing_thought"
    TOO_OFTEN = "too_often"
    VERDICT_IGNORED = "verdict_ignored"
    VERDICT_UNREADABLE = "verdict_unreadable"
    SHAPE = "shape"
    AFTER_ANSWER = "after_answer"
    NO_ANSWER = "no_answer"


@dataclass(frozen=True)
class Violation:
    step: int
    """Index of the step that breaks the rule; the number of steps if something is missing at the end."""
    rule: Rule
    message: str


@dataclass(frozen=True)
class State:
    """The state of a run. `advance` returns the state after one more step, and the rules that the step broke."""

    profile: Profile
    last: str | None = None
    """The last agent that acted, not counting thoughts."""
    allowed: tuple[str, ...] = ()
    """Agents that may follow `last`, given its verdict."""
    thought: bool = False
    """Whether a thought was the latest step."""
    waiting: str | None = None
    """The tool whose observation is due."""
    covered: bool = False
    """Whether the last agent was a tool that a thought came before: calls in a row need one, before the first."""
    counts: Mapping[str, int] = field(default_factory=dict)
    done: bool = False

    @classmethod
    def begin(cls, profile: Profile) -> State:
        return cls(profile, allowed=profile.start)

    def legal(self) -> tuple[str, ...]:
        """Tags that the model may open now; empty while an observation is due and after the answer."""
        if self.waiting or self.done:
            return ()
        agents = self.profile.agents
        actors = [
            tag for tag in self.allowed
            if not self._lacks_thought(tag) and self.counts.get(tag, 0) < (agents[tag].max or 1 << 30)
        ]  # fmt: skip
        if self.profile.thought and not self.thought:
            return (self.profile.thought, *actors)
        return tuple(actors)

    def advance(self, step: Step) -> tuple[State, list[tuple[Rule, str]]]:
        if step.agent == OBSERVATION:
            return self._observe(step)
        agent = self.profile.agents.get(step.agent)
        if agent is None:
            return self, [(Rule.UNKNOWN_AGENT, f"<{step.agent}> is no agent of the profile {self.profile.name!r}")]
        wrong: list[tuple[Rule, str]] = []
        if step.author is not Author.MODEL:
            wrong.append((Rule.FOREIGN_AUTHOR, f"<{step.agent}> is the model's to write"))
        if self.done:
            wrong.append((Rule.AFTER_ANSWER, f"<{step.agent}> after the answer"))
        if self.waiting:
            wrong.append((Rule.MISSING_OBSERVATION, f"<{step.agent}> before {self.waiting} was answered"))
        if agent.kind is Kind.THOUGHT:
            return self.after(step.agent), wrong
        wrong += self._out_of_order(step.agent)
        if isinstance(slip := read(agent.shape, step.text), Slip):
            wrong.append((Rule.SHAPE, f"<{step.agent}>: {slip.message}"))
        passed = agent.verdict.holds(step.text) if agent.verdict is not None else None
        if agent.verdict is not None and passed is None:
            wrong.append((Rule.VERDICT_UNREADABLE, f"<{step.agent}> {agent.verdict.describe()}; none was found"))
        return self.after(step.agent, passed), wrong

    def after(self, tag: str, passed: bool | None = None) -> State:
        """The state after that agent has acted. `passed` is its verdict, if it has a readable one."""
        agent = self.profile.agents[tag]
        if agent.kind is Kind.THOUGHT:
            return self._with(thought=True)
        allowed = agent.next
        if agent.verdict is not None and passed is not None:
            allowed = (agent.verdict.passed if passed else agent.verdict.failed) or agent.next
        return State(
            profile=self.profile,
            last=tag,
            allowed=allowed,
            waiting=tag if agent.kind is Kind.TOOL else None,
            covered=agent.kind is Kind.TOOL and (self.thought or self.covered),
            counts={**self.counts, tag: self.counts.get(tag, 0) + 1},
            done=self.done or agent.kind is Kind.ANSWER,
        )

    def _observe(self, step: Step) -> tuple[State, list[tuple[Rule, str]]]:
        if step.author is Author.MODEL:
            return self, [(Rule.FORGED_OBSERVATION, "the model wrote an observation itself")]
        # The runtime may write at any time (a hint, a budget notice); only the answer of a tool is expected.
        unexpected = not self.waiting and self.done
        wrong = [(Rule.UNEXPECTED_OBSERVATION, "an observation after the answer")] if unexpected else []
        return self._with(thought=False), wrong

    def _with(self, *, thought: bool) -> State:
        """A copy with no observation due. `dataclasses.replace` is slower, and every step of every run needs this."""
        return State(self.profile, self.last, self.allowed, thought, None, self.covered, self.counts, self.done)

    def _lacks_thought(self, tag: str) -> bool:
        agent = self.profile.agents[tag]
        return agent.thought and not self.thought and not (self.covered and agent.kind is Kind.TOOL)

    def _out_of_order(self, tag: str) -> list[tuple[Rule, str]]:
        agent = self.profile.agents[tag]
        wrong: list[tuple[Rule, str]] = []
        if tag not in self.allowed and not self.done:
            where = f"after {self.last}" if self.last else "at the start"
            ignored = self.last is not None and tag in self.profile.agents[self.last].next
            rule = Rule.VERDICT_IGNORED if ignored else Rule.ORDER
            wrong.append((rule, f"<{tag}> {where}, where {' or '.join(self.allowed) or 'nothing'} may come"))
        if self._lacks_thought(tag):
            wrong.append((Rule.MISSING_THOUGHT, f"<{tag}> without a <{self.profile.thought}> before it"))
        if agent.max is not None and self.counts.get(tag, 0) >= agent.max:
            wrong.append((Rule.TOO_OFTEN, f"<{tag}> more than {agent.max} times"))
        return wrong


def check(steps: Iterable[Step], profile: Profile) -> tuple[Violation, ...]:
    """Check the steps of a run against a profile.

    Returns:
        Every rule that the steps break; empty for a well-formed run.
    """
    state = State.begin(profile)
    violations: list[Violation] = []
    count = 0
    for index, step in enumerate(steps):
        state, wrong = state.advance(step)
        violations += [Violation(index, rule, message) for rule, message in wrong]
        count = index + 1
    if state.waiting:
        violations.append(Violation(count, Rule.MISSING_OBSERVATION, f"{state.waiting} was never answered"))
    if not state.done:
        violations.append(Violation(count, Rule.NO_ANSWER, "the run ends without an answer"))
    return tuple(violations)
