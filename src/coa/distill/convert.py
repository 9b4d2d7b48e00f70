"""One team run -> one trajectory of a profile, with a record of how it was converted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from pydantic import JsonValue

from coa.distill.compose import Rewriting, compose
from coa.distill.handovers import HandoverOutcome, handovers_of
from coa.distill.roles import RoleMap, Roles
from coa.distill.splice import splice
from coa.distill.team_run import TeamRun
from coa.trajectory import Profile, Stop, Trajectory


@dataclass(frozen=True, slots=True)
class Conversion:
    trajectory: Trajectory
    rewritings: tuple[Rewriting, ...]
    """What became of every thought, call and result, in the order of the team run."""


def convert(team_run: TeamRun, profile: Profile, roles: RoleMap | None = None) -> Trajectory:
    """Never fails: what the profile cannot express is listed in the meta, and the filters decide."""
    return convert_with_reasons(team_run, profile, roles).trajectory


def convert_with_reasons(team_run: TeamRun, profile: Profile, roles: RoleMap | None = None) -> Conversion:
    """The same, with the reasons. They are many, so trajectories do not keep them."""
    assigned = Roles(roles or RoleMap())
    composed = compose(splice(team_run, assigned), profile, assigned)
    answered = any(step.agent == "answer" for step in composed.steps)
    stop = Stop.UNANSWERED if team_run.stop is Stop.ANSWERED and not answered else team_run.stop
    spent = team_run.usage
    counts = {
        name: getattr(spent, name) for name in ("prompt_tokens", "completion_tokens", "model_calls", "tool_calls")
    }
    # Where it came from, without folders: data sets are shared, and folders belong to this machine.
    source = team_run.source.model_dump(mode="json", exclude_defaults=True)
    meta: dict[str, JsonValue] = {
        "source": {**source, "file": PurePath(team_run.source.file).name},
        "roles": {name: f"{made.role} by {made.by}" for name, made in sorted(assigned.decided.items())},
        "problems": list(composed.problems),
        "left_out": len(team_run.left_out),
        "team": {**counts, "unmetered_calls": team_run.unmetered_calls},
    }
    if failed := [str(one) for one in handovers_of(team_run.root) if one.outcome is HandoverOutcome.FAILED]:
        meta["failed_handovers"] = list[JsonValue](failed)
    inferred = team_run.meta.get("inferred")
    if isinstance(inferred, dict):
        meta["inferred"] = {name: value for name, value in inferred.items() if isinstance(value, int)}
    trajectory = Trajectory(
        task=team_run.task, profile=profile.name, profile_hash=profile.hash, steps=composed.steps, stop=stop,
        failure=team_run.failure if stop is Stop.FAILED else None, meta=meta,
    )  # fmt: skip
    return Conversion(trajectory, composed.rewritings)
