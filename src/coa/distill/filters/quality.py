"""Stage 2: how the run was done, whether the prompt gives the answer away, and whether the answer is right.

Whether the answer is right is asked last, because a judge costs money. It is judged again whatever the trace says: its
steps and its answer can come from different runs. The verdict itself comes from `coa.scoring` and is one of the
trajectory's scores; here it only decides.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import groupby
from typing import Final

from coa.distill.filters.base import QUALITY, Dropped, FilterInput, Reason, calls_of, filter_of
from coa.trajectory import OBSERVATION, Kind, RepairKind, Trajectory

NO_ANSWER: Final = Reason(
    "no_answer",
    "The team gave no answer, so there is nothing to learn from. If it did, coa distill {traces} --explain RUN shows "
    "what was read.",
)
FORGED_TAG: Final = Reason(
    "forged_tag",
    "A tool's output contains tags of the profile, as a page would that wants to act as an agent. No setting keeps "
    "such runs; in a profile of your own, agents may have other tags.",
)
REDUNDANT_CALLS: Final = Reason(
    "redundant_calls",
    "These runs repeat the same calls.",
    settings=("quality.duplicate_share=1", "quality.same_in_a_row=1000"),
)
TOOL_ERRORS: Final = Reason("tool_errors", "Too many calls of these runs failed.", settings=("quality.error_share=1",))
ENDS_IN_ERROR: Final = Reason(
    "ends_in_error", "The last call of these runs failed, so their answers rest on nothing. No setting keeps them."
)
REPETITION: Final = Reason(
    "repetition", "The agents of these runs repeat themselves.", settings=("quality.repeat_share=1",)
)
LEAKED_ANSWER: Final = Reason(
    "leaked_answer",
    "The prompts give the answer away, so there is nothing to find. No setting keeps such runs; reword the question.",
)
WRONG_ANSWER: Final = Reason(
    "wrong_answer",
    "The answers are wrong. If some are right in other words, add these to the task's `answer` in --tasks, or name a "
    "model that compares them with --judge.",
)
UNSCORED: Final = Reason(
    "unscored",
    "Nobody could judge these answers: give the right ones with --tasks, or a judge with --judge.",
    settings=("quality.unscored=keep",),
)
SCORE: Final = "answer"
"""Name of the score that `correctness` reads."""

_CUE: Final = r"(?:answer|solution|result|ground[ _-]?truth)\b[^.?!\n]{0,20}?(?:\bis\b|\bwas\b|:|=)\W{0,3}"
_ALTERNATIVES: Final = re.compile(r"\bor\b|\bbetween\b|\bwhich of\b|\bcompare|\bthan\b|(?m:^\s*\(?[A-E][).:])", re.I)
_SHORT: Final = 3
"""Answers of fewer characters, and numbers of fewer digits, occur in many questions by chance."""


@filter_of(QUALITY, NO_ANSWER)
def answered(trajectory: Trajectory, given: FilterInput) -> Dropped | None:
    if trajectory.answer is None or not trajectory.answer.strip():
        why = f": {trajectory.failure.message}" if trajectory.failure else ""
        return Dropped(NO_ANSWER, f"the run ended without an answer ({trajectory.stop.words}{why})")
    return None


@filter_of(QUALITY, FORGED_TAG)
def forged_tags(trajectory: Trajectory, given: FilterInput) -> Dropped | None:
    """Pages that try to act as an agent. Neutralised they are harmless, but nobody should learn to read from them.

    Tags of tools are let through: `<code>` is ordinary HTML.
    """
    acting = _tag_pattern(frozenset(given.profile.tags) - set(given.profile.tools))
    for index, step in enumerate(trajectory.steps):
        if step.agent != OBSERVATION:
            continue
        found = acting.search(step.text)
        if found or step.has(RepairKind.FORGED_CLOSE):
            what = found.group() if found else f"</{OBSERVATION}>"
            return Dropped(FORGED_TAG, f"step {index}: the observation contains {what}")
    return None


@lru_cache(maxsize=64)
def _tag_pattern(tags: frozenset[str]) -> re.Pattern[str]:
    return re.compile(rf"(?ai)<[ \t]{{0,2}}/?[ \t]{{0,2}}(?:{'|'.join(sorted(tags))})[ \t]{{0,2}}>")


@filter_of(QUALITY, REDUNDANT_CALLS)
def redundancy(trajectory: Trajectory, given: FilterInput) -> Dropped | None:
    made = [(call.agent, call.arguments) for call in calls_of(trajectory, given.profile)]
    longest = max((len(list(same)) for _, same in groupby(made)), default=0)
    if longest >= given.config.quality.same_in_a_row:
        return Dropped(REDUNDANT_CALLS, f"the same call {longest} times in a row")
    repeated = len(made) - len(set(made))
    if made and repeated / len(made) > given.config.quality.duplicate_share:
        return Dropped(REDUNDANT_CALLS, f"{repeated} of {len(made)} calls were made before")
    return None


@filter_of(QUALITY, TOOL_ERRORS, ENDS_IN_ERROR)
def tool_errors(trajectory: Trajectory, given: FilterInput) -> Dropped | None:
    calls = calls_of(trajectory, given.profile)
    if calls and not calls[-1].ok:
        return Dropped(ENDS_IN_ERROR, f"the last call (step {calls[-1].step}, {calls[-1].agent}) failed")
    failed = sum(not call.ok for call in calls)
    if calls and failed / len(calls) > given.config.quality.error_share:
        return Dropped(TOOL_ERRORS, f"{failed} of {len(calls)} calls failed")
    return None


@filter_of(QUALITY, REPETITION)
def repetition(trajectory: Trajectory, given: FilterInput) -> Dropped | None:
    """Repeated stretches in what the model reasons. Programs are left out: a corrected one repeats the first."""
    width, seen, total = given.config.quality.repeat_words, set[int](), 0
    for step in trajectory.steps:
        agent = given.profile.agents.get(step.agent)
        if agent is None or agent.kind not in (Kind.THOUGHT, Kind.ROLE):
            continue
        words = step.text.casefold().split()
        for start in range(len(words) - width + 1):
            seen.add(hash(tuple(words[start : start + width])))
            total += 1
    repeated = total - len(seen)
    if total and repeated / total > given.config.quality.repeat_share:
        return Dropped(REPETITION, f"{repeated} of {total} stretches of {width} words were written before")
    return None


@filter_of(QUALITY, LEAKED_ANSWER)
def leakage(trajectory: Trajectory, given: FilterInput) -> Dropped | None:
    """Prompts that give the answer away: whoever trains on them learns to copy, not to find."""
    task, question = trajectory.task, trajectory.task.question
    prompt = [message.content for message in trajectory.prompt or ()]
    # The prompt of the profile is the same for every task and contains no answer.
    around = " \n ".join(text.replace(question, " ") for text in prompt)
    everything = f"{question}\n{around}".casefold()
    for gold in filter(None, map(str.strip, task.answer)):
        if gold.casefold() not in everything:
            continue
        spelled = rf"(?<!\w){re.escape(gold)}(?!\w)"
        if re.search(_CUE + spelled, f"{question}\n{around}", re.IGNORECASE):
            return Dropped(LEAKED_ANSWER, f"the prompt says that the answer is {gold[:80]!r}")
        if len(gold) < _SHORT or gold.casefold() in ("yes", "no", "true", "false"):
            continue
        if re.search(spelled, around, re.IGNORECASE):
            return Dropped(LEAKED_ANSWER, f"the prompt around the question contains {gold[:80]!r}")
        # "Which is older, A or B?" must name its answer.
        if re.search(spelled, question, re.IGNORECASE) and not _ALTERNATIVES.search(question):
            return Dropped(LEAKED_ANSWER, f"the question contains its answer {gold[:80]!r}")
    return None


@filter_of(QUALITY, WRONG_ANSWER, UNSCORED, needs_score=True)
def correctness(trajectory: Trajectory, given: FilterInput) -> Dropped | None:
    score = trajectory.scores.get(SCORE)
    if score is None or score.value is None:
        if given.config.quality.unscored == "keep":
            return None
        return Dropped(UNSCORED, score.reason if score else "nobody has judged the answer")
    if score.value < given.config.quality.correct_from:
        return Dropped(WRONG_ANSWER, score.reason or f"scored {score.value:g}")
    return None
