"""Stored runs: found again by their owner only, after a kill too, and not for ever."""

import os
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from coa.errors import StoreError
from coa.serve.store import Store, StoredRun, trajectory_line
from coa.trajectory import Step, Task, Trajectory, load_profile, profile_of

WEB = load_profile("web")
LINE = trajectory_line(
    Trajectory(
        task=Task(id="a", question="q?"), profile="web", profile_hash=WEB.hash, steps=(Step(agent="answer", text="7"),)
    )
)


def stored(number: int, *, owner: str = "alice", call: str | None = None, body: bytes = b"{}") -> StoredRun:
    return StoredRun(
        f"run{number}", owner, "responses", "agent", float(number), "done", None, "run0", "q?", call, body, LINE
    )


def opened(folder: Path, *, at: float = 100.0, days: float = 1.0, most_bytes: int = 1 << 20) -> Store:
    return Store(folder, days=days, most_bytes=most_bytes, clock=lambda: at)


def kept(store: Store) -> list[StoredRun]:
    """What there is of the runs up to 30, the newest first."""
    found = [store.get(f"run{number}", "alice") for number in range(30, -1, -1)]
    return [run for run in found if run is not None]


def test_a_run_is_found_again_by_its_owner_only(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(stored(1, call="call_1"))
    assert store.get("run1", "alice") == stored(1, call="call_1")
    assert store.by_call("call_1", "alice") is not None
    assert store.get("run1", "bob") is None and store.by_call("call_1", "bob") is None
    assert not store.delete("run1", "bob") and store.delete("run1", "alice")
    assert store.get("run1", "alice") is None


def test_runs_survive_a_process_that_never_closed_the_file(tmp_path: Path) -> None:
    opened(tmp_path).put(stored(1))
    found = opened(tmp_path).get("run1", "alice")
    assert found is not None and found.trajectory.answer == "7" and profile_of(found.trajectory) == WEB


def test_old_runs_expire_and_those_that_wait_for_their_client_are_returned_once(tmp_path: Path) -> None:
    store = opened(tmp_path, at=86400 + 3.0)
    store.put(replace(stored(1, call="call_1"), status="waiting"))
    for number in (2, 3, 4):
        store.put(stored(number))
    assert [run.id for run in store.expire()] == ["run1"]
    assert store.expire() == [] and [run.id for run in kept(store)] == ["run4", "run3"]


def test_what_is_asked_of_all_runs_is_answered_from_indexes(tmp_path: Path) -> None:
    """Reading every row took seconds in a large file, and the server's streams waited."""
    store = opened(tmp_path)
    asked: list[str] = []
    with sqlite3.connect(store.path) as connection:
        store._db.set_trace_callback(asked.append)
        store.expire()
        store.conversations("alice", "page")
        store._make_room(keep="run1")
        store._db.set_trace_callback(None)
        plans = [connection.execute(f"EXPLAIN QUERY PLAN {query}").fetchall() for query in asked]
    steps = [row[3] for plan in plans for row in plan]
    assert len(asked) == 5 and any("runs" in step for step in steps)
    assert not [step for step in steps if step.startswith("SCAN runs") and "COVERING INDEX" not in step]
    assert any("USING COVERING INDEX runs_by_list" in step for step in steps)


def test_the_oldest_go_first_when_the_file_is_full(tmp_path: Path) -> None:
    store = opened(tmp_path, most_bytes=20_000)
    for number in range(30):
        store.put(stored(number, body=b"x" * 2_000))
    left = kept(store)
    assert left and [run.id for run in left] == [f"run{number}" for number in range(29, 29 - len(left), -1)]
    assert sum(len(run.body) + len(run.line) for run in left) < 20_000


def test_a_run_that_alone_is_too_large_is_kept_until_the_next(tmp_path: Path) -> None:
    store = opened(tmp_path, most_bytes=5_000)
    store.put(stored(1, body=b"x" * 9_000))
    assert store.get("run1", "alice") is not None


def test_replacing_a_run_does_not_count_it_twice(tmp_path: Path) -> None:
    store = opened(tmp_path, most_bytes=20_000)
    for _ in range(50):
        store.put(stored(1, body=b"x" * 4_000))
    store.put(stored(2, body=b"x" * 4_000))
    assert [run.id for run in kept(store)] == ["run2", "run1"]


def test_only_this_user_may_read_the_file(tmp_path: Path) -> None:
    store = opened(tmp_path / "state")
    assert stat.S_IMODE(os.stat(store.path).st_mode) == 0o600


def test_a_file_that_is_no_database_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "runs.sqlite").write_bytes(b"this is text, and long enough to be looked at as a file" * 20)
    with pytest.raises(StoreError, match="cannot be read") as error:
        opened(tmp_path)
    assert "move the file away" in (error.value.hint or "")


def test_conversations_are_listed_by_their_first_question_the_newest_first(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number, conversation, question in ((1, "run1", "first?"), (2, "run2", "other?"), (3, "run1", "second?")):
        store.put(replace(stored(number), protocol="page", conversation=conversation, question=question))
    store.put(replace(stored(4), protocol="responses", conversation="run4"))
    store.put(replace(stored(5, owner="bob"), protocol="page", conversation="run5"))
    assert store.conversations("alice", "page") == [("run1", "first?", 3.0), ("run2", "other?", 2.0)]
    assert store.conversations("alice", "page", limit=1) == [("run1", "first?", 3.0)]
