"""Teams of real frameworks, recorded by the gateway and by their own tracing, become the same training data."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.recorded_teams import GATEWAY, Recording, arrived, distilled, matrix, recordings, steps_of
from support.team_script import ANSWER

RECORDINGS = list(recordings())
TEAMS = sorted({recording.team for recording in RECORDINGS})


@pytest.mark.parametrize("recording", RECORDINGS, ids=str)
def test_everything_arrives_that_the_recording_holds(recording: Recording) -> None:
    missing = {name for name, there in arrived(recording).items() if not there}
    assert missing == set(recording.not_recorded)


def test_the_gateway_misses_nothing() -> None:
    assert RECORDINGS and not any(recording.not_recorded for recording in RECORDINGS if recording.way == GATEWAY)


@pytest.mark.parametrize("recording", RECORDINGS, ids=str)
def test_the_default_command_makes_training_data_of_it(recording: Recording) -> None:
    steps = [(step.agent, step.text) for step in distilled(recording.path).steps if step.agent != "think"]
    calls = [step for step in steps if step[0] in ("web_search", "calculator")]
    assert [agent for agent, _ in calls] == ["web_search", "web_search", "calculator"]
    assert steps[-1] == ("answer", ANSWER)


@pytest.mark.parametrize("team", TEAMS)
def test_all_recordings_of_a_team_give_the_same_trajectory(team: str) -> None:
    """Same agents, calls, observations and answer; thoughts too, where the framework records them."""
    first, *others = [recording for recording in RECORDINGS if recording.team == team]
    for other in others:
        thoughts = not {"thoughts", "reasoning"} & set(other.not_recorded)
        assert steps_of(other.path, thoughts) == steps_of(first.path, thoughts), str(other)


def test_the_table_in_the_documentation_is_what_arrives() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "frameworks.md").read_text()
    assert matrix() in page, "run: python scripts/team_table.py"
