"""Real captures of a two-agent team, imported and converted, where they are at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from coa.distill.convert import convert
from coa.distill.importers.detect import read_traces
from coa.distill.team_run import TeamRun
from coa.trajectory import Trajectory, check, load_profile

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the captures are not here")
ALL = load_profile("all")


def converted(name: str) -> Trajectory:
    (run,) = read_traces([TRACES / name])
    assert isinstance(run, TeamRun)
    return convert(run, ALL)


@pytest.mark.parametrize("name", ["smolagents_memory.json", "smolagents_openinference_spans.json"])
def test_the_whole_team_is_told_in_order(name: str) -> None:
    run = converted(name)
    told = [(step.agent, step.text.strip()) for step in run.steps]
    order = [
        ("think", "I delegate the look-up."),
        ("web_search", "tower height"),
        ("crawl_page", "http://bad.org"),
        ("think", "The site failed; try another."),
        ("crawl_page", "http://ex.org/a"),
        ("observation", "Page http://ex.org/a: the tower is 330 m tall."),
        ("code", "```py\nh = undefined_name * 3.28\n```"),
        ("web_search", "tower height verify"),
        ("code", "```py\nh = 330 * 3.28\nprint(round(h))\n```"),
        ("observation", "1082"),
        ("answer", "1082"),
    ]
    places = [told.index(step) for step in order]
    assert places == sorted(places)
    whole = "\n".join(text for _, text in told)
    assert "managed agent" not in whole and "helpful agent named" not in whole


def test_what_the_team_did_not_say_stays_visible() -> None:
    rules = {violation.rule for violation in check(converted("smolagents_memory.json").steps, ALL)}
    # Nobody verified the answer, and two searches were sent at once.
    assert rules <= {"order", "missing_thought"} and "order" in rules
