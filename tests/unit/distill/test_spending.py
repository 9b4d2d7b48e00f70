"""What teams and trajectories cost, counted by hand."""

from __future__ import annotations

import asyncio

from coa.distill.convert import convert
from coa.distill.cost import Spending, count_team_tokens, spending, trajectory_usage, written_by_team
from coa.distill.team_run import ChatMessage, ModelCall, Purpose, TeamRun
from coa.scoring import scorer_for
from coa.trajectory import Author, Tokenizer, Trajectory, Usage, ledger_of, load_profile
from coa.trajectory.types import FrozenDict
from support.builders import make_trajectory
from support.tokenizers import tokenizer
from support.told_teams import asks, result, team, thinks, tower

WEB, COUNTS = load_profile("web"), tokenizer("byte_bpe")


def spent(*items: TeamRun | Trajectory) -> list[Spending]:
    return list(asyncio.run(spending("x", items, scorer_for("exact"), None, lambda: COUNTS)))


def test_a_team_is_charged_for_every_call_of_every_agent() -> None:
    wrong = team(thinks("no idea"), answer="7 m")
    (row,) = spent(tower(), wrong)
    # 12 calls at 1,000 + 50 tokens, and 1 more; one of two right.
    assert (row.kind, row.runs, row.successes, row.model_calls, row.tool_calls) == ("team", 2, 1, 13, 5)
    told = row.to_json()
    assert told["per_success"]["total_tokens"] == 13 * 1_050  # type: ignore[index]
    assert told["per_task"]["model_calls"] == 13  # type: ignore[index]  # both are attempts at one task


def test_what_traces_say_they_cost_is_summed_and_what_they_do_not_say_is_not_zero() -> None:
    priced = team(thinks("I know."), answer="330 m")
    call = priced.root.events[0].model_copy(update={"usage": Usage(prompt_tokens=9, cost=0.25)})
    priced = priced.model_copy(update={"root": priced.root.model_copy(update={"events": (call,)})})
    (row,) = spent(priced, tower())
    assert (row.cost, row.unpriced_runs) == (0.25, 1)
    assert row.to_json()["per_task"]["cost"] == 0.25  # type: ignore[index]
    (free,) = spent(tower())
    assert free.cost is None and free.to_json()["per_task"]["cost"] is None  # type: ignore[index]


def test_a_trajectory_is_charged_for_each_stretch_it_writes() -> None:
    run = make_trajectory(("think", "a"), ("web_search", "b"), ("observation", "c"), ("think", "d"), ("answer", "Ada"))
    usage, length = trajectory_usage(run, lambda: COUNTS, WEB)
    ledger = ledger_of(run, COUNTS, WEB)
    sizes = [(span.author, len(span.ids)) for span in ledger.spans]
    written = sum(size for author, size in sizes if author is Author.MODEL)
    assert (usage.model_calls, usage.tool_calls, usage.completion_tokens) == (2, 1, written)
    prompt = sizes[0][1]
    first = next(n for n, (author, _) in enumerate(sizes) if author is Author.MODEL)
    pause = next(n for n in range(first, len(sizes)) if sizes[n][0] is Author.ENVIRONMENT)
    again = next(n for n in range(pause, len(sizes)) if sizes[n][0] is Author.MODEL)
    # Read twice: the prompt, then all that stands before the second stretch.
    assert usage.prompt_tokens == prompt + sum(size for _, size in sizes[:again])
    assert length == sum(size for _, size in sizes)


def test_what_a_server_counted_goes_before_what_a_tokenizer_would() -> None:
    run = make_trajectory(("answer", "Ada"), usage=Usage(prompt_tokens=7, completion_tokens=3, model_calls=1))

    def never() -> Tokenizer:
        raise AssertionError("a run that a server metered was tokenised")

    usage, length = trajectory_usage(run, never, WEB)
    assert usage.total_tokens == 10 and length is None


