"""Tokens of a served run: what was read, cached and written, and how much of that was not the answer."""

from __future__ import annotations

from coa.serve.usage import TokenCount, tokens_of
from coa.trajectory import Author, Step, Task, Tokens, Trajectory, Usage

USAGE = Usage(prompt_tokens=100, completion_tokens=30, cached_tokens=40, model_calls=2)


def made(*steps: Step, usage: Usage = USAGE) -> Trajectory:
    return Trajectory(task=Task(id="t", question="q"), profile="web", steps=steps, usage=usage)


def test_tokens_of_the_answer_are_not_reasoning() -> None:
    answer = Step(agent="answer", text="42", tokens=Tokens(ids=(1, 2, 3, 4)))
    assert tokens_of(made(Step(agent="think", text="hm"), answer)) == TokenCount(100, 40, 30, 26)


def test_without_token_ids_the_share_of_the_characters_decides() -> None:
    run = made(Step(agent="think", text="x" * 20), Step(agent="answer", text="y" * 10))
    assert tokens_of(run).reasoning == 20


def test_an_answer_that_the_environment_wrote_took_no_tokens() -> None:
    answer = Step(agent="answer", text="42", author=Author.ENVIRONMENT)
    assert tokens_of(made(Step(agent="think", text="hm"), answer)).reasoning == 30


def test_a_resumed_run_reports_only_what_it_took_since() -> None:
    before = Usage(prompt_tokens=60, completion_tokens=20, cached_tokens=40, model_calls=1)
    answer = Step(agent="answer", text="42", tokens=Tokens(ids=(1, 2, 3, 4)))
    assert tokens_of(made(answer), before) == TokenCount(40, 0, 10, 6)
    assert tokens_of(made(answer), before).total == 50
