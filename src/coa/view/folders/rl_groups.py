"""The groups of one step of reinforcement learning: what each attempt was worth, why, and what was cut from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypedDict

import orjson
from pydantic import ValidationError

from coa.errors import CoaError
from coa.folder import read_config
from coa.report import plural
from coa.training.run_folder import METRICS
from coa.trajectory import Author, RepairKind, Stop, Trajectory, profile_of
from coa.trajectory.identity import run_id
from coa.trajectory.shorten import omitted
from coa.view.folders.families import group_files
from coa.view.folders.files import Cache, Row, mapping, number, read_metrics, stamp
from coa.view.folders.metric_panels import STEP_LINK, values_of
from coa.view.folders.parts import Fact, fact
from coa.view.rows import outcome_of
from coa.web.plots import LinePlot, Series, line_plot, said
from coa.web.timeline import AgentView, profile_view

_SHOWN: Final = 600
_LONGEST_RIBBON: Final = 80
_ALIKE: Final = 1e-9
_UNKNOWN: Final = AgentView(title="", kind="role", hue="gray", does="")


_FIGURES: Final = (
    ("reward", "Mean reward", ""),
    ("entropy", "Entropy", ""),
    ("grad_norm", "Gradient norm", ""),
    ("clip_fraction", "Clip fraction", "of tokens"),
    ("model_tokens", "Tokens", "per attempt"),
)


class Term(TypedDict):
    """A part of the reward."""

    name: str
    value: float
    note: str


class RibbonPiece(TypedDict):
    agent: str
    hue: str
    kind: str
    size: int
    """Tokens that the agent wrote, or a fourth of its characters where none were kept."""


class AttemptView(TypedDict):
    id: str
    sample: int
    outcome: str
    score: float | None
    reason: str
    """The scorer's."""
    terms: list[Term]
    reward: float | None
    advantage: float | None
    learnt: bool
    tokens: int
    """That the model wrote."""
    tool_calls: int
    tool_errors: int
    seconds: float
    stop: str
    words: str
    """Why it ended, for people."""
    cuts: list[str]
    answer: str | None
    ribbon: list[RibbonPiece]
    steps: int


class GroupView(TypedDict):
    number: int
    task: str
    question: str
    expected: list[str]
    family: str
    sampled: int
    """The step in which it was sampled."""
    learnt: bool
    why: str
    """Why it was not learnt from, or where it comes from; empty if there is nothing to say."""
    missing: int
    """Attempts that failed or could not be scored, which are not kept."""
    mean: float | None
    spread: float | None
    """Standard deviation of the rewards."""
    attempts: list[AttemptView]


class StepView(TypedDict):
    step: int
    previous: int | None
    next: int | None
    first: int
    last: int
    facts: list[Fact]
    curve: LinePlot | None
    at: float | None
    """Place of this step on the curve, from 0 to 1."""
    groups: list[GroupView]
    problems: list[str]


_steps: Cache[tuple[list[GroupView], list[str]]] = Cache(16)
_curves: Cache[LinePlot | None] = Cache(16)


def rl_step(path: Path, step: int) -> StepView | None:
    """The groups of a step; None if the run has not kept any of that step."""
    files = group_files(path)
    if step not in files:
        return None
    steps = list(files)
    place = steps.index(step)
    config = mapping((read_config(path) or {}).get("config"))
    groups, problems = _steps.get(
        files[step], (stamp(files[step]), repr(config.get("reward"))), lambda: _groups(files[step], step, config)
    )
    rows, _ = read_metrics(path / METRICS)
    curve = _curves.get(path, stamp(path / METRICS), lambda: _curve(rows))
    known = [row["step"] for row in rows if number(row.get("reward")) is not None]
    at = (step - known[0]) / (known[-1] - known[0]) if len(known) > 1 and known[0] <= step <= known[-1] else None
    return StepView(
        step=step,
        previous=steps[place - 1] if place else None,
        next=steps[place + 1] if place + 1 < len(steps) else None,
        first=steps[0],
        last=steps[-1],
        facts=_facts(next((row for row in rows if row["step"] == step), {}), groups),
        curve=curve,
        at=at,
        groups=groups,
        problems=problems,
    )


def _curve(rows: Sequence[Row]) -> LinePlot | None:
    series = [Series(name, values_of(rows, name), STEP_LINK) for name in ("reward", "success")]
    return line_plot("Reward and success", series, bottom=0.0)