def test_the_length_of_runs_is_unknown_if_it_is_of_one() -> None:
    counted = make_trajectory(("answer", "Ada"))
    metered = make_trajectory(("answer", "Ada"), usage=Usage(prompt_tokens=7, completion_tokens=3, model_calls=1))
    (row,) = spent(counted, metered)
    assert row.sequence_tokens is None and row.to_json()["per_task"]["sequence_tokens"] is None  # type: ignore[index]
    (alone,) = spent(counted)
    assert alone.sequence_tokens == len(ledger_of(counted, COUNTS, WEB).ids)


def test_copies_are_not_charged_again_and_unscored_is_not_wrong() -> None:
    run = convert(tower(), WEB)
    copy = run.model_copy(update={"meta": FrozenDict({**run.meta, "copy": 1})})
    open_question = team(thinks("x")).model_copy(update={"task": tower().task.model_copy(update={"answer": ()})})
    rows = spent(run, copy, open_question)
    assert [(row.kind, row.runs, row.successes, row.unscored) for row in rows] == [
        ("team", 1, 0, 1),
        ("trajectories", 1, 1, 0),
    ]
    assert rows[0].to_json()["per_success"] is None


def test_calls_nobody_metered_are_counted_as_such() -> None:
    silent = thinks("x").model_copy(update={"usage": None})
    (row,) = spent(team(silent))
    assert (row.model_calls, row.unmetered_calls, row.total_tokens) == (1, 1, 0)


class Words:
    """Counts words, so that a person can."""

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [[0] * len(text.split()) for text in texts]


def test_a_team_is_counted_call_by_call_and_once() -> None:
    run = team(
        thinks("I look it up", asks("s", "search", q="x")),
        result("s", "it is tall"),
        thinks("Done now"),
        answer="330 m",
    )
    root = run.root.model_copy(update={"system": "You lead", "request": "How tall is it"})
    counted = count_team_tokens(run.model_copy(update={"root": root}), Words())  # type: ignore[arg-type]
    # Written: 4 words and `search {"q": "x"}`, 3 more; then 2. Read: 2 + 4, then those, the 7 written and the 3 found.
    assert counted.written == {"manager": 9} and counted.usage.completion_tokens == 9
    assert counted.usage.prompt_tokens == 6 + (6 + 7 + 3)
    assert counted.length == 6 + 7 + 3 + 2 and counted.usage.tool_calls == 1
    assert written_by_team(run) == {"manager": 100}


def test_a_team_whose_calls_tell_what_they_read_is_counted_from_that() -> None:
    def told(text: str, *messages: str) -> ModelCall:
        read = tuple(ChatMessage(role="user", text=message) for message in messages)
        return ModelCall(text=text, messages=read)

    run = team(told("a b", "one two three"), told("c", "a b", "four"), answer=None)
    counted = count_team_tokens(run, Words())  # type: ignore[arg-type]
    # The second call reads 3 + 2 + 1 words; its own reply is in no later message.
    assert (counted.usage.prompt_tokens, counted.usage.completion_tokens, counted.length) == (3 + 6, 3, 6 + 1)


def test_planning_has_a_prompt_of_its_own() -> None:
    def read(role: str, text: str) -> ChatMessage:
        return ChatMessage(role=role, text=text)

    plan = ModelCall(purpose=Purpose.PLAN, text="p", messages=(read("user", "plan this please"),))
    act = ModelCall(text="go", messages=(read("user", "task"), read("assistant", "p")))
    again = ModelCall(purpose=Purpose.PLAN, text="q", messages=(read("user", "plan on"), read("tool-response", "x y")))
    run = team(plan, act, again, ModelCall(text="end", messages=(read("assistant", "q"),)), answer=None)
    root = run.root.model_copy(update={"system": "one two three four"})
    counted = count_team_tokens(run.model_copy(update={"root": root}), Words())  # type: ignore[arg-type]
    # Plan 3; act 4 + 2; plan again 2 + 2; the end reads 4 + 2, the two words that only the plan told, and 1 more.
    assert counted.usage.prompt_tokens == 3 + 6 + 4 + 9 and counted.length == 9 + 1
