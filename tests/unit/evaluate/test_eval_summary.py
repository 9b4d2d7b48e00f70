"""Figures of attempts: denominators, choices, costs per success, agents' shares; worked by hand."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coa.choices import Select
from coa.compare.comparison import ComparedRun, compare_runs
from coa.compare.page import comparison_page, look, table_rows
from coa.errors import EvaluationError
from coa.evaluate.attempt_store import AttemptStore
from coa.evaluate.attempts import Attempt, attempt_of, by_task, shared, short_meta
from coa.evaluate.evaluation import read_evaluation
from coa.evaluate.metrics import mean
from coa.evaluate.report import BenchmarkReport, Evaluation, headline, make_report
from coa.evaluate.summary import Figures, chosen, summed_up
from coa.trajectory import Stop, Tokens, Usage
from support.builders import make_trajectory, web_run

SPENT = Usage(prompt_tokens=100, completion_tokens=20, cached_tokens=40, model_calls=2, tool_calls=3, seconds=2.0)


def attempt(task: str, sample: int, value: float | None, answer: str | None = "x", **rest: object) -> Attempt:
    return Attempt(task, sample, value, answer, usage=SPENT, **rest)  # type: ignore[arg-type]


def figures(
    tasks: Mapping[str, Sequence[Attempt]], *, samples: int, planned: int, ks: Sequence[int] = (),
    groups: Sequence[str] = (), select: Select | None = None,
) -> Figures:  # fmt: skip
    return summed_up(tasks.items(), groups=groups, select=select).figures(samples=samples, planned=planned, ks=ks)


def compared(name: str, attempts: Sequence[Attempt]) -> ComparedRun:
    return ComparedRun(name, f"runs/{name}", AttemptStore.of(attempts))


CRASHED = attempt("c", 0, None, None, stop=Stop.FAILED)
SILENT = attempt("d", 0, 0.0, None, stop=Stop.UNANSWERED)
UNJUDGED = attempt("e", 0, None)
FIVE = by_task([attempt("a", 0, 1.0), attempt("b", 0, 0.0), CRASHED, SILENT, UNJUDGED])


def test_every_task_is_in_the_denominator() -> None:
    found = figures(FIVE, samples=1, planned=5)["results"]
    assert found["metrics"]["pass@1"]["value"] == 1 / 5
    counts = {
        name: found[name] for name in ("tasks", "attempts", "right", "unanswered", "failed", "unscored", "missing")
    }
    assert counts == {"tasks": 5, "attempts": 5, "right": 1, "unanswered": 1, "failed": 1, "unscored": 1, "missing": 0}
    assert found["success_if_all_unscored_were_right"] == pytest.approx(2 / 5)


def test_tasks_that_were_never_tried_are_missing_not_forgotten() -> None:
    found = figures(FIVE, samples=2, planned=7)["results"]
    assert found["missing"] == 14 - 5


def test_a_success_costs_what_all_attempts_spent() -> None:
    found = figures(FIVE, samples=1, planned=5)["spent"]
    assert found["per_success"]["total_tokens"] == 5 * 120 and found["per_success"]["tool_calls"] == 15
    assert found["per_task"]["cached_tokens"] == 40 and found["total"]["cost"] is None
    assert summed_up(FIVE.items()).times()["seconds_per_success"] == 10.0
    none = by_task([attempt("a", 0, 0.0)])
    assert figures(none, samples=1, planned=1)["spent"]["per_success"] is None


def test_metrics_of_several_attempts() -> None:
    # a: right, wrong, wrong, right; b: all wrong.
    tasks = by_task(
        [attempt("a", at, float(at in (0, 3)), "ja" if at in (0, 3) else f"no {at}") for at in range(4)]
        + [attempt("b", at, 0.0, "nein") for at in range(4)]
    )
    found = figures(tasks, samples=4, planned=2, ks=[3])["results"]["metrics"]
    assert found["pass@1"]["value"] == found["avg@4"]["value"] == 0.25
    # a: 1 - C(2,2)/C(4,2) = 5/6; three of four always hold a right one.
    assert found["pass@2"]["value"] == pytest.approx(5 / 12) and found["pass@3"]["value"] == 0.5
    # Two of four say ja, the other two differ: the majority is right at a.
    assert found["pass@4"]["value"] == 0.5 and found["majority@4"]["value"] == 0.5


def test_an_attempt_too_few_gives_no_metric_of_that_many() -> None:
    tasks = by_task([attempt("a", 0, 1.0), attempt("a", 1, 1.0), attempt("b", 0, 1.0)])
    found = figures(tasks, samples=2, planned=2)["results"]
    assert set(found["metrics"]) == {"pass@1", "avg@2"} and found["missing"] == 1


def test_the_choice_of_a_judge_is_the_one_it_made() -> None:
    picked = attempt("a", 1, 1.0, "b", selected="judge", own_score=2)
    listed = [attempt("a", 0, 0.0, "c", own_score=4), picked, attempt("a", 2, 0.0, None)]
    assert chosen(listed, Select.JUDGE) is picked
    assert chosen(listed, Select.SELF_CHECK) is listed[0]
    assert chosen([attempt("a", 0, 0.0, None)], Select.MAJORITY) is None
    assert chosen([attempt("a", 0, 1.0, "print(1)", program=True)] * 2, Select.MAJORITY) is None


def test_tasks_without_a_double_check_are_decided_by_the_majority_not_counted_as_wrong() -> None:
    checked = [attempt("a", 0, 0.0, "no", own_score=1), attempt("a", 1, 1.0, "yes", own_score=4)]
    silent = [attempt("b", at, 1.0, "yes") for at in range(2)]
    found = figures(by_task([*checked, *silent]), samples=2, planned=2, select=Select.SELF_CHECK)
    assert found["results"]["metrics"]["best of 2 by self-check"]["value"] == 1.0
    assert found["spent"]["per_chosen_success"]["total_tokens"] == 4 * 120 / 2
    # Where nobody checked, the number is given only if it was asked for.
    name, tasks = "best of 2 by self-check", by_task(silent)
    assert name in figures(tasks, samples=2, planned=1, select=Select.SELF_CHECK)["results"]["metrics"]
    assert name not in figures(tasks, samples=2, planned=1)["results"]["metrics"]


def test_a_choice_among_fewer_answers_than_there_are_is_none() -> None:
    old = [attempt("a", 0, 1.0, "b", selected="judge", selected_among=2), *(attempt("a", at, 0.0) for at in (1, 2))]
    new = [attempt("c", 0, 1.0, "b", selected="judge", selected_among=3), *(attempt("c", at, 0.0) for at in (1, 2))]
    assert chosen(old, Select.JUDGE) is None and chosen(new, Select.JUDGE) is new[0]
    # Interrupted before the judge had chosen everywhere: half of the choices are no metric.
    assert "best of 3 by judge" not in figures(by_task([*old, *new]), samples=3, planned=2)["results"]["metrics"]


def test_an_attempt_remembers_who_wrote_how_much() -> None:
    run = web_run(usage=SPENT)
    found = attempt_of(run.scored("exact", 1.0), "exact")
    assert sum(found.written.values()) == 20 and found.shared_out and found.right and found.repairs == 0
    sampled = make_trajectory(("think", "a"), ("answer", "b"))
    steps = tuple(step.model_copy(update={"tokens": Tokens(ids=(1, 2, 3))}) for step in sampled.steps)
    counted = attempt_of(sampled.model_copy(update={"steps": steps}), None)
    assert counted.written == {"think": 3, "answer": 3} and not counted.shared_out


@given(st.integers(0, 10_000), st.dictionaries(st.text(max_size=3), st.integers(1, 500), min_size=1, max_size=8))
def test_what_is_shared_out_adds_up(total: int, sizes: dict[str, int]) -> None:
    parts = shared(total, sizes)
    whole = sum(sizes.values())
    assert sum(parts.values()) == total
    assert all(abs(parts[name] - total * size / whole) < 1 for name, size in sizes.items())


def test_results_are_broken_down_by_what_tells_tasks_apart() -> None:
    tasks = by_task([attempt(str(at), 0, float(at > 2), meta={"level": str(at % 2), "one": "x"}) for at in range(6)])
    found = figures(tasks, samples=1, planned=6, groups=["level", "one", "absent"])["breakdown"]
    assert set(found) == {"level"} and [part["tasks"] for part in found["level"].values()] == [3, 3]
    report = found["level"]
    # Even ones: 4 of 0, 2, 4; odd ones: 3 and 5 of 1, 3, 5.
    assert [group["right"] for group in report.values()] == [1, 2]
    assert short_meta({"info": {"hop": "single"}, "long": "x" * 99, "n": 3}) == {"hop": "single", "n": "3"}


def test_tasks_before_the_first_with_a_key_are_in_the_group_without_it() -> None:
    metas = [{}, {}, {"level": "1"}, {}, {"level": "1"}]
    tasks = by_task([attempt(str(at), 0, 1.0, meta=meta) for at, meta in enumerate(metas)])
    found = figures(tasks, samples=1, planned=5, groups=["level"])["breakdown"]["level"]
    assert {name: part["tasks"] for name, part in found.items()} == {"": 3, "1": 2}
    many = by_task([attempt(f"{at:02}", 0, 1.0, meta={"level": str(at)}) for at in range(21)])
    assert figures(many, samples=1, planned=21, groups=["level"])["breakdown"] == {}


def test_attempts_come_back_from_disk_as_they_were_by_task_and_without_doubles() -> None:
    first = attempt("b", 1, 0.5, "yes", stop=Stop.TOKENS, written={"think": 3}, scores={"f1": 0.5}, meta={"level": "1"})
    others = [attempt("b", 0, None, None, stop=Stop.FAILED), attempt("é", 0, 1.0), attempt("z", 0, 1.0)]
    late = attempt("b", 1, 1.0, "the same task and sample once more")
    with AttemptStore.of([first, *others, late]) as store:
        assert list(store) == list(by_task([first, *others, late]).items())
        assert len(store) == 5 and store.doubles == 1
        assert [task for task, _ in store] == ["b", "z", "é"]


def test_comparing_keeps_a_few_bytes_of_a_run() -> None:
    """Two runs of 2,000 attempts with answers of 4 KB; kept as objects they would be 20 MB."""

    def many(seed: str) -> Iterator[Attempt]:
        for at in range(2_000):
            yield attempt(f"{at:05}", 0, float(at % 3 == 0), f"{seed}{at}" * 600, meta={"level": str(at % 4)})

    tracemalloc.start()
    try:
        runs = [ComparedRun(name, name, AttemptStore.of(many(name))) for name in ("one", "two")]
        found = compare_runs(runs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found["shared_tasks"] == 2_000 and peak < 4_000_000


@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 2), st.sampled_from([None, 0.0, 0.5, 1.0])), min_size=1)
)
def test_what_is_read_task_by_task_is_what_all_tasks_together_give(rows: list[tuple[str, int, float | None]]) -> None:
    """The same figures from the store and from lists in memory, and by formulas over lists."""
    attempts = [attempt(*row) for row in rows]
    tasks = by_task(attempts)
    with AttemptStore.of(attempts) as store:
        found = summed_up(store)
    assert found.figures(samples=3, planned=5) == figures(tasks, samples=3, planned=5)
    metrics = found.figures(samples=3, planned=5)["results"]["metrics"]
    rights = [[float(one.right) for one in listed] for listed in tasks.values()]
    assert metrics["pass@1"] == asdict(mean(rights))
    assert metrics["avg@3"] == asdict(mean([[one.counted for one in listed] for listed in tasks.values()]))


def test_what_the_unscored_could_add_is_told_of_the_same_number() -> None:
    # Right, half right, unscored: 1 of 3 is right, at most 2 of 3 could be; the halves are no success.
    listed = [attempt("a", 0, 1.0), attempt("b", 0, 0.5), attempt("c", 0, None)]
    found = figures(by_task(listed), samples=1, planned=3)["results"]
    assert found["metrics"]["pass@1"]["value"] == pytest.approx(1 / 3)
    assert found["success_if_all_unscored_were_right"] == pytest.approx(2 / 3)
    benchmark = {"name": "x", "about": "", "metric": "majority@3", "tasks": 1, "groups": []}
    voted = [attempt("a", 0, 1.0, "y"), attempt("a", 1, 1.0, "y"), attempt("a", 2, None, "z")]
    report = make_report(
        by_task(voted).items(), {"samples": 3, "benchmark": benchmark, "scorer": "judge", "model": "m"}
    )
    assert "majority@3 100.0%" in headline(report) and "pass@1 at most 100.0%" in headline(report)


def test_a_report_names_its_scorer_and_what_it_disagrees_about() -> None:
    listed = [
        attempt("a", 0, 1.0, scores={"judge": 1.0, "exact": 1.0}),
        attempt("b", 0, 1.0, scores={"judge": 1.0, "exact": 0.0}),
    ]
    benchmark = {"name": "two", "about": "", "metric": "pass@1", "tasks": 2, "groups": []}
    report = make_report(
        by_task(listed).items(), {"samples": 1, "benchmark": benchmark, "scorer": "judge", "model": "m"}
    )
    assert report["scorer"] == "judge" and report["agreement"]["exact"]["rate"] == 0.5
    assert report["provenance"]["model"] == "m" and "two: pass@1 100.0%" in headline(report)


def test_runs_are_compared_on_the_tasks_they_share() -> None:
    one = compared("one", [attempt(str(at), 0, float(at < 4)) for at in range(10)])
    two = compared("two", [attempt(str(at), 0, float(at < 7)) for at in range(9)])
    found = compare_runs([one, two])
    assert found["shared_tasks"] == 9 and found["tasks_left_out"] == [1, 0]
    assert [run["results"]["right"] for run in found["runs"]] == [4, 7]
    (pair,) = found["pairs"]
    assert pair["success"]["value"] == pytest.approx(3 / 9) and pair["only_second"] == ["4", "5", "6"]
    assert pair["only_first"] == []
    page = comparison_page(found)
    assert look(["runs/one"], "5") in page and 'class="bars"' in page and found == compare_runs([one, two])
    assert compare_runs([one, two], shared=False)["runs"][0]["results"]["tasks"] == 10


def test_a_page_shows_a_cost_without_an_upper_end() -> None:
    found = compare_runs([compared("one", [attempt(str(at), 0, float(at == 0)) for at in range(10)])])
    assert found["runs"][0]["tokens_per_success"]["high"] is None
    page = comparison_page(found)
    assert "1,200 [at least " in page and 'class="interval open"' in page and "An arrow marks an interval" in page
    assert "no end" not in page and ">nan" not in page and "inf" not in page
    assert dict(table_rows(found["runs"]))["tokens per success"][0].startswith("1,200 [at least ")


def test_a_comparison_has_no_heading_without_content() -> None:
    page = comparison_page(
        compare_runs([compared("one", [attempt("1", 0, 1.0)]), compared("two", [attempt("1", 0, 1.0)])])
    )
    assert "disagree" not in page and "Who wrote how much" not in page and "</h2>\n</body>" not in page
    assert not re.search(r"</h2>\s*<h2>", page)


def test_tokens_from_a_cache_are_unknown_where_a_tokenizer_counted() -> None:
    counted = compare_runs([compared("one", [attempt("1", 0, 1.0, sequence_tokens=120)])])["runs"]
    metered = compare_runs([compared("two", [attempt("1", 0, 1.0)])])["runs"]
    assert counted[0]["spent"]["per_attempt"]["cached_tokens"] is None
    assert dict(table_rows([*counted, *metered]))["  from cache per attempt"] == ["-", "40.0"]
    assert "  from cache per attempt" not in dict(table_rows(counted))


def test_pairs_are_compared_on_the_tasks_of_both_even_if_a_third_run_lacks_them() -> None:
    one = compared("one", [attempt(str(at), 0, float(at < 4)) for at in range(10)])
    two = compared("two", [attempt(str(at), 0, 1.0) for at in range(9)])
    three = compared("three", [attempt(str(at), 0, 0.0) for at in range(3)])
    found = compare_runs([one, two, three])
    assert found["shared_tasks"] == 3 and found["tasks_left_out"] == [7, 6, 0]
    assert [pair["tasks"] for pair in found["pairs"]] == [9, 3, 3]
    # With a pair alone, the resamples are of the same tasks.
    assert compare_runs([one, two])["pairs"][0]["success"] == found["pairs"][0]["success"]


def test_runs_without_a_common_task_are_refused() -> None:
    with pytest.raises(EvaluationError, match="no task is in all of"):
        compare_runs([compared("a", [attempt("1", 0, 1.0)]), compared("b", [attempt("2", 0, 1.0)])])


def test_an_evaluation_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="holds no report of an evaluation"):
        read_evaluation(tmp_path)
    report = BenchmarkReport({"benchmark": {"name": "exam"}}, tmp_path)
    assert Evaluation([report])["exam"] is report
    with pytest.raises(EvaluationError, match=r"no report on 'exams'\n  hint: there are exam"):
        Evaluation([report])["exams"]
