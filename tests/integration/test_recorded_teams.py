"""Teams of real frameworks, recorded by the gateway and by their own tracing, become the same training data."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
import pytest

from coa.distill import DistillConfig, distill, profile_from_traces
from coa.trajectory import Trajectory
from coa.trajectory.formats.detect import read_trajectories
from support.recorded_teams import GATEWAY, Recording, arrived, recordings
from support.scripted_team import ANSWER
from teams.common import QUESTION

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
        assert _told(other.path, thoughts) == _told(first.path, thoughts), str(other)


def _told(path: Path, thoughts: bool) -> list[tuple[str, str, object]]:
    steps = distilled(path).steps
    return [(step.agent, step.text, step.meta.get("by")) for step in steps if thoughts or step.agent != "think"]


@cache
def distilled(path: Path) -> Trajectory:
    """What the documented commands make of a recording."""
    with TemporaryDirectory() as folder:
        out = Path(folder)
        (out / "mine.toml").write_text(profile_from_traces(path).toml)
        (out / "tasks.jsonl").write_bytes(orjson.dumps(_task()))
        config = DistillConfig(profile=str(out / "mine.toml"), tasks=out / "tasks.jsonl")
        report = distill(config, [path], out / "data")
        assert report.kept == 1, report.advice
        (trajectory,) = read_trajectories(report.trajectories)
        return trajectory


def _task() -> Mapping[str, str]:
    return {"id": "t1", "question": QUESTION, "answer": ANSWER}
