"""The list of runs: every filter, every order, and a search with its hits in context."""

from __future__ import annotations

from typing import Any

import pytest

from coa.errors import ConfigError
from coa.trajectory import Author, Repair, RepairKind, Step, Stop, Task, Trajectory, Usage, write
from coa.trajectory.types import Failure, FailureSite, FrozenDict, Score
from coa.view.filters import SORTS, match_expression
from coa.view.indexer import update_index
from coa.view.reading import Missing, Reader


def run(task: str, *steps: Step, score: float | None = None, **rest: Any) -> Trajectory:
    scores = FrozenDict({"exact": Score(value=score)}) if score is not None else FrozenDict()
    about = rest.pop("about", {})
    return Trajectory(
        task=Task(id=task, question=rest.pop("question", f"Question {task}?"), answer=("Ada",), meta=about),
        profile="web", steps=steps or (Step(agent="answer", text="Ada"),), scores=scores, **rest,
    )  # fmt: skip


def observed(text: str, *, ok: bool = True) -> Step:
    return Step(agent="observation", text=text, author=Author.ENVIRONMENT, meta={"ok": ok})


RUNS = (
    run("right", score=1.0, usage=Usage(prompt_tokens=90, completion_tokens=10, seconds=3.0, cost=0.5)),
    run("wrong", Step(agent="web_search", text="Zürich lights"), observed("HTTP 503 from the archive", ok=False),
        Step(agent="answer", text="Bo"), score=0.0,
        usage=Usage(prompt_tokens=400, completion_tokens=100, tool_calls=1)),
    run("partly", score=0.5, about={"family": "two_hop", "benchmark": "towns"}),
    run("repaired", Step(agent="answer", text="Ada", repairs=(Repair(kind=RepairKind.LOOSE_TAG),))),
    run("failed", Step(agent="think", text="hm"), stop=Stop.FAILED,
        failure=Failure(site=FailureSite.MODEL, message="the server is gone")),
    run("silent", Step(agent="think", text="the older lighthouse keeper"), stop=Stop.UNANSWERED, score=0.0),
    run("chinese", Step(agent="answer", text="東京タワー"), question="日本の塔はどれですか"),
    run("again", score=1.0, sample=2, usage=Usage(prompt_tokens=200)),
)  # fmt: skip


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    root = tmp_path_factory.mktemp("listed")
    write(root / "runs" / "trajectories.jsonl", RUNS)
    learning = FrozenDict({"rl": {"step": 4, "group": 2, "reward": 1.0, "advantage": 0.7, "learnt": False}})
    write(root / "rl" / "groups.jsonl", [run("right", score=0.0, meta=learning), run("wrong", score=1.0)])
    index = root / "cache" / "index.sqlite"
    update_index(index, [root / "runs", root / "rl"])
    return Reader(index, ["runs", "rl"])


def tasks(reader: Reader, **query: str) -> list[str]:
    return [row["task"] for row in reader.runs(query)["rows"]]


def folder(reader: Reader, path: str) -> str:
    return next(str(one["id"]) for one in reader.overview()["folders"] if one["path"] == path)


def test_outcomes_say_how_a_run_ended_and_was_judged(reader: Reader) -> None:
    rows = reader.runs({"folder": folder(reader, "runs")})["rows"]
    assert {row["task"]: row["outcome"] for row in rows} == {
        "right": "right", "wrong": "wrong", "partly": "partly", "repaired": "right", "failed": "failed",
        "silent": "unanswered", "chinese": "unscored", "again": "right",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"outcome": "partly"}, ["partly"]),
        ({"outcome": "partly,failed"}, ["partly", "failed"]),
        ({"stop": "unanswered"}, ["silent"]),
        ({"agent": "web_search"}, ["wrong"]),
        ({"tool_error": "1"}, ["wrong"]),
        ({"repaired": "1"}, ["repaired"]),
        ({"min_tokens": "200"}, ["wrong", "again"]),
        ({"min_tokens": "200", "max_tokens": "300"}, ["again"]),
        ({"benchmark": "towns"}, ["partly"]),
        ({"family": "two_hop"}, ["partly"]),
        ({"step": "4"}, ["right"]),
        ({"step": "4", "group": "2"}, ["right"]),
        ({"step": "4", "group": "1"}, []),
        ({"task": "failed"}, ["failed"]),
        ({"sample": "2"}, ["again"]),
        ({"outcome": "right", "min_tokens": "150"}, ["again"]),
    ],
)
def test_filters_let_only_what_they_name_pass(reader: Reader, query: dict[str, str], found: list[str]) -> None:
    assert tasks(reader, **query) == found
    assert reader.runs(query)["total"] == len(found)


