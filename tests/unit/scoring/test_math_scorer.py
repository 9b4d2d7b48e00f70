"""Mathematical equivalence, and a comparison that hangs, swells or dies without harm to others."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from coa.errors import ScoringError
from coa.scoring import MathScorer, Verdict
from coa.trajectory import Task
from coa.trajectory.formats.tasks import read_tasks

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
HANGS = "9^{9^{9}}"


@pytest.fixture(scope="module")
def scorer() -> Iterator[MathScorer]:
    scorer = MathScorer(workers=2, timeout_s=30.0)
    yield scorer
    asyncio.run(scorer.close())


def task(gold: str | list[str], **meta: object) -> Task:
    return Task(id="t", question="?", answer=gold, meta=meta)


def ask(scorer: MathScorer, gold: str | list[str], answer: str | None, **meta: object) -> Verdict:
    return asyncio.run(scorer.score(task(gold, **meta), answer))


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{1}{2}", "0.5"),
        (r"\frac{1}{2}", r"So it is $\boxed{\dfrac12}$."),
        ("x^2+1", "1 + x^2"),
        ("033", "33"),
        ("10{,}000", "10000"),
        (r"\{1,2\}", r"\boxed{\{2, 1\}}"),
        (r"\sqrt{8}", r"2\sqrt{2}"),
        ("5", "x = 5"),
        ("5", "All in all there are 5 of them."),
        ("|x|+|y|", "|y| + |x|"),
        (r"90^\circ", "90"),
        (r"\text{Evelyn}", "evelyn"),
        # As published: OlympiadBench 34 and 96, HLE 149, 410, 10, 470, 182, 8 and 448.
        (r"$m_{\max }=n^{2}-n-1$", "n^2 - n - 1"),
        (r"$m_{\max }=n^{2}-n-1$", r"m_{\text{max}} = n(n-1) - 1"),
        (r"$t(0,4]$", r"t \in (0, 4]"),
        (r"$58\choose 22$", r"\binom{58}{22}"),
        (r"4\pi \, \operatorname{arccot} \sqrt{\phi}", r"4\pi\arccot(\sqrt{\phi})"),
        ("exp[-(u-m/σ_u)^2/2].", r"\exp\left(-\frac{(u-m/\sigma_u)^2}{2}\right)"),
        ("2.77×10^–3 ppb", "0.00277 ppb"),
        (r"$2\mathbb{Z}$", r"2\mathbb Z"),
        ("(a) Yes; (b) 4.", "(a) yes, (b) 4"),
        ("(a) Yes; (b) 4.", "Yes; 2 + 2"),
        ("(a) Yes, $n-1$; (b) yes; (c) 2.", "(a) yes, n-1; (b) Yes; (c) 2"),
        ("The cyclic matrices", "the cyclic matrices"),
    ],
)
def test_equivalent_forms_are_right(scorer: MathScorer, gold: str, answer: str) -> None:
    assert ask(scorer, gold, answer).value == 1.0


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("2", r"\boxed{1, 2, 3}"),
        ("2", "2 or 3"),
        ("2", r"\boxed{2} or rather \boxed{3}"),
        ("2", "3 | 2"),
        ("-x", "x"),
        ("n!", "n"),
        ("(1,2)", "[1,2]"),
        ("(1,2)", "(2,1)"),
        ("0.0000000001", "0.0000000005"),
        ("0", "0.0000001"),
        ("10^{-10}", r"5 \cdot 10^{-10}"),
        ("12345678901234567890", "12345678901234567891"),
        (r"\text{east}", r"\text{seat}"),
        ("2", "the dog barks"),
        ("2", "{}{}$$\\frac"),
        ("$2n$", "2"),
        ("2", "2n"),
        ("2", r"$2\mathbb{Z}$"),
        ("2", r"The ring is $2\mathbb{Z}$."),
        ("2", r"It is $\mathbb{Z}/2\mathbb{Z}$"),
        (r"$2\mathbb{Z}$", "2"),
        (r"$t(0,4]$", "[0, 4]"),
        (r"$58\choose 22$", r"\binom{58}{21}"),
        ("(a) Yes; (b) 4.", "(a) No; (b) 4"),
        ("(a) Yes; (b) 4.", "(a) Yes; (b) 5"),
        ("(a) Yes; (b) 4.", "Yes"),
    ],
)
def test_other_forms_are_wrong(scorer: MathScorer, gold: str, answer: str) -> None:
    assert ask(scorer, gold, answer).value == 0.0


def test_a_gold_that_cannot_be_read_leaves_the_answer_unscored_unless_it_is_literally_the_same(
    scorer: MathScorer,
) -> None:
    verdict = ask(scorer, "@@", "3")
    assert verdict.value is None and not verdict.broken
    assert ask(scorer, "@@", r"\boxed{@@}").value == 1.0


def test_an_answer_that_cannot_be_read_is_wrong_and_not_certainly_so(scorer: MathScorer) -> None:
    verdict = ask(scorer, r"\frac{1}{3}", "@@")
    assert verdict.value == 0.0 and not verdict.certain


def test_no_answer_is_wrong_and_no_gold_is_unscored(scorer: MathScorer) -> None:
    assert ask(scorer, "2", None).value == 0.0
    assert ask(scorer, [], "2").value is None


def test_several_golds(scorer: MathScorer) -> None:
    assert ask(scorer, [r"\frac12", "7"], "0.5").value == 1.0
    every = {"answer_mode": "all"}
    assert ask(scorer, [r"\frac12", "7"], "7, 0.5", **every).value == 1.0
    assert ask(scorer, [r"\frac12", "7"], r"\{7, 0.5\}", **every).value == 1.0
    assert ask(scorer, [r"\frac12", "7"], "7, 7", **every).value == 0.0
    assert ask(scorer, [r"\frac12", "7"], "(7, 0.5)", answer_mode="ordered").value == 0.0


def test_a_comparison_that_hangs_is_ended_and_its_neighbours_are_not_harmed() -> None:
    async def race() -> list[Verdict]:
        scorer = MathScorer(workers=2, timeout_s=8.0)
        try:
            answers = [HANGS, *[r"\frac{2}{4}"] * 30, HANGS, *[r"\frac{3}{4}"] * 30]
            return await asyncio.gather(*(scorer.score(task("1/2"), answer) for answer in answers))
        finally:
            await scorer.close()

    verdicts = asyncio.run(race())
    assert [v.value for v in verdicts[1:31]] == [1.0] * 30 and [v.value for v in verdicts[32:]] == [0.0] * 30
    for late in (verdicts[0], verdicts[31]):
        assert late.value == 0.0 and not late.broken and "8 seconds" in late.reason


def test_who_makes_the_comparison_hang_is_to_blame() -> None:
    asked = [
        ("1/2", "10000000!", 0.0),
        ("1/2", "9^{9^{9^9}}", 0.0),
        ("9^{9^{9^9}}", "3 + x", None),  # the gold alone hangs: no answer is to blame
        ("@@", "9^{9^{9^9}}", None),  # the gold cannot be read
    ]

    async def all_at_once() -> list[Verdict]:
        scorer = MathScorer(workers=4, timeout_s=3.0)
        try:
            return await asyncio.gather(*(scorer.score(task(gold), answer) for gold, answer, _ in asked))
        finally:
            await scorer.close()

    assert [verdict.value for verdict in asyncio.run(all_at_once())] == [value for *_, value in asked]


def test_a_worker_gets_no_more_memory_than_it_may_have() -> None:
    async def one() -> Verdict:
        scorer = MathScorer(workers=1, memory_bytes=64 << 20)  # too little to load sympy
        try:
            return await scorer.score(task("1/2"), r"\frac{2}{4}")
        finally:
            await scorer.close()

    verdict = asyncio.run(one())
    assert verdict.value is None and verdict.broken and "could not start" in verdict.reason


def test_a_worker_that_died_between_two_answers_is_replaced() -> None:
    async def two() -> list[Verdict]:
        scorer = MathScorer(workers=1, timeout_s=30.0)
        try:
            first = await scorer.score(task("1/2"), r"\frac{2}{4}")
            (pid,) = scorer.pool.pids
            os.kill(pid, signal.SIGKILL)
            return [first, await scorer.score(task("1/2"), r"\frac{2}{4}")]
        finally:
            await scorer.close()

    assert [verdict.value for verdict in asyncio.run(two())] == [1.0, 1.0]


def test_workers_do_not_inherit_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COA_API_KEY", "secret")

    async def environment() -> bytes:
        scorer = MathScorer(workers=1)
        try:
            await scorer.score(task("1/2"), r"\frac{2}{4}")
            (pid,) = scorer.pool.pids
            return Path(f"/proc/{pid}/environ").read_bytes()
        finally:
            await scorer.close()

    if not Path("/proc/self/environ").exists():
        pytest.skip("there is no /proc here")
    found = asyncio.run(environment())
    assert b"PATH=" in found and b"secret" not in found


def test_closing_ends_every_worker() -> None:
    async def pids() -> list[int]:
        scorer = MathScorer(workers=2)
        await asyncio.gather(*(scorer.score(task("1/2"), r"\frac{2}{4}") for _ in range(8)))
        found = scorer.pool.pids
        await scorer.close()
        return found

    found = asyncio.run(pids())
    assert found
    for pid in found:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_closing_while_many_wait_leaves_them_unscored() -> None:
    async def closed() -> list[Verdict]:
        scorer = MathScorer(workers=1, timeout_s=60.0)
        assert (await scorer.score(task("1/2"), r"\frac{2}{4}")).value == 1.0
        waiting = [asyncio.create_task(scorer.score(task("1/2"), HANGS)) for _ in range(5)]
        await asyncio.sleep(0.2)
        await scorer.close()
        return await asyncio.gather(*waiting)

    assert all(verdict.value is None and verdict.broken for verdict in asyncio.run(closed()))


def test_one_scorer_serves_several_event_loops_in_turn(scorer: MathScorer) -> None:
    assert [ask(scorer, "1/2", r"\frac{2}{4}").value for _ in range(3)] == [1.0] * 3


def test_a_missing_math_verify_is_named_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "math_verify.py").write_text("raise ModuleNotFoundError('No module named math_verify')\n")
    monkeypatch.syspath_prepend(tmp_path)

    async def one() -> None:
        scorer = MathScorer(workers=1)
        try:
            await scorer.score(task("1/2"), r"\frac{2}{4}")
        finally:
            await scorer.close()

    with pytest.raises(ScoringError, match="coa setup eval"):
        asyncio.run(one())


@pytest.mark.parametrize("name", ["math500.parquet", "aime24.parquet"])
def test_published_golds_score_one_against_themselves_and_neighbours_about_nought(
    scorer: MathScorer, name: str
) -> None:
    if not (SHARED / name).is_file():
        pytest.skip(f"{name} is not here; put the published file into {SHARED}")
    tasks = list(read_tasks(SHARED / name))

    async def both() -> tuple[list[Verdict], list[Verdict]]:
        own = [scorer.score(t, rf"The result is \boxed{{{t.answer[0]}}}.") for t in tasks]
        other = [scorer.score(t, n.answer[0]) for t, n in pairwise(tasks)]
        return await asyncio.gather(*own), await asyncio.gather(*other)

    own, other = asyncio.run(both())
    assert [v.value for v in own] == [1.0] * len(tasks)
    # In MATH500 three neighbours do have the same answer: 3 and 3, 7 and 7, 5 and x=5.
    assert sum(v.value == 1.0 for v in other) == (3 if name.startswith("math500") else 0)
    assert not any(v.value is None for v in other)
