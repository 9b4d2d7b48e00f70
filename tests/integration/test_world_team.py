"""The world's teacher: a real smolagents team, recorded live, that errs, notices, and becomes short trajectories."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coa.cli import app
from coa.config import load_config
from coa.distill.config import DistillConfig
from coa.distill.convert import convert
from coa.distill.importers.detect import read_traces
from coa.distill.recorder import record
from coa.distill.teaching.pool import run_team
from coa.distill.teaching.team import Team
from coa.distill.team_run import TeamRun
from coa.errors import WorldError
from coa.models.tokenizer import load_tokenizer
from coa.tools.registry import open_tools
from coa.trajectory import Profile, Step, Trajectory, check, load_profile
from coa.trajectory.codec import parse, render
from coa.trajectory.store import read as read_kept
from coa.worlds import open_world
from coa.worlds.atlas import Atlas
from coa.worlds.atlas.entities import Split
from coa.worlds.folder import read
from coa.worlds.team import FACTORY
from coa.worlds.team.agents import build
from coa.worlds.team.brain import Brain
from coa.worlds.team.play import play
from coa.worlds.team.tools import workshop
from support.worlds import small_world

ERRORS = 0.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = small_world(tmp_path_factory.mktemp("worlds") / "atlas")
    yield made
    if workshop.cache_info().currsize:
        workshop(str(made)).close()
        workshop.cache_clear()


@pytest.fixture(scope="module")
def atlas(folder: Path) -> Atlas:
    return read(folder).atlas()


@pytest.fixture(scope="module")
def taught(folder: Path, atlas: Atlas, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of all training tasks, by an expert that errs often."""
    out = tmp_path_factory.mktemp("traces")
    done = run_team(atlas.tasks(Split.TRAIN), _team(folder), out, jobs=2)
    assert (done.answered, done.failed, done.refused) == (len(atlas.tasks(Split.TRAIN)), 0, 0)
    return out


def _team(folder: Path, seed: int = 1) -> Team:
    arguments = (("world", str(folder)), ("seed", seed), ("errors", ERRORS))
    return Team(FACTORY, arguments=arguments, timeless=True)


def _converted(traces: Path, profile: Profile) -> list[tuple[TeamRun, Trajectory]]:
    runs = [run for run in read_traces([traces]) if isinstance(run, TeamRun)]
    return [(run, convert(run, profile)) for run in runs]


def _right(run: Trajectory) -> bool:
    return run.answer == run.task.answer[0]


def test_the_same_seed_teaches_the_same_byte_for_byte(folder: Path, atlas: Atlas, taught: Path, tmp_path: Path) -> None:
    few = atlas.tasks(Split.TRAIN)[:4]
    run_team(few, _team(folder), tmp_path / "again", jobs=1)
    run_team(few, _team(folder, seed=2), tmp_path / "other", jobs=2)
    for task in few:
        name = f"{task.id}.atif.json"
        assert (tmp_path / "again" / name).read_bytes() == (taught / name).read_bytes()
    other = [(tmp_path / "other" / f"{task.id}.atif.json").read_bytes() for task in few]
    differ = [
        one for one, task in zip(other, few, strict=True) if one != (taught / f"{task.id}.atif.json").read_bytes()
    ]
    assert differ


@pytest.mark.parametrize("name", ["atlas", "nano"])
def test_nearly_all_that_is_right_is_legal_and_short(taught: Path, name: str) -> None:
    profile, tokenizer = load_profile(name), load_tokenizer("smollm2")
    runs = [run for _, run in _converted(taught, profile)]
    right = [run for run in runs if _right(run)]
    assert len(right) >= 0.8 * len(runs)
    legal = [run for run in right if check(run.steps, profile) == () and not run.meta["problems"]]
    assert len(legal) == len(right)
    for run in legal:
        text = render(run.steps, profile)
        read_back = parse(text, profile)
        assert [(step.agent, step.text) for step in read_back] == [(step.agent, step.text) for step in run.steps]
        assert not any(step.repairs for step in read_back)
        assert len(tokenizer.encode([text])[0]) < 600


