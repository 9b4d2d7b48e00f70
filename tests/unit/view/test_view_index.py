"""The index follows the files: what is appended is added, what is replaced is read again, what is deleted goes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from coa.serve.store import Store, StoredRun, trajectory_line
from coa.trajectory import Author, Step, Trajectory, load_profile, write
from coa.trajectory.types import FrozenDict, Score
from coa.view.index import IndexWriter, cache_file, connect
from coa.view.queries import Queries, Row
from coa.view.updating import Updater
from support.builders import make_trajectory, web_run


class Viewed:
    """A folder and its index, updated on demand."""

    def __init__(self, root: Path, index: Path) -> None:
        self.root = root
        self.writer = IndexWriter(index)
        self.updater = Updater(self.writer, [root])
        self.queries = Queries(connect(index))

    def update(self) -> bool:
        return self.updater.update()

    def tasks(self) -> list[str]:
        return [row["task"] for row in self.rows()]

    def rows(self, **query: str) -> list[Row]:
        return self.queries.runs({"limit": "100", **query}).rows


@pytest.fixture
def viewed(tmp_path: Path) -> Viewed:
    root = tmp_path / "runs"
    root.mkdir()
    return Viewed(root, tmp_path / "index.sqlite")


def run(task: str, **rest: object) -> Trajectory:
    made = web_run()
    return made.model_copy(update={"task": made.task.model_copy(update={"id": task}), **rest})


def test_what_is_appended_is_added_without_reading_the_rest_again(viewed: Viewed) -> None:
    file = viewed.root / "trajectories.jsonl"
    write(file, [run("a")])
    assert viewed.update()
    first = viewed.rows()[0]["id"]
    numbers = viewed.writer.connection.execute("SELECT id FROM runs").fetchall()
    write(file, [run("b")])
    assert viewed.update()
    assert viewed.tasks() == ["a", "b"]
    assert viewed.rows()[0]["id"] == first
    assert viewed.writer.connection.execute("SELECT id FROM runs").fetchall()[:1] == numbers
    assert not viewed.update()


def test_a_line_that_is_being_written_is_added_once_when_it_is_complete(viewed: Viewed) -> None:
    file = viewed.root / "trajectories.jsonl"
    write(file, [run("a")])
    line = run("b").to_json().encode()
    with file.open("ab") as out:
        out.write(line[:50])
    viewed.update()
    assert viewed.tasks() == ["a"]
    assert [problem["place"] for problem in viewed.queries.problems()] == ["end"]
    with file.open("ab") as out:
        out.write(line[50:])
    viewed.update()
    assert viewed.tasks() == ["a", "b"]
    with file.open("ab") as out:
        out.write(b"\n")
    viewed.update()
    assert viewed.tasks() == ["a", "b"]
    assert viewed.queries.problems() == []


def test_a_file_that_was_rewritten_is_read_again_and_keeps_its_addresses(viewed: Viewed) -> None:
    file = viewed.root / "trajectories.jsonl"
    write(file, [run("a"), run("b")])
    viewed.update()
    before = [row["id"] for row in viewed.rows()]
    file.unlink()
    write(file, [run("a"), run("b", scores=FrozenDict({"exact": Score(value=1.0)}))])
    viewed.update()
    assert [row["id"] for row in viewed.rows()] == before
    assert [row["outcome"] for row in viewed.rows()] == ["right", "right"]
    assert [row["score"] for row in viewed.rows()] == [None, 1.0]


def test_words_of_a_replaced_file_are_not_found_any_more(viewed: Viewed) -> None:
    file = viewed.root / "trajectories.jsonl"
    write(file, [make_trajectory(("answer", "zanzibar"))])
    viewed.update()
    assert viewed.queries.runs({"q": "zanzibar"}).total == 1
    file.unlink()
    write(file, [make_trajectory(("answer", "timbuktu"))])
    viewed.update()
    assert viewed.queries.runs({"q": "zanzibar"}).total == 0
    assert viewed.queries.runs({"q": "timbuktu"}).total == 1


def test_a_deleted_file_goes_with_its_runs_and_problems(viewed: Viewed) -> None:
    file = viewed.root / "more.jsonl"
    write(viewed.root / "trajectories.jsonl", [run("a")])
    write(file, [run("b")])
    with file.open("ab") as out:
        out.write(b"{torn\n")
    viewed.update()
    assert sorted(viewed.tasks()) == ["a", "b"] and viewed.queries.problem_count() == 1
    file.unlink()
    assert viewed.update()
    assert viewed.tasks() == ["a"] and viewed.queries.problem_count() == 0


def test_a_root_that_is_deleted_leaves_an_empty_list(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    write(file, [run("a")])
    viewed = Viewed(file, tmp_path / "index.sqlite")
    viewed.update()
    file.unlink()
    viewed.update()
    assert viewed.tasks() == []


def test_parquet_has_the_same_rows_as_jsonl(tmp_path: Path) -> None:
    runs = [run("a"), run("b", scores=FrozenDict({"exact": Score(value=0.0)}))]
    found = []
    for name in ("runs.jsonl", "runs.parquet"):
        folder = tmp_path / name
        folder.mkdir()
        write(folder / name, runs)
        viewed = Viewed(folder, tmp_path / f"{name}.sqlite")
        viewed.update()
        found.append([{**row, "id": "", "folder": "", "path": ""} for row in viewed.rows()])
    assert found[0] == found[1] and len(found[0]) == 2


def test_verdicts_of_an_evaluation_count_while_it_still_runs(viewed: Viewed) -> None:
    (viewed.root / "config.json").write_bytes(orjson.dumps({"stage": "eval", "scorer": "exact"}))
    write(viewed.root / "trajectories.jsonl", [run("a"), run("b")])
    viewed.update()
    assert {row["score"] for row in viewed.rows()} == {None}
    verdict = {"task": "b", "sample": 0, "scores": {"exact": {"value": 0.0, "reason": ""}}}
    with (viewed.root / "scores.jsonl").open("ab") as journal:
        journal.write(orjson.dumps(verdict) + b"\n" + b'{"task": "a", "sam')
    assert viewed.update()
    assert {row["task"]: (row["score"], row["outcome"]) for row in viewed.rows()} == {
        "a": (None, "right"),
        "b": (0.0, "wrong"),
    }
    assert not viewed.update()


def test_runs_of_a_server_appear_and_go_as_the_server_keeps_them(tmp_path: Path) -> None:
    state = tmp_path / "state"
    store = Store(state, days=1, most_bytes=1 << 30)

    def put(name: str) -> None:
        store.put(StoredRun(id=name, owner="", protocol="page", agent="x", created=1.0, status="done", previous=None,
                            conversation=name, question="q", call=None, body=b"{}",
                            line=trajectory_line(run(name))))  # fmt: skip

    put("a")
    viewed = Viewed(state, tmp_path / "index.sqlite")
    viewed.update()
    assert viewed.tasks() == ["a"]
    assert not viewed.update()
    put("b")
    assert viewed.update()
    ids = {row["task"]: row["id"] for row in viewed.rows()}
    assert set(ids) == {"a", "b"}
    store.delete("a", "")
    viewed.update()
    assert {row["task"]: row["id"] for row in viewed.rows()} == {"b": ids["b"]}
    store.close()


def test_groups_of_rl_belong_to_the_run_and_have_their_step(viewed: Viewed) -> None:
    folder = viewed.root / "rl"
    (folder / "groups").mkdir(parents=True)
    (folder / "config.json").write_bytes(orjson.dumps({"stage": "rl"}))
    learning = {"rl": {"step": 3, "group": 1, "reward": 0.5, "advantage": -0.25, "learnt": True}}
    write(folder / "groups" / "step-3.jsonl", [run("a", meta=FrozenDict(learning))])
    viewed.update()
    (row,) = viewed.rows(step="3", group="1")
    assert (row["reward"], row["advantage"], row["learnt"]) == (0.5, -0.25, True)
    (shown,) = [one for one in viewed.queries.folders() if one["kind"] == "rl"]
    assert row["folder"] == shown["id"] and shown["runs"] == 1
    assert viewed.queries.attempts(shown["id"]) == [(3, "", None)]


def test_the_definition_of_a_profile_is_kept_for_records_that_have_only_its_hash(viewed: Viewed) -> None:
    profile = load_profile("web")
    write(viewed.root / "trajectories.jsonl", [run("a", profile_hash=profile.hash)])
    viewed.update()
    assert viewed.queries.definition(profile.hash) is not None


def test_the_index_is_not_inside_the_folder_that_is_viewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COA_CACHE", str(tmp_path / "cache"))
    place = cache_file([tmp_path / "runs"])
    assert place.is_relative_to(tmp_path / "cache")
    assert place != cache_file([tmp_path / "other"])
    assert cache_file([tmp_path / "runs"], tmp_path / "here").parent == tmp_path / "here"


def test_agents_that_only_the_environment_plays_are_not_agents_that_were_used(viewed: Viewed) -> None:
    steps = (Step(agent="observation", text="x", author=Author.ENVIRONMENT), Step(agent="answer", text="y"))
    write(viewed.root / "trajectories.jsonl", [run("a", steps=steps)])
    viewed.update()
    assert viewed.rows()[0]["agents"] == ["answer"]


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row["steps"][0].update(agent=5),
        lambda row: row["steps"][0].update(agent=None),
        lambda row: row["steps"][0].update(text=["a"]),
        lambda row: row["task"].update(question=["a", "b"]),
        lambda row: row.update(profile_hash={"a": 1}),
        lambda row: row.update(profile=["web"]),
        lambda row: row.update(stop={"a": 1}),
        lambda row: row.update(usage={"tool_calls": 1 << 70}),
        lambda row: row.update(usage={"prompt_tokens": 1e300}),
        lambda row: row.update(usage={"cost": "much"}),
        lambda row: row.update(sample=1 << 64),
        lambda row: row.update(meta={"rl": {"step": 1 << 64}}),
        lambda row: row.update(scores={"exact": {"value": [1]}}),
        lambda row: row["task"].update(meta={"family": 10**400}),
        lambda row: row.update(steps=5),
        lambda row: row.update(task=None),
    ],
)
def test_a_record_of_wrong_values_does_not_stop_the_index(viewed: Viewed, change: Callable[[Any], None]) -> None:
    row = json.loads(run("bad").to_json())
    change(row)
    file = viewed.root / "trajectories.jsonl"
    write(file, [run("a")])
    with file.open("ab") as out:
        out.write(json.dumps(row).encode() + b"\n")
    write(file, [run("b")])
    write(viewed.root / "later.jsonl", [run("c")])
    viewed.update()
    assert {"a", "b", "c"} <= set(viewed.tasks()) <= {"a", "b", "c", "bad"}
    assert len(viewed.tasks()) + viewed.queries.problem_count() == 4
    assert not viewed.update()


def test_an_index_that_is_up_to_date_is_not_written(viewed: Viewed) -> None:
    write(viewed.root / "trajectories.jsonl", [run("a")])
    viewed.update()
    viewed.update()
    before = viewed.queries.state("revision")
    for _ in range(3):
        viewed.update()
    assert viewed.queries.state("revision") == before
    assert viewed.queries.progress()["busy"] == 0


def test_without_a_score_an_accepted_answer_is_right_and_another_is_open(viewed: Viewed) -> None:
    write(
        viewed.root / "trajectories.jsonl", [make_trajectory(("answer", " ADA. ")), make_trajectory(("answer", "Bo"))]
    )
    viewed.update()
    assert [row["outcome"] for row in viewed.rows()] == ["right", "unscored"]
