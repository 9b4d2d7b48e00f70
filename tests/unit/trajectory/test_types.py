"""The records: frozen, exact in JSON, and clear about what they refuse."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from pydantic import ValidationError

from coa.errors import SchemaVersionError
from coa.trajectory import (
    Failure,
    FailureSite,
    Step,
    Stop,
    Task,
    Tokens,
    Trajectory,
    Usage,
)
from support.builders import make_trajectory, web_run
from support.strategies import trajectories


@given(trajectories)
def test_json_round_trip_is_exact(trajectory: Trajectory) -> None:
    assert Trajectory.from_json(trajectory.to_json()) == trajectory
    assert Trajectory.from_json(trajectory.to_json()).to_json() == trajectory.to_json()
    assert "\n" not in trajectory.to_json()


@given(trajectories)
def test_pickle_round_trip_is_exact(trajectory: Trajectory) -> None:
    assert pickle.loads(pickle.dumps(trajectory)) == trajectory


@pytest.mark.parametrize("version", [0, 3, 99, "1", None, 1.5])
def test_unknown_schema_versions_are_refused(version: object) -> None:
    data = web_run().model_dump(mode="json") | {"schema_version": version}
    with pytest.raises(SchemaVersionError, match="schema version"):
        Trajectory.model_validate(data)


def test_a_newer_version_names_the_fix() -> None:
    line = web_run().to_json().replace('"schema_version":2', '"schema_version":3')
    with pytest.raises(SchemaVersionError, match="pip install --upgrade"):
        Trajectory.from_json(line)


def test_records_are_frozen_down_to_their_mappings() -> None:
    trajectory = web_run(meta={"a": 1})
    with pytest.raises(ValidationError):
        trajectory.stop = Stop.TIME  # type: ignore[misc]
    with pytest.raises(TypeError, match="frozen"):
        trajectory.meta["a"] = 2  # type: ignore[index]
    with pytest.raises(TypeError, match="frozen"):
        trajectory.scores.update(exact=1)  # type: ignore[attr-defined]


def test_unknown_fields_and_nan_are_refused() -> None:
    with pytest.raises(ValidationError):
        Step(agent="think", text="", colour="red")  # type: ignore[call-arg]
    with pytest.raises(ValidationError):
        Tokens(ids=(1,), logprobs=(float("nan"),))
    with pytest.raises(ValidationError):
        Tokens(ids=(1, 2), logprobs=(0.0,))


@pytest.mark.parametrize(
    ("given_answer", "kept"),
    [("x", ("x",)), (42, ("42",)), (["a", "b"], ("a", "b")), ([1, "b"], ("1", "b")), (None, ()), (1.5, ("1.5",))],
)
def test_an_answer_may_be_written_in_any_common_way(given_answer: object, kept: tuple[str, ...]) -> None:
    assert Task(id="1", question="q", answer=given_answer).answer == kept


def test_a_score_is_added_to_a_copy_and_unscored_is_not_zero() -> None:
    trajectory = web_run()
    scored = trajectory.scored("exact", 1.0).scored("judge", None, "time-out")
    assert not trajectory.scores
    assert scored.scores["exact"].value == 1.0
    assert scored.scores["judge"].value is None and scored.scores["judge"].reason == "time-out"
    assert Trajectory.from_json(scored.to_json()) == scored


def test_a_failure_is_told_exactly_when_the_run_failed() -> None:
    failure = Failure(site=FailureSite.TOOL, message="boom")
    assert make_trajectory(stop=Stop.FAILED, failure=failure).failure == failure
    with pytest.raises(ValidationError, match="if, and only if"):
        make_trajectory(stop=Stop.FAILED)
    with pytest.raises(ValidationError, match="if, and only if"):
        make_trajectory(failure=failure)


def test_the_answer_is_the_last_answer_step() -> None:
    assert web_run().answer == "Ada"
    assert make_trajectory(("answer", "x"), ("answer", "y")).answer == "y"
    assert make_trajectory(("think", "x")).answer is None


def test_usage_adds_up() -> None:
    one = Usage(prompt_tokens=10, completion_tokens=2, cached_tokens=4, model_calls=1, tool_calls=1, seconds=0.5)
    total = Usage.sum([one, one, Usage()])
    assert total == Usage(
        prompt_tokens=20, completion_tokens=4, cached_tokens=8, model_calls=2, tool_calls=2, seconds=1.0
    )
    assert total.total_tokens == 24
