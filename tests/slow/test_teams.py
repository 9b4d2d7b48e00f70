"""Real teams of every framework, run anew and recorded anew, become the training data that the captured files show."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.recorded_teams import GATEWAY, arrived, distilled, recordings, steps_of
from teams.capture import capture, frameworks

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("framework", frameworks())
def test_a_team_of_today_becomes_training_data(framework: str, tmp_path: Path) -> None:
    capture(framework, tmp_path / framework)
    made = list(recordings(tmp_path))
    assert made and made[0].way == GATEWAY
    for recording in made:
        missing = {name for name, there in arrived(recording).items() if not there}
        assert missing == set(recording.not_recorded), str(recording)
        thoughts = not {"thoughts", "reasoning"} & set(recording.not_recorded)
        assert steps_of(recording.path, thoughts) == steps_of(made[0].path, thoughts), str(recording)
        assert distilled(recording.path).answer == distilled(made[0].path).answer
