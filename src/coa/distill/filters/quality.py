"""Stage 2: how the run was done. Whether its answer is right is asked last, in `correctness`, because that costs."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import groupby

from coa.distill.config import DistillConfig
from coa.distill.filters.base import Dropped, Reason, calls_of
from coa.trajectory import OBSERVATION, Kind, Profile, RepairKind, Rule, Trajectory, check


def answered(trajectory: Trajectory, profile: Profile, config: DistillConfig) -> Dropped | None:
    if trajectory.answer is None or not trajectory.answer.strip():
        why = f": {trajectory.failure.message}" if trajectory.failure else ""
        return Dropped(Reason.NO_ANSWER, f"the run ended without an answer ({trajectory.stop}{why})")
    return None


def forged_tags(trajectory: Trajectory, profile: Profile, config: DistillConfig) -> Dropped | None:
    """Pages that try to act as an agent. They are harmless once neutralised, but nothing to learn reading from.

    Tags of tools are let through: `<code>` is ordinary HTML.
    """
    for index, step in enumerate(trajectory.steps):
        if step.agent != OBSERVATION:
            continue
        found = _acting(profile).search(step.text)
        if found or step.has(RepairKind.FORGED_CLOSE):
            what = found.group() if found else f"</{OBSERVATION}>"
            return Dropped(Reason.FORGED_TAG, f"step {index}: the observation contains {what}")
    return None


def _acting(profile: Profile) -> re.Pattern[str]:
    tools = set(profile.tools)
    return _tag_pattern(frozenset(tag for tag in profile.tags if tag not in tools))


@lru_cache(maxsize=64)
def _tag_pattern(tags: frozenset[str]) -> re.Pattern[str]:
    return re.compile(rf"(?ai)<[ \t]{{0,2}}/?[ \t]{{0,2}}(?:{'|'.join(sorted(tags))})[ \t]{{0,2}}>")


def violations(trajectory: Trajectory, profile: Profile, config: DistillConfig) -> Dropped | None:
    """What the profile's own rules forbid, steps that were needed and had no text included."""
    # A run without an answer is counted under that name, not as a violation.
    tolerated = {*config.quality.tolerated, Rule.NO_ANSWER}
    found = [violation for violation in check(trajectory.steps, profile) if violation.rule not in tolerated]
    problems = trajectory.meta.get("problems")
    if isinstance(problems, list | tuple) and problems:
        return Dropped(Reason.INEXPRESSIBLE, str(problems[0]))
    if not found:
        return None
    first, more = found[0], f" and {len(found) - 1} more" if len(found) > 1 else ""
    return Dropped(Reason.VIOLATION, f"{first.rule} at step {first.step}: {first.message}{more}")


def redundancy(trajectory: Trajectory, profile: Profile, config: DistillConfig) -> Dropped | None:
    made = [(call.agent, call.arguments) for call in calls_of(trajectory, profile)]
    longest = max((len(list(same)) for _, same in groupby(made)), default=0)
    if longest >= config.quality.same_in_a_row:
        return Dropped(Reason.REDUNDANT_CALLS, f"the same call {longest} times in a row")
    repeated = len(made) - len(set(made))
    if made and repeated / len(made) > config.quality.duplicate_share:
        return Dropped(Reason.REDUNDANT_CALLS, f"{repeated} of {len(made)} calls were made before")
    return None


def tool_errors(trajectory: Trajectory, profile: Profile, config: DistillConfig) -> Dropped | None:
    calls = calls_of(trajectory, profile)
    if calls and not calls[-1].ok:
        return Dropped(Reason.ENDS_IN_ERROR, f"the last call (step {calls[-1].step}, {calls[-1].agent}) failed")
    failed = sum(not call.ok for call in calls)
    if calls and failed / len(calls) > config.quality.error_share:
        return Dropped(Reason.TOOL_ERRORS, f"{failed} of {len(calls)} calls failed")
    return None


def repetition(trajectory: Trajectory, profile: Profile, config: DistillConfig) -> Dropped | None:
    """Repeated stretches in what the model reasons. Programs are left out: mending one repeats most of it."""
    width, seen, total = config.quality.repeat_words, set[int](), 0
    for step in trajectory.steps:
        agent = profile.agents.get(step.agent)
        if agent is None or agent.kind not in (Kind.THOUGHT, Kind.ROLE):
            continue
        words = step.text.casefold().split()
        for start in range(len(words) - width + 1):
            seen.add(hash(tuple(words[start : start + width])))
            total += 1
    repeated = total - len(seen)
    if total and repeated / total > config.quality.repeat_share:
        return Dropped(Reason.REPETITION, f"{repeated} of {total} stretches of {width} words were written before")
    return None