def _facts(row: Row, groups: Sequence[GroupView]) -> list[Fact]:
    attempts = [attempt for group in groups for attempt in group["attempts"]]
    learnt = sum(group["learnt"] for group in groups)
    right = sum(attempt["outcome"] == "right" for attempt in attempts)
    found = [
        fact("Groups", f"{learnt:,} of {len(groups):,}", "learnt from"),
        fact("Attempts right", f"{right:,} of {len(attempts):,}", f"{right / len(attempts):.1%}" if attempts else ""),
    ]
    for name, words, note in _FIGURES:
        if (value := number(row.get(name))) is not None:
            found.append(fact(words, said(value, "share" if name == "clip_fraction" else "number"), note))
    return found


# ---- groups


def _groups(file: Path, step: int, config: Mapping[str, Any]) -> tuple[list[GroupView], list[str]]:
    found: dict[int, list[tuple[Trajectory, AttemptView, Row]]] = {}
    problems: list[str] = []
    damaged = 0
    try:
        data = file.read_bytes()
    except OSError as error:
        return [], [f"{file.name} cannot be read: {error.strerror}."]
    for place, line in enumerate(line for line in data.split(b"\n") if line.strip()):
        try:
            row = orjson.loads(line)
            sampled = _without_tokens(row)
            trajectory = Trajectory.model_validate(row)
        except (ValueError, TypeError, AttributeError, ValidationError, CoaError):
            damaged += 1
            continue
        rl = mapping(trajectory.meta.get("rl"))
        attempt = _attempt(trajectory, run_id(file, place), sampled, rl, config)
        found.setdefault(int(number(rl.get("group")) or 0), []).append((trajectory, attempt, rl))
    if damaged:
        problems.append(f"{file.name}: {plural(damaged, 'damaged record')} left out.")
    return [_group(at, members, step, config) for at, members in sorted(found.items())], problems


def _without_tokens(row: Any) -> list[int]:
    """Takes the ids out of a record, which take most of the time to validate; how many each step had."""
    counts = []
    for item in row["steps"]:
        tokens = item.pop("tokens", None)
        counts.append(len(tokens["ids"]) if isinstance(tokens, dict) else 0)
    return counts


def _group(
    place: int, members: Sequence[tuple[Trajectory, AttemptView, Row]], step: int, config: Mapping[str, Any]
) -> GroupView:
    task, rl = members[0][0].task, members[0][2]
    attempts = [attempt for _, attempt, _ in members]
    rewards = [attempt["reward"] for attempt in attempts if attempt["reward"] is not None]
    mean = sum(rewards) / len(rewards) if rewards else None
    spread = None if mean is None else (sum((value - mean) ** 2 for value in rewards) / len(rewards)) ** 0.5
    sampled, learnt = int(number(rl.get("step")) or step), any(attempt["learnt"] for attempt in attempts)
    wanted = int(number(config.get("num_generations")) or 0)
    family = task.meta.get(str(config.get("family_key") or "family"))
    return GroupView(
        number=place,
        task=task.id,
        question=task.question[:_SHOWN],
        expected=[answer[:_SHOWN] for answer in task.answer[:5]],
        family=str(family) if isinstance(family, str | int | float) else "",
        sampled=sampled,
        learnt=learnt,
        why=_why(members, sampled, step) if not learnt or sampled != step else "",
        missing=max(wanted - len(attempts), 0),
        mean=mean,
        spread=spread,
        attempts=attempts,
    )


def _why(members: Sequence[tuple[Trajectory, AttemptView, Row]], sampled: int, step: int) -> str:
    earlier = f"Sampled in step {sampled:,} and kept as surplus until now." if sampled != step else ""
    if any(attempt["learnt"] for _, attempt, _ in members):
        return earlier
    if len(members) < 2:
        return "Not learnt from: there is nothing to compare a single attempt with."
    rewards = [attempt["reward"] or 0.0 for _, attempt, _ in members]
    counted = [_score(trajectory, "counted") or 0.0 for trajectory, _, _ in members]
    if max(rewards) - min(rewards) < _ALIKE:
        same = "right" if min(counted) >= 1 else "wrong" if max(counted) <= 0 else "worth the same"
        return f"Not learnt from, no contrast: all attempts are {same}, so every advantage is zero."
    if max(counted) - min(counted) < _ALIKE:
        return "Not learnt from, no contrast: only small terms of the reward differ, not the score."
    return "Not learnt from in this step, surplus: it is kept for the next steps."


# ---- attempts