def test_distilling_keeps_the_right_runs(taught: Path, tmp_path: Path) -> None:
    assert load_config(DistillConfig, "configs/distill/atlas.toml").reflection.kept_without == 1.0
    out = tmp_path / "data"
    done = CliRunner().invoke(
        app, ["distill", str(taught), "--profile", "atlas", "--config", "configs/distill/atlas.toml", "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    kept = {run.task.id for run in read_kept(out)}
    right = {run.task.id for _, run in _converted(taught, load_profile("atlas")) if _right(run)}
    assert kept <= right and len(kept) >= 0.9 * len(right)


def test_nothing_of_the_test_split_is_in_what_is_trained_on(taught: Path, atlas: Atlas) -> None:
    """Not in questions alone: pages that the team opened, results of searches, what it wrote."""
    held_out = {page.name for page in atlas.pages.values() if page.split is Split.TEST}
    runs = [run for _, run in _converted(taught, load_profile("atlas"))]
    words = {word for run in runs for step in run.steps for word in re.findall(r"\w+", step.text)}
    assert len(words) > 100 and not words & held_out
    raw = {word for file in taught.glob("*.atif.json") for word in re.findall(r"\w+", file.read_text())}
    assert not raw & held_out


def test_errors_are_noticed_and_corrected(taught: Path) -> None:
    profile = load_profile("atlas")
    runs = [run for _, run in _converted(taught, profile)]
    reflecting = [run for run in runs if any(step.agent == "reflection" for step in run.steps)]
    assert len(reflecting) > 0.2 * len(runs)
    scores = Counter(
        re.findall(r"score: (\d)", step.text)[-1] for run in runs for step in run.steps if step.agent == "double_check"
    )
    assert scores["4"] and scores["3"] and scores["1"] + scores["2"]
    corrected = [run for run in runs if _right(run) and sum(step.agent == "double_check" for step in run.steps) > 1]
    assert corrected
    # A reflection follows something that went wrong, and another call follows it.
    for run in reflecting:
        agents = [step.agent for step in run.steps]
        at = agents.index("reflection")
        assert agents[at - 1] == "observation" and {"web_search", "crawl_page"} & set(agents[at + 1 :])


def test_what_two_facts_are_needed_for_is_computed(taught: Path) -> None:
    """Comparisons as well as sums: of what is compared by eye a small model learns to guess."""
    families = Counter[str]()
    for _, run in _converted(taught, load_profile("atlas")):
        family = str(run.task.meta["family"])
        if family in ("comparison", "arithmetic") and _right(run):
            families[family] += 1
            agents = [step.agent for step in run.steps]
            last = len(agents) - 1 - agents[::-1].index("code")
            assert agents[last + 1] == "observation" and run.steps[last + 1].text.strip() == run.answer
    assert min(families["comparison"], families["arithmetic"]) > 2


def test_thoughts_are_short_and_varied(taught: Path) -> None:
    said = [
        step.text for _, run in _converted(taught, load_profile("atlas")) for step in run.steps if step.agent == "think"
    ]
    assert max(len(text.split()) for text in said) <= 7
    assert len(set(said)) > 20


def test_what_the_team_does_is_what_the_expert_plays(folder: Path, atlas: Atlas) -> None:
    """Through smolagents, the recorder and the converter comes the trajectory that the play alone gives."""
    profile = load_profile("atlas")

    async def played(brain: Brain) -> tuple[Step, ...]:
        async with open_world(folder) as world, open_tools([*world.tools, "code"]) as box:
            return await play(brain, box.tools, profile)

    for question in atlas.questions[Split.RL][:6]:
        team = build(None, question.task, world=str(folder), seed=3, errors=ERRORS)
        run = convert(record(team, question.task), profile)
        brain = Brain(question, atlas.pages, seed=3, errors=ERRORS, missed=0.1)
        assert render(run.steps, profile) == render(asyncio.run(played(brain)), profile)


def test_recorded_teams_are_inspected_as_one_models_run(taught: Path, atlas: Atlas) -> None:
    task = atlas.tasks(Split.TRAIN)[0]
    for source in (taught, taught / f"{task.id}.atif.json"):
        shown = CliRunner().invoke(app, ["inspect", str(source), "--task", task.id, "--json"])
        assert shown.exit_code == 0, shown.output
        assert Trajectory.from_json(shown.stdout).answer == task.answer[0]


def test_every_call_of_the_team_is_metered_with_what_smolagents_sends(folder: Path, atlas: Atlas) -> None:
    task = atlas.tasks(Split.TRAIN)[0]
    run = record(build(None, task, world=str(folder), errors=0.0), task)
    assert run.unmetered_calls == 0
    tokenizer = load_tokenizer("smollm2")
    calls = [(agent, call) for agent in run.root.walk() for call in agent.model_calls]
    assert {agent.agent for agent, _ in calls} == {"manager", "search_agent", "reading_agent", "verifier"}
    for agent, call in calls:
        assert call.usage is not None
        read = len(tokenizer.encode([agent.system])[0]) if call.purpose != "plan" else 0
        assert call.usage.prompt_tokens > read + sum(len(tokenizer.encode([m.text])[0]) for m in call.messages)
        assert call.usage.completion_tokens > (0 if call.purpose == "plan" else 3)  # a plan may be one word


def test_the_expert_refuses_tasks_of_other_worlds(folder: Path, atlas: Atlas) -> None:
    stranger = atlas.tasks(Split.TRAIN)[0].model_copy(update={"question": "Who was the first on the moon?"})
    with pytest.raises(WorldError, match="does not know the task"):
        build(None, stranger, world=str(folder))