def test_the_list_can_be_sorted_by_every_column_both_ways(reader: Reader) -> None:
    asked = {"folder": folder(reader, "runs")}
    assert tasks(reader, **asked, sort="-tokens")[:3] == ["wrong", "again", "right"]
    assert tasks(reader, **asked, sort="cost")[0] == "right"
    assert tasks(reader, **asked, sort="-cost")[0] == "right", "what is unknown comes last in both directions"
    for column in SORTS:
        assert sorted(tasks(reader, **asked, sort=column)) == sorted(tasks(reader, **asked, sort=f"-{column}"))


def test_pages_of_the_list_are_all_of_it_and_no_run_twice(reader: Reader) -> None:
    pages = [tasks(reader, sort="task", limit="3", offset=str(offset)) for offset in (0, 3, 6, 9)]
    assert [task for page in pages for task in page] == tasks(reader, sort="task")
    assert [len(page) for page in pages] == [3, 3, 3, 1]


@pytest.mark.parametrize(
    ("query", "words"),
    [({"colour": "blue"}, "colour"), ({"sort": "colour"}, "colour"), ({"min_tokens": "many"}, "min_tokens"),
     ({"limit": "-1"}, "limit"), ({"q": "x", "in": "titles"}, "titles")],
)  # fmt: skip
def test_a_query_that_cannot_be_understood_says_what_is_wrong(
    reader: Reader, query: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        reader.runs(query)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("lighthouse", ["silent"]),
        ("LIGHTHOUSE keeper", ["silent"]),
        ("keeper older", ["silent"]),
        ('"older lighthouse"', ["silent"]),
        ('"lighthouse older"', []),
        ("lighth", ["silent"]),
        ("zurich", ["wrong"]),
        ("archive", ["wrong"]),
        ("東京", ["chinese"]),
        ("京タ", ["chinese"]),
        ("日本", ["chinese"]),
        ('" OR 1', []),
        ("*", None),
        ("NEAR(", []),
    ],
)
def test_a_search_finds_words_phrases_beginnings_and_ideographs(
    reader: Reader, words: str, found: list[str] | None
) -> None:
    wanted = tasks(reader) if found is None else found
    assert tasks(reader, q=words) == wanted


def test_a_search_can_be_limited_to_questions_steps_or_observations(reader: Reader) -> None:
    assert tasks(reader, q="archive", **{"in": "observations"}) == ["wrong"]
    assert tasks(reader, q="archive", **{"in": "steps"}) == []
    assert tasks(reader, q="Question", **{"in": "question"}) == [
        task for task in tasks(reader) if task != "chinese"
    ]  # fmt: skip


def test_hits_are_shown_in_context_with_the_step_where_they_are(reader: Reader) -> None:
    (row,) = reader.runs({"q": "archive"})["rows"]
    (hit,) = row["hits"]
    assert hit == {
        "where": "observation", "step": 1, "agent": "observation", "before": "HTTP 503 from the ", "match": "archive",
        "after": "",
    }  # fmt: skip


