"""Whatever a team did, conversion ends in a trajectory that can be written, read and checked."""

from __future__ import annotations

import pytest
from hypothesis import given

from coa.distill.config import DistillConfig
from coa.distill.convert import convert
from coa.distill.fill import gaps
from coa.distill.filters import FILTERS
from coa.distill.filters.base import FilterInput
from coa.distill.team_run import TeamRun
from coa.trajectory import OBSERVATION, Author, Trajectory, load_profile, parse, render
from support.team_runs import team_runs


@pytest.mark.parametrize("name", ["web", "code", "nano"])
@given(run=team_runs())
def test_any_run_becomes_a_trajectory(name: str, run: TeamRun) -> None:
    profile = load_profile(name)
    converted = convert(run, profile)
    assert Trajectory.from_json(converted.to_json()) == converted
    assert all((step.agent == OBSERVATION) is (step.author is Author.ENVIRONMENT) for step in converted.steps)
    assert convert(run, profile) == converted
    known = [step for step in converted.steps if step.agent in profile.tags]
    again = parse(render(known, profile), profile)
    assert [(step.agent, step.author) for step in again] == [(step.agent, step.author) for step in known]
    gaps(converted.steps, profile)
    for each in FILTERS:
        each(converted, FilterInput(profile, DistillConfig()))
