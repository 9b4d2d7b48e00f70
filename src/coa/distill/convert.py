"""One team run -> one trajectory under a profile, with a record of how."""

from __future__ import annotations

from pathlib import PurePath

from pydantic import JsonValue

from coa.distill.compose import compose
from coa.distill.roles import RoleMap, Roles
from coa.distill.splice import splice
from coa.distill.team_run import TeamRun
from coa.trajectory import Profile, Stop, Trajectory


def convert(team_run: TeamRun, profile: Profile, roles: RoleMap | None = None) -> Trajectory:
    """Never refuses: what could not be expressed stands in the meta, and the filters decide."""
    assigned = Roles(roles or RoleMap())
    composed = compose(splice(team_run, assigned), profile, assigned)
    answered = any(step.agent == "answer" for step in composed.steps)
    stop = team_run.stop
    if stop is Stop.ANSWERED and not answered:
        stop = Stop.UNANSWERED
    spent = team_run.usage
    return Trajectory(
        task=team_run.task,
        profile=profile.name,
        profile_hash=profile.hash,
        steps=composed.steps,
        stop=stop,
        failure=team_run.failure if stop is Stop.FAILED else None,
        meta={
            "source": _source(team_run),
            "roles": {name: f"{made.role} by {made.by}" for name, made in sorted(assigned.decided.items())},
            "problems": list(composed.problems),
            "left_out": len(team_run.left_out),
            "team": {
                "prompt_tokens": spent.prompt_tokens,
                "completion_tokens": spent.completion_tokens,
                "model_calls": spent.model_calls,
                "tool_calls": spent.tool_calls,
                "unmetered_calls": team_run.unmetered_calls,
            },
        },
    )


def _source(team_run: TeamRun) -> dict[str, JsonValue]:
    """Where it came from, without folders: those are of this machine, and data sets are shared."""
    source = team_run.source.model_dump(mode="json", exclude_defaults=True)
    return {**source, "file": PurePath(team_run.source.file).name}
