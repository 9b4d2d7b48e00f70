"""Whether a run obeys the rules of the profile, with a reason and a hint for each rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from coa.distill.compose import SAME_REPLY
from coa.distill.filters.base import QUALITY, Dropped, FilterInput, Reason, filter_of
from coa.distill.splice import NOT_RECORDED
from coa.trajectory import Kind, Profile, Rule, State, Trajectory, check
from coa.trajectory.protocol import Violation

UNRECORDED_MEMBER: Final = Reason(
    "unrecorded_member",
    "A member of the team did something that the traces do not show. Record the whole team (coa record), or leave the "
    'member out with --roles and a line NAME = "drop" under [agents].',
)
INEXPRESSIBLE: Final = Reason(
    "inexpressible",
    "Programs of the team use what a tool or a member returned, and the traces do not show it or it is too long to "
    "copy. No setting keeps such runs: record with coa teach, which sees what tools return, or let the agents call "
    "tools directly instead of from code.",
)
_FITTING: Final = "coa profile from-traces {traces} > mine.toml makes a profile that fits this team."
_RULES: Final = {
    Rule.UNKNOWN_AGENT: "The profile has no agent for a tool of the team. " + _FITTING
    + " Or map the tool to one of the profile's with --roles.",
    Rule.FORGED_OBSERVATION: "The model wrote results of tools itself. No run should teach that.",
    Rule.SHAPE: "The arguments of a tool do not have the form that the profile gives it. " + _FITTING,
    Rule.ORDER: "The agents act in another order than the profile allows. " + _FITTING
    + " Steps that the traces lack can be written with --fill.",
    Rule.VERDICT_IGNORED: "The team went on in a way that the verdict before does not allow. " + _FITTING,
    Rule.TOO_OFTEN: "An agent acts more often than the profile allows. " + _FITTING,
    Rule.VERDICT_UNREADABLE: "A check or a reflection has no verdict that can be read. " + _FITTING,
    Rule.MISSING_OBSERVATION: "The traces do not show what a call returned. coa record records it.",
    Rule.FOREIGN_AUTHOR: "The rows say that the environment wrote what only the model may write.",
    Rule.UNEXPECTED_OBSERVATION: "There is an observation after the answer.",
    Rule.AFTER_ANSWER: "The run goes on after its answer.",
    Rule.MISSING_THOUGHT: "The traces have no thought where the profile requires one. --fill MODEL writes them. "
    + _FITTING,
}  # fmt: skip
_NEVER: Final = frozenset({Rule.UNKNOWN_AGENT, Rule.FORGED_OBSERVATION})
"""Rules that no setting should be recommended against: runs that break them teach what cannot be used."""
VIOLATIONS: Final[Mapping[Rule, Reason]] = {
    rule: Reason(rule.value, hint, settings=() if rule in _NEVER else (f'quality.tolerated=["{rule.value}"]',))
    for rule, hint in _RULES.items()
}
"""The most fundamental rule first: it names the reason where a run breaks several."""
MISFIT: Final = frozenset(
    {Rule.UNKNOWN_AGENT, Rule.SHAPE, Rule.ORDER, Rule.VERDICT_IGNORED, Rule.TOO_OFTEN, Rule.MISSING_THOUGHT}
)
"""Rules that a run breaks because the profile was made for another kind of team."""


@filter_of(QUALITY, *VIOLATIONS.values(), UNRECORDED_MEMBER, INEXPRESSIBLE)
def violations(trajectory: Trajectory, given: FilterInput) -> Dropped | None:
    """What the rules of the profile forbid, including missing steps that the trace had no text for."""
    problems = trajectory.meta.get("problems")
    if isinstance(problems, list | tuple) and problems:
        unrecorded = [str(problem) for problem in problems if str(problem).endswith(NOT_RECORDED)]
        return Dropped(UNRECORDED_MEMBER, unrecorded[0]) if unrecorded else Dropped(INEXPRESSIBLE, str(problems[0]))
    found = [one for one in broken_rules(trajectory, given.profile) if one.rule not in given.config.quality.tolerated]
    if not found:
        return None
    order = list(VIOLATIONS)
    first = min(found, key=lambda one: (order.index(one.rule), one.step))
    others = Counter(one.rule.value for one in found if one is not first)
    more = f" (and {', '.join(f'{count} {rule}' for rule, count in sorted(others.items()))})" if others else ""
    return Dropped(VIOLATIONS[first.rule], f"{first.rule} at step {first.step}: {first.message}{more}")


def broken_rules(trajectory: Trajectory, profile: Profile) -> list[Violation]:
    """The rules that a trajectory breaks. Calls in a row share a thought only if the team made them in one reply.

    The protocol lets any calls in a row share one, because a model at work has no replies; but a team that did not say
    why it made a call teaches a student to act without a thought. A run without an answer is counted under that name.
    """
    found = [violation for violation in check(trajectory.steps, profile) if violation.rule is not Rule.NO_ANSWER]
    lacking = {violation.step for violation in found if violation.rule is Rule.MISSING_THOUGHT}
    state = State.begin(profile)
    for index, step in enumerate(trajectory.steps):
        agent = profile.agents.get(step.agent)
        needs = agent is not None and agent.kind is Kind.TOOL and agent.thought and not state.thought
        if needs and index not in lacking and not step.meta.get(SAME_REPLY):
            message = f"<{step.agent}> without a <{profile.thought}> before it"
            found.append(Violation(index, Rule.MISSING_THOUGHT, message))
        state, _ = state.advance(step)
    return found