def test_words_with_signs_are_words_for_sqlite_not_operators() -> None:
    assert match_expression('a-b "c d" e', None) == '"a-b" AND "c d" AND "e"*'
    assert match_expression("  ", None) == ""
    assert match_expression('say "hello" ', "steps") == '{steps} : ("say" AND "hello")'


def test_folders_are_compared_by_the_tasks_they_share(reader: Reader) -> None:
    both = f"{folder(reader, 'runs')},{folder(reader, 'rl')}"
    found = reader.compare({"folders": both})
    assert found["counts"] == {
        "tasks": 2,
        "patterns": {"10": 1, "01": 1},
        "disagree": 2,
        "all_right": 0,
        "all_wrong": 0,
    }
    assert [task["task"] for task in found["tasks"]] == ["right", "wrong"]
    assert [[row["outcome"] for row in side] for side in found["tasks"][0]["runs"]] == [["right"], ["wrong"]]
    only = reader.compare({"folders": both, "only": "01"})
    assert [task["task"] for task in only["tasks"]] == ["wrong"] and only["total"] == 1
    assert reader.compare({"folders": both, "only": "11"})["total"] == 0
    assert reader.compare({"folders": both, "only": "disagree", "limit": "1"})["total"] == 2


def test_comparing_needs_folders_that_exist(reader: Reader) -> None:
    with pytest.raises(ConfigError, match="2 to 8 folders"):
        reader.compare({"folders": folder(reader, "rl")})
    with pytest.raises(Missing):
        reader.compare({"folders": f"{folder(reader, 'rl')},nothing"})


def test_a_folder_is_found_by_the_name_that_its_report_has(reader: Reader) -> None:
    assert reader.folder("rl") == reader.folder(folder(reader, "rl"))
    with pytest.raises(Missing):
        reader.folder("nothing")


def test_other_attempts_and_other_folders_are_found_by_the_task(reader: Reader) -> None:
    row = reader.runs({"task": "right", "folder": folder(reader, "runs")})["rows"][0]
    record = reader.run(row["id"])
    assert record["siblings"] == []
    assert [other["path"] for other in record["elsewhere"]] == ["rl"]


def test_the_overview_counts_what_filters_can_choose(reader: Reader) -> None:
    facets = reader.overview()["facets"]
    assert facets["families"] == {"two_hop": 1}
    assert facets["step"] == [4, 4]
    assert facets["outcomes"]["failed"] == 1
    assert facets["agents"]["web_search"]["runs"] == 1


def test_the_page_of_a_run_names_its_file_and_line(reader: Reader) -> None:
    row = reader.runs({"task": "partly"})["rows"][0]
    record = reader.run(row["id"])
    assert record["place"] == {"file": "runs/trajectories.jsonl", "line": 3}
    assert record["scores"] == [{"name": "exact", "value": 0.5, "reason": ""}]


def test_violations_of_the_protocol_are_marked_at_their_step(reader: Reader) -> None:
    record = reader.run(reader.runs({"task": "wrong", "folder": folder(reader, "runs")})["rows"][0]["id"])
    assert record["violations"]
    assert all(0 <= one["step"] <= len(RUNS[1].steps) and one["message"] for one in record["violations"])


def test_findings_have_their_run_and_step(reader: Reader) -> None:
    found = reader.findings({})
    assert found["scanned"] == reader.overview()["progress"]["runs"]
    errors = [one for one in found["findings"] if one["scanner"] == "tool_errors"]
    assert [(one["task"], one["step"]) for one in errors] == [("wrong", 1)]
    assert tasks(reader, finding="tool_errors") == ["wrong"]
    only = reader.findings({"scanner": "tool_errors"})
    assert only["total"] == len(only["findings"]) == 1


def test_a_run_is_also_shown_as_its_record_and_as_one_text(reader: Reader) -> None:
    row = reader.runs({"task": "right"})["rows"][0]
    raw = reader.raw(row["id"])
    assert '"schema_version"' in raw["json"] and "<answer>Ada</answer>" in raw["transcript"]
