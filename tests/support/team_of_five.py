"""One run of five role agents and three tools, one of which fails, with everything that a run can say about itself."""

from __future__ import annotations

from typing import Any

from coa.trajectory import (
    Author,
    Form,
    Message,
    Profile,
    Repair,
    RepairKind,
    Shape,
    Step,
    Task,
    Tokens,
    Trajectory,
    TurnEnd,
    Usage,
    load_profile,
    observation,
)
from coa.trajectory.profile import with_tool

SECRETS = ("Perham", "Verwell", "harbour", "population table", "1169 - 1000", "be brief")
"""Words of the user, the model and the tools in it."""


def profile_of_five() -> Profile:
    """The web profile, and a tool that it does not have."""
    shape = Shape(form=Form.CODE, language="py")
    return with_tool(load_profile("web"), "code", title="Code", does="runs Python", shape=shape)


def team_of_five(**changes: Any) -> Trajectory:
    profile = profile_of_five()
    ids = Tokens(ids=(5, 6, 7), logprobs=(-0.5, -0.25, -0.125))
    fields: dict[str, Any] = {
        "task": Task(id="cities-1", question="How much larger is Perham than Verwell?", answer="169", meta={"hops": 2}),
        "profile": profile.name,
        "profile_hash": profile.hash,
        "prompt": (
            Message(role="system", content="You are several agents; be brief."),
            Message(role="user", content="How much larger is Perham than Verwell?"),
        ),
        "steps": (
            Step(agent="think", text="Two look-ups.", tokens=ids),
            Step(agent="plan", text="1. find Perham\n2. find Verwell", surface="<plan>1. ..</plan>", tokens=ids),
            Step(agent="web_search", text=" Perham population ", repairs=(Repair(kind=RepairKind.LOOSE_TAG),)),
            observation("Perham: 1,169 people", meta={"ok": True, "seconds": 2.0, "service": "local"}),
            Step(agent="crawl_page", text="https://verwell.example | harbour"),
            observation("error: no such host", meta={"ok": False, "error": "service", "seconds": 1.0}),
            Step(agent="reflection", text="The harbour page is gone; use the population table.", tokens=ids),
            observation("note: there is no answer yet.", meta={"ok": False, "error": "unfinished"}),
            Step(agent="code", text="\n```py\nprint(1169 - 1000)\n```\n", usage=Usage(completion_tokens=9, seconds=3)),
            observation("169", meta={"ok": True, "seconds": 0.5}),
            Step(agent="suggested_answer", text="169"),
            Step(agent="double_check", text="It fits.\nscore: 4"),
            Step(agent="answer", text="169", author=Author.ENVIRONMENT, meta={"fallback": "suggested_answer"}),
        ),
        "scores": {"exact": {"value": 1.0, "reason": "169 is 169"}, "judge": None},
        "usage": Usage(
            prompt_tokens=900, completion_tokens=120, cached_tokens=300, model_calls=5, tool_calls=3, seconds=20.0,
            cost=0.25,
        ),
        "tokenizer": "abc",
        "ends": (TurnEnd(before=2, id=9, logprob=-0.5),),
        "sample": 3,
        "meta": {"model": "nano", "served": {"conversation": "conv-7", "run": "r1"}},
    }  # fmt: skip
    return Trajectory.model_validate({**fields, **changes})


def without_tokens(trajectory: Trajectory) -> Trajectory:
    """What spans hold of a run: everything but what was sampled."""
    steps = tuple(step.model_copy(update={"tokens": None}) for step in trajectory.steps)
    return trajectory.model_copy(update={"steps": steps, "tokenizer": None, "ends": ()})
