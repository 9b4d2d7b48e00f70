"""Small trajectories and hypothesis strategies that every test may use."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from coa.trajectory import OBSERVATION, Author, Profile, Step, Task, Trajectory, load_profile, observation

WEB = load_profile("web")

# fmt: off
_PIECES = [
    "<", ">", "</", "\\", "<\\", "```", "```py\n", "a", "|", "é", "🙂", " ", "\n", "\r\n", "<|im_end|>", "<s>",
    "<think>", "</think>", "<answer>", "</answer>", "<observation>", "</observation>", "<web_search>", "</web_search>",
    "<PLAN>", "< plan >", "</plan>", "<code>", "</code>", "＜think＞", "<thinK>", "<answer",
]
# fmt: on
TAGGY = st.lists(st.sampled_from(_PIECES), max_size=25).map("".join)
"""Text full of everything that looks like the grammar."""

ANY_TEXT = st.one_of(TAGGY, st.text(max_size=60))


def steps(profile: Profile) -> st.SearchStrategy[tuple[Step, ...]]:
    """Any steps with the authors they should have, in any order."""
    agents = st.sampled_from(sorted(profile.agents))
    model = st.builds(lambda agent, text: Step(agent=agent, text=text), agents, ANY_TEXT)
    return st.lists(st.one_of(model, ANY_TEXT.map(observation)), max_size=8).map(tuple)


def make_trajectory(*parts: tuple[str, str], profile: str = "web", question: str = "Who?", **rest: Any) -> Trajectory:
    """`make_trajectory(("think", "hm"), ("observation", "..."), ("answer", "Ada"))`."""
    made = tuple(
        Step(agent=agent, text=text, author=Author.ENVIRONMENT if agent == OBSERVATION else Author.MODEL)
        for agent, text in parts
    )
    return Trajectory(task=Task(id="t1", question=question, answer="Ada"), profile=profile, steps=made, **rest)


def web_run(**rest: Any) -> Trajectory:
    """A well-formed run of the web profile."""
    return make_trajectory(
        ("think", "I need a plan."),
        ("plan", "1. search 2. read"),
        ("think", "Search for it."),
        ("web_search", "first programmer"),
        ("observation", "Ada Lovelace - https://a.example/ada"),
        ("think", "Looks right."),
        ("suggested_answer", "Ada"),
        ("think", "Check it."),
        ("double_check", "It matches.\nscore: 4"),
        ("think", "Done."),
        ("answer", "Ada"),
        **rest,
    )
