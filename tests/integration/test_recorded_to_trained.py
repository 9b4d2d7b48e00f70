"""A real smolagents team, recorded as it works, becomes a trajectory that obeys the protocol."""

from __future__ import annotations

import asyncio
from pathlib import Path

from smolagents import CodeAgent, ToolCallingAgent

from coa.distill.config import DistillConfig
from coa.distill.convert import convert
from coa.distill.pipeline import Distillery
from coa.distill.recorder import record
from coa.distill.team_run import TeamRun
from coa.scoring import scorer_for
from coa.trajectory import Task, check, load_profile, read
from support.teams import ScriptedTeamModel, WebSearch, searcher

ALL = load_profile("all")
MANAGER = (
    "The height in metres comes first.\n\n## Plan\n1. look it up\n2. convert\n3. check",
    "Thought: I ask the searcher.\n<code>\nr = search_agent(task='How tall is the tower?')\nprint(r)\n</code>",
    "Thought: A second source.\n<code>\npage = web_search(query='tower metres')\nprint(page)\n</code>",
    "Thought: Convert to feet.\n<code>\nfeet = 330 * 3.28\nprint(round(feet))\n</code>",
    "Thought: Have it checked.\n<code>\nv = checker(task='''Is this right?\nAnswer: 1082 feet''')\nprint(v)\n</code>",
    "Thought: Done.\n<code>\nfinal_answer(f'{round(feet)} feet')\n</code>",
)
SEARCHER = (
    ("I search.", [("c1", "web_search", {"query": "tower height"})]),
    ("Open the first hit.", [("c2", "visit_page", {"url": "http://bad.org"})]),
    (
        "That site failed. It is down and asking again will not help. I take the other one.",
        [("c3", "visit_page", {"url": "http://ex.org/a"})],
    ),
    ("I can report.", [("c4", "final_answer", {"answer": "330 m"})]),
)
CHECKER = (("330 times 3.28 is 1082.", [("v1", "final_answer", {"answer": "The page and the sum agree: correct."})]),)


def recorded() -> TeamRun:
    checker = ToolCallingAgent(
        tools=[],
        model=ScriptedTeamModel("checker", CHECKER),
        name="checker",
        description="Checks answers.",
        verbosity_level=-1,
    )
    team = CodeAgent(
        tools=[WebSearch()],
        model=ScriptedTeamModel("manager", MANAGER),
        managed_agents=[searcher(ScriptedTeamModel("search", SEARCHER)), checker],
        planning_interval=10,
        verbosity_level=-1,
    )
    return record(team, Task(id="tower", question="How many feet tall is the tower?", answer="1082 feet"))


def test_a_live_team_is_told_whole_and_in_order() -> None:
    run = convert(recorded(), ALL)
    told = [(step.agent, step.text.strip()) for step in run.steps]
    assert [step for step in told if step[0] not in ("think", "observation", "plan", "reflection")] == [
        ("web_search", "tower height"),
        ("crawl_page", "http://bad.org"),
        ("crawl_page", "http://ex.org/a"),
        ("web_search", "tower metres"),
        ("code", "```py\nfeet = 330 * 3.28\nprint(round(feet))\n```"),
        ("suggested_answer", "1082 feet"),
        ("double_check", "The page and the sum agree: correct.\nscore: 4"),
        ("answer", "1082 feet"),
    ]


def test_a_live_team_obeys_the_protocol_and_is_kept(tmp_path: Path) -> None:
    team_run = recorded()
    assert check(convert(team_run, ALL).steps, ALL) == ()

    async def go() -> int:
        return (await Distillery(ALL, DistillConfig(), scorer_for("exact")).run([team_run], tmp_path)).kept

    assert asyncio.run(go()) == 1
    (kept,) = read(tmp_path)
    reflection = next(step for step in kept.steps if step.agent == "reflection")
    assert reflection.text.startswith("It is down and asking again will not help.")
    # 6 calls of the manager, 4 of the searcher, 1 of the checker.
    assert kept.meta["team"]["model_calls"] == 11  # type: ignore[index, call-overload]
