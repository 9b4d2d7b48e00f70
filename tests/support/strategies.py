"""Hypothesis strategies for whole records, every field in use."""

from __future__ import annotations

from hypothesis import strategies as st

from coa.trajectory import (
    CodeTests,
    Message,
    Repair,
    RepairKind,
    Step,
    Stop,
    Task,
    TestCase,
    Tokens,
    Trajectory,
    Usage,
    observation,
)
from support.builders import ANY_TEXT

floats = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | floats | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=6,
)
metas = st.dictionaries(st.text(max_size=8), json_values, max_size=3)
counts = st.integers(0, 10**9)
usages = st.builds(Usage, prompt_tokens=counts, completion_tokens=counts, tool_calls=counts, seconds=st.floats(0, 1e6))
tokens = st.lists(st.tuples(st.integers(0, 2**31 - 1), floats), max_size=4).map(
    lambda pairs: Tokens(ids=tuple(i for i, _ in pairs), logprobs=tuple(p for _, p in pairs))
)
model_steps = st.builds(
    Step,
    agent=st.sampled_from(["think", "plan", "answer"]),
    text=ANY_TEXT,
    surface=st.none() | ANY_TEXT,
    given=st.integers(0, 5),
    tokens=st.none() | tokens,
    repairs=st.lists(st.builds(Repair, kind=st.sampled_from(RepairKind), detail=ANY_TEXT), max_size=2).map(tuple),
    usage=st.none() | usages,
    meta=metas,
)
tests = st.builds(CodeTests, cases=st.lists(st.builds(TestCase, stdin=ANY_TEXT, expected=ANY_TEXT), max_size=2))
tasks = st.builds(
    Task,
    id=st.text(min_size=1, max_size=8),
    question=ANY_TEXT,
    answer=st.lists(ANY_TEXT, max_size=2),
    tests=st.none() | tests,
    files=st.lists(st.text(max_size=8), max_size=2).map(tuple),
    prompt=st.none() | st.lists(st.builds(Message, role=st.just("user"), content=ANY_TEXT), max_size=2).map(tuple),
    conversation=st.lists(
        st.builds(Message, role=st.sampled_from(["system", "user", "assistant"]), content=ANY_TEXT), max_size=2
    ).map(tuple),
    meta=metas,
)
trajectories = st.builds(
    Trajectory,
    task=tasks,
    profile=st.just("web"),
    steps=st.lists(model_steps | ANY_TEXT.map(observation), max_size=4).map(tuple),
    stop=st.sampled_from([stop for stop in Stop if stop is not Stop.FAILED]),
    scores=st.dictionaries(st.text(max_size=5), st.none() | floats, max_size=2),
    usage=usages,
    prompt=st.none() | st.lists(st.builds(Message, role=st.just("system"), content=ANY_TEXT), max_size=1).map(tuple),
    tokenizer=st.none() | st.text(max_size=5),
    sample=st.integers(0, 99),
    meta=metas,
)