def _attempt(
    trajectory: Trajectory, uid: str, sampled: Sequence[int], rl: Row, config: Mapping[str, Any]
) -> AttemptView:
    score, answer = _score(trajectory, "success"), trajectory.answer
    reward = number(rl.get("reward"))
    terms = reward_terms(trajectory, reward, config)
    success = trajectory.scores.get("success")
    return AttemptView(
        id=uid,
        sample=trajectory.sample,
        outcome=outcome_of(score, answer, trajectory.stop.value),
        score=score,
        reason=success.reason[:_SHOWN] if success is not None else "",
        terms=terms,
        reward=reward,
        advantage=number(rl.get("advantage")),
        learnt=rl.get("learnt") is True,
        tokens=sum(sampled) or trajectory.usage.completion_tokens,
        tool_calls=trajectory.usage.tool_calls,
        tool_errors=sum(step.meta.get("ok") is False for step in trajectory.steps),
        seconds=trajectory.usage.seconds,
        stop=trajectory.stop.value,
        words=trajectory.stop.words,
        cuts=cuts_of(trajectory, terms),
        answer=None if answer is None else answer[:_SHOWN],
        ribbon=_ribbon(trajectory, sampled),
        steps=len(trajectory.steps),
    )


def reward_terms(trajectory: Trajectory, reward: float | None, config: Mapping[str, Any]) -> list[Term]:
    """What the reward consists of. What the settings do not explain is overlong shaping, or the KL in the reward."""
    weights, counted = mapping(config.get("reward")), _score(trajectory, "counted")
    if counted is None or reward is None:
        return []
    noted = trajectory.scores["counted"].reason
    if weights.get("function"):
        terms = [Term(name="reward function", value=counted, note=noted)]
    else:
        terms = [Term(name="score", value=counted, note=noted)]
        formed = number(weights.get("format_weight")) or 0.0
        calls = (number(weights.get("tool_call_weight")) or 0.0) * trajectory.usage.tool_calls
        if formed:
            terms.append(Term(name="format", value=0.0 if noted else formed, note=noted))
        if calls:
            terms.append(Term(name="tool calls", value=calls, note=plural(trajectory.usage.tool_calls, "call")))
    rest = reward - sum(term["value"] for term in terms)
    if abs(rest) > 1e-6:
        name = "KL and overlong shaping" if config.get("use_kl_in_reward") else "overlong shaping"
        terms.append(Term(name=name, value=rest, note=""))
    return terms


def cuts_of(trajectory: Trajectory, terms: Sequence[Term] = ()) -> list[str]:
    """What ended the attempt early, was thrown away, or was shortened."""
    found = []
    if trajectory.stop is not Stop.ANSWERED:
        found.append(trajectory.stop.words)
    if trajectory.failure is not None:
        found.append(f"in the {trajectory.failure.site.value}: {trajectory.failure.message[:_SHOWN]}")
    discarded = [repair for repair in trajectory.repairs if repair.kind is RepairKind.DISCARDED]
    if discarded:
        found.append(f"{plural(len(discarded), 'text')} written behind a tool call discarded")
    others = sorted({repair.kind.value.replace("_", " ") for repair in trajectory.repairs} - {"discarded"})
    if others:
        found.append(f"format repaired: {', '.join(others)}")
    lost = [gone for step in trajectory.steps if step.author is Author.ENVIRONMENT and (gone := omitted(step.text))]
    if lost:
        found.append(f"{plural(len(lost), 'observation')} shortened by {plural(sum(lost), 'character')}")
    if any(step.meta.get("concluding") for step in trajectory.steps):
        found.append("made to answer when the budget ran out")
    found += [f"overlong: {term['value']:+.3g} reward" for term in terms if term["name"] == "overlong shaping"]
    return found


def _ribbon(trajectory: Trajectory, sampled: Sequence[int]) -> list[RibbonPiece]:
    try:
        agents = profile_view(profile_of(trajectory))["agents"]
    except CoaError:  # a profile that this machine does not have
        agents = {}
    pieces = []
    for step, count in zip(trajectory.steps, sampled, strict=True):
        if step.author is Author.MODEL:
            agent = agents.get(step.agent, _UNKNOWN)
            size = count or max(len(step.text) // 4, 1)
            pieces.append(
                RibbonPiece(agent=agent["title"] or step.agent, hue=agent["hue"], kind=agent["kind"], size=size)
            )
    return pieces[:_LONGEST_RIBBON]


def _score(trajectory: Trajectory, name: str) -> float | None:
    score = trajectory.scores.get(name)
    return None if score is None else score.value
