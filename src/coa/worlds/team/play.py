"""The expert without a team around it: it makes ideal trajectories, and is an oracle to test a world with.

The same agents make the same calls to the same tools; only smolagents and its prompts are missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import mean
from typing import Final

from pydantic import JsonValue

from coa.models.tokenizer import TextTokenizer
from coa.tools.base import Tool, ToolContext, call_tool
from coa.tools.registry import open_tools
from coa.trajectory import Author, Form, Profile, Step, load_profile, observation
from coa.trajectory.codec import pieces
from coa.trajectory.shapes import write
from coa.worlds.atlas.entities import Split
from coa.worlds.atlas.questions import PROFILE, Question
from coa.worlds.folder import locate, read
from coa.worlds.serving import open_world
from coa.worlds.team.brain import CRITIC, FINISH, VERIFIER, Brain

_TIMEOUT_S: Final = 60.0


async def play(brain: Brain, tools: Mapping[str, Tool], profile: Profile) -> tuple[Step, ...]:
    """The trajectory that the team's run becomes."""
    steps = [Step(agent="plan", text=brain.plan())]
    manager = brain.agent("manager", brain.question.task.question)
    act = next(manager)
    while act.calls != FINISH:
        if act.says:
            steps.append(Step(agent="think", text=act.says))
        request = str(act.arguments["task"])
        report, done = await _member(brain, act.calls, request, tools, profile)
        steps += done
        if act.calls == CRITIC:
            steps.append(Step(agent="reflection", text=report))
        elif act.calls == VERIFIER:
            steps.append(Step(agent="suggested_answer", text=request.rpartition("answer: ")[2]))
            steps.append(Step(agent="double_check", text=report))
        act = manager.send(report)
    return (*steps, Step(agent="answer", text=str(act.arguments["answer"])))


async def _member(
    brain: Brain, name: str, request: str, tools: Mapping[str, Tool], profile: Profile
) -> tuple[str, list[Step]]:
    agent, steps = brain.agent(name, request), list[Step]()
    act = next(agent)
    while act.calls != FINISH:
        shape = profile.shape(act.calls)
        value = next(iter(act.arguments.values()))
        key = {Form.LIST: "items", Form.CODE: "code"}.get(shape.form, "text")
        arguments: dict[str, JsonValue] = {key: list(value) if isinstance(value, list) else str(value)}
        context, most = ToolContext(brain.question.task), profile.limits.observation_characters
        answer = await call_tool(tools[act.calls], arguments, context, max_characters=most, timeout_s=_TIMEOUT_S)
        if act.says:
            steps.append(Step(agent="think", text=act.says))
        steps += [Step(agent=act.calls, text=write(shape, arguments)), observation(answer.text, meta={"ok": answer.ok})]
        act = agent.send(answer.text)
    return str(act.arguments["answer"]), steps


def tokens_of(
    question: Question, steps: tuple[Step, ...], profile: Profile, tokenizer: TextTokenizer
) -> tuple[int, int]:
    """Tokens of a trajectory: all, and those that the model wrote. Spans are tokenised separately, as in training."""
    prompt = len(tokenizer.encode_prompt(profile.messages(question.task))[1])
    counted = [(piece.author, len(tokenizer.encode([piece.text])[0])) for piece in pieces(steps, profile)]
    written = sum(count for author, count in counted if author is Author.MODEL)
    return prompt + sum(count for _, count in counted), written


async def ideal_tokens(world: str, tokenizer: TextTokenizer, each: int = 5) -> dict[str, tuple[float, float]]:
    """Mean tokens of faultless runs by family, all and written by the model, over some training tasks of each."""
    folder = locate(world)
    atlas, profile = read(folder).atlas(), load_profile(PROFILE)
    counted: dict[str, list[tuple[int, int]]] = defaultdict(list)
    async with open_world(folder) as opened, open_tools([*opened.tools, "code"]) as box:
        for question in atlas.questions[Split.TRAIN]:
            family = question.solution.family.value
            if len(counted[family]) < each:
                brain = Brain(question, atlas.pages, seed=0, errors=0.0, missed=0.0)
                steps = await play(brain, box.tools, profile)
                counted[family].append(tokens_of(question, steps, profile, tokenizer))
    return {family: (mean(a for a, _ in found), mean(b for _, b in found)) for family, found in counted.items()}
