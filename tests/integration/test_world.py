"""A served world: every answer can be found with the real tools, over real HTTP, and no snippet gives one away."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner

from coa.cli import app
from coa.errors import TokenizerError
from coa.models.scripted import ScriptedModel
from coa.models.tokenizer import load_tokenizer
from coa.runtime import Setting
from coa.runtime import run as run_chain
from coa.scoring import score_trajectory, scorer_for
from coa.tools.base import ToolContext
from coa.tools.registry import Toolbox, open_tools
from coa.trajectory import Author, Task, Trajectory, check, load_profile
from coa.trajectory.codec import pieces
from coa.trajectory.formats.tasks import read_tasks
from coa.worlds import OpenWorld, open_world, world_tools
from coa.worlds.atlas.entities import Split
from coa.worlds.atlas.questions import Family
from coa.worlds.folder import read
from coa.worlds.team.brain import Brain
from coa.worlds.team.play import play, tokens_of
from support.worlds import small_world

PROFILE = load_profile("atlas")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_world(tmp_path_factory.mktemp("worlds") / "atlas")


def _in_world(folder: Path, act: Callable[[OpenWorld, Toolbox], Any]) -> Any:
    async def go() -> Any:
        async with open_world(folder) as world, open_tools([*world.tools, "code"]) as box:
            return await act(world, box)

    return asyncio.run(go())


def test_an_oracle_solves_every_task_with_the_real_tools(folder: Path) -> None:
    atlas = read(folder).atlas()

    async def solve(world: OpenWorld, box: Toolbox) -> None:
        for split in Split:
            for question in atlas.questions[split]:
                brain = Brain(question, atlas.pages, seed=0, errors=0.0, missed=0.0)
                steps = await play(brain, box.tools, PROFILE)
                assert steps[-1].text == question.task.answer[0], question
                assert check(steps, PROFILE) == ()
                assert not any(step.agent == "reflection" for step in steps)

    _in_world(folder, solve)


def test_a_run_of_the_runtime_reads_what_the_oracle_read(folder: Path) -> None:
    """The same calls, made by a model in a chain: the same text, judged right."""
    atlas = read(folder).atlas()

    async def rerun(world: OpenWorld, box: Toolbox) -> None:
        scorer = scorer_for("auto")
        for question in atlas.questions[Split.TEST][:10]:
            steps = await play(Brain(question, atlas.pages, 0, 0.0, 0.0), box.tools, PROFILE)
            run = await run_chain(question.task, Setting(ScriptedModel(_turns(steps)), box.tools, PROFILE))
            assert run.answer == question.task.answer[0]
            seen = [step.text for step in run.steps if step.author is Author.ENVIRONMENT]
            assert seen == [step.text for step in steps if step.author is Author.ENVIRONMENT]
            scored: Trajectory = await score_trajectory(run, scorer, name="success")
            assert scored.scores["success"].value == 1.0
        await scorer.close()

    _in_world(folder, rerun)


def _turns(steps: Any) -> list[str]:
    """What a model writes between two observations."""
    turns = [""]
    for piece in pieces(steps, PROFILE):
        if piece.author is Author.MODEL:
            turns[-1] += piece.text
        else:
            turns.append("")
    return turns


def test_no_snippet_gives_an_answer_away(folder: Path) -> None:
    atlas = read(folder).atlas()

    async def search(world: OpenWorld, box: Toolbox) -> None:
        for split in Split:
            for question in atlas.questions[split]:
                if question.solution.family is not Family.PAGE_ONLY:
                    continue
                page = atlas.pages[question.solution.lookups[0].start]
                for query in (question.task.question, f"{page.kind} {page.name}", f"report {page.name}", page.name):
                    found = await box.tools["web_search"].call({"text": query}, ToolContext(question.task))
                    assert question.task.answer[0] not in found.text
                    assert not re.search(r"\d", found.text)
                    report = atlas.pages[page.facts["report"]]
                    assert report.address not in found.text

    _in_world(folder, search)


def test_pages_are_real_pages_and_the_guard_opens_their_port_alone(folder: Path) -> None:
    async def look(world: OpenWorld, box: Toolbox) -> None:
        async with aiohttp.ClientSession() as session:
            async with session.get(world.url) as answered:
                start = await answered.text()
            link = re.search(r'href="(/\w/\w+)"', start)
            assert link is not None
            async with session.get(world.url.rstrip("/") + link.group(1)) as answered:
                assert answered.status == 200 and "<table>" in await answered.text()
            async with session.get(f"{world.url}no/where") as answered:
                assert answered.status == 404
        async with open_world(folder) as other:  # the same world on another port
            port = other.url.rpartition(":")[2].strip("/")
            refused = await box.tools["crawl_page"].call({"items": [f"http://127.0.0.1:{port}/"]}, _context())
            assert not refused.ok and "only pages of atlas" in refused.text

    _in_world(folder, look)


def _context() -> ToolContext:
    return ToolContext(Task(id="t", question="q"))


def test_tools_given_by_hand_stand_before_the_worlds(folder: Path) -> None:
    async def settings() -> None:
        async with world_tools(folder, ["crawl_page=robots=off", "code"]) as given:
            assert [item.partition("=")[0] for item in given] == ["crawl_page", "code", "web_search"]
            assert given[0] == "crawl_page=robots=off"
        async with world_tools(None, ["code"]) as given:
            assert given == ["code"]

    asyncio.run(settings())


def test_faultless_trajectories_are_short(folder: Path) -> None:
    """For SmolLM2, prompt included: what a 135M model on a CPU can be trained on in minutes."""
    try:
        tokenizer = load_tokenizer("smollm2")
    except TokenizerError as error:
        pytest.skip(error.message)
    most = {
        Family.ONE_HOP: 215, Family.TWO_HOP: 280, Family.THREE_HOP: 345, Family.PAGE_ONLY: 265,
        Family.COMPARISON: 330, Family.ARITHMETIC: 350, Family.CODE_ONLY: 165,
    }  # fmt: skip
    atlas = read(folder).atlas()

    async def count(world: OpenWorld, box: Toolbox) -> None:
        for question in atlas.questions[Split.TRAIN][:20]:
            steps = await play(Brain(question, atlas.pages, 0, 0.0, 0.0), box.tools, PROFILE)
            total, written = tokens_of(question, steps, PROFILE, tokenizer)
            assert written < total <= most[question.solution.family], question.task.question

    _in_world(folder, count)


def test_the_commands_build_and_show_a_world(tmp_path: Path) -> None:
    out = tmp_path / "w"
    sizes = ["--cities", "40", "--people", "60", "--firms", "20", "--train", "20", "--rl", "10", "--test", "20"]
    built = CliRunner().invoke(app, ["world", "build", "--out", str(out), "--seed", "5", *sizes])
    assert built.exit_code == 0 and "20 train, 10 rl, 20 test" in built.stdout
    assert len(list(read_tasks(out / "tasks" / "test.jsonl"))) == 20
    shown = CliRunner().invoke(app, ["world", "show", str(out), "--examples", "1"])
    assert shown.exit_code == 0, shown.output
    for family in Family:
        assert family in shown.stdout
