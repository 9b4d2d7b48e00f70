"""Team runs to measure on: a manager, a searching agent and a verifier; some wrong, some broken, some wordless."""

from __future__ import annotations

import random
from collections.abc import Iterator

from coa.distill.team_run import (
    AgentRun,
    Event,
    ModelCall,
    Purpose,
    Source,
    SubRun,
    TeamRun,
    ToolCall,
    ToolResult,
)
from coa.trajectory import Task, Usage

_TEXT = (
    "lighthouse harbour archive railway novelist province keeper island bridge mill abbey market river valley quarry "
    "census ledger printer painter captain schooner orchard chapel foundry surveyor almanac gazette ferry canal tower"
)
_WORDS = _TEXT.split()
_SPENT = Usage(prompt_tokens=1800, completion_tokens=90)


def team_runs(count: int, *, seed: int = 0) -> Iterator[TeamRun]:
    """One after another; the same ones every time."""
    for number in range(count):
        yield _run(number, random.Random(f"{seed}-{number}"))


def _run(number: int, rng: random.Random) -> TeamRun:
    def words(most: int) -> str:
        return " ".join(rng.choices(_WORDS, k=most))

    gold = f"{rng.choice(_WORDS)} {rng.randrange(10_000)}"
    wrong, broken, wordless = rng.random() < 0.15, rng.random() < 0.05, rng.random() < 0.1
    answer = f"not {gold}" if wrong else gold
    searcher = AgentRun(
        id=f"search-{number}",
        agent="search_agent",
        events=tuple(_searches(rng, words, broken=broken, wordless=wordless)),
        answer=words(60),
    )
    checker = AgentRun(
        id=f"check-{number}",
        agent="checker",
        events=(ModelCall(purpose=Purpose.ANSWER, text=f"{words(20)}.", usage=_SPENT),),
        answer=f"{words(15)}. It is correct.",
    )
    events: tuple[Event, ...] = (
        ModelCall(purpose=Purpose.PLAN, text=f"{words(30)}.\n\n## Plan\n{words(40)}", usage=_SPENT),
        ModelCall(text=f"{words(25)}.", calls=(_member("a", "search_agent", task=words(20)),), usage=_SPENT),
        SubRun(call_id="a", run=searcher),
        ToolResult(call_ids=("a",), text=searcher.answer or "", report_of=(searcher.id,)),
        ModelCall(text=f"{words(25)}.", calls=(_member("b", "checker", answer=answer),), usage=_SPENT),
        SubRun(call_id="b", run=checker),
        ToolResult(call_ids=("b",), text=checker.answer or "", report_of=(checker.id,)),
        ModelCall(purpose=Purpose.ANSWER, text=f"{words(10)}.", usage=_SPENT),
    )
    root = AgentRun(id="manager", agent="manager", events=events, answer=answer)
    task = Task(id=f"task-{number:08d}", question=f"{words(18)} {number}?", answer=gold)
    return TeamRun(task=task, root=root, source=Source(format="atif", file=f"{number}.json"))


def _searches(rng: random.Random, words: object, *, broken: bool, wordless: bool) -> Iterator[Event]:
    assert callable(words)
    yield ModelCall(purpose=Purpose.PLAN, text=words(25), usage=_SPENT)
    for step in range(rng.randrange(4, 9)):
        name, key = ("web_search", "query") if step % 2 == 0 else ("visit_page", "url")
        failed = broken or rng.random() < 0.08
        text = "" if wordless and step == 2 else f"{words(12)}. {words(12)}. {words(12)}."
        call = ToolCall(id=f"s{step}", name=name, arguments={key: words(5)})
        yield ModelCall(text=text, calls=(call,), usage=_SPENT)
        yield ToolResult(call_ids=(call.id,), text="HTTP 503" if failed else words(400), ok=not failed)
    yield ModelCall(purpose=Purpose.ANSWER, text=f"{words(10)}.", usage=_SPENT)


def _member(identity: str, name: str, **arguments: str) -> ToolCall:
    return ToolCall(id=identity, name=name, arguments=arguments, agent=True)
