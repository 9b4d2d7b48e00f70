"""Whatever happens to a file of traces: it is skipped by name, never raised; and a big file is never held whole."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coa.distill.atif_writer import to_atif
from coa.distill.importers.detect import read_traces
from coa.distill.team_run import Skipped, TeamRun
from coa.trajectory.store import NAMES, write
from coa.trajectory.types import Trajectory
from support.distilled import good
from support.team_runs import team_runs
from support.trace_samples import SAMPLES

ODD: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
quick = settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def read(path: Path) -> list[TeamRun | Trajectory | Skipped]:
    found = list(read_traces(path))
    assert found, "a file gives at least a reason"
    assert all(item.file == str(path) and item.reason for item in found if isinstance(item, Skipped))
    return found


@pytest.mark.parametrize("name", sorted(SAMPLES))
@quick
@given(data=st.data())
def test_a_file_cut_anywhere_or_with_bytes_changed_is_never_an_exception(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    whole = SAMPLES[name]
    cut = data.draw(st.integers(0, len(whole)))
    damaged = bytearray(whole[:cut])
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / name
    path.write_bytes(bytes(damaged))
    read(path)


@pytest.mark.parametrize("content", [b"", b" \n", b"\x1e", b",\n", b"\xef\xbb\xbf"])
def test_a_file_of_nothing_but_separators_gives_its_reason(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log.json"
    path.write_bytes(content)
    (only,) = read(path)
    assert isinstance(only, Skipped)


@pytest.mark.parametrize("name", sorted(SAMPLES))
@quick
@given(data=st.data())
def test_a_value_of_the_wrong_kind_anywhere_is_never_an_exception(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    rows = [json.loads(line) for line in SAMPLES[name].splitlines()]
    places = list(_places(rows))
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(places))
        holder[key] = data.draw(ODD)
    path = tmp_path / name
    path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    read(path)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key, item in list(enumerate(value) if isinstance(value, list) else value.items()):
        yield value, key
        if isinstance(item, list | dict):
            yield from _places(item)


def test_a_cut_sample_is_skipped_and_the_whole_one_is_read(tmp_path: Path) -> None:
    for name, whole in SAMPLES.items():
        path = tmp_path / name
        path.write_bytes(whole)
        assert not any(isinstance(item, Skipped) for item in read(path)), name
        path.write_bytes(whole[: len(whole) * 2 // 5])
        # A recorder that is killed tears its last line; the run is read, and the line is listed.
        assert any(isinstance(item, Skipped) or getattr(item, "left_out", ()) for item in read(path)), name


def test_sub_agents_nested_without_end_are_skipped(tmp_path: Path) -> None:
    document: dict[str, Any] = {
        "schema_version": "ATIF-v1.7",
        "agent": {},
        "steps": [{"source": "user", "message": "x"}],
    }
    for _ in range(100):
        document = {**document, "subagent_trajectories": [document], "trajectory_id": "a"}
    path = tmp_path / "deep.json"
    path.write_text(json.dumps(document))
    (found,) = read(path)
    assert isinstance(found, Skipped) and "deep" in found.reason


@settings(deadline=None, max_examples=1, suppress_health_check=list(HealthCheck))
@given(team_runs())
def test_memory_does_not_grow_with_the_number_of_runs(tmp_path_factory: pytest.TempPathFactory, run: TeamRun) -> None:
    padded = run.model_copy(update={"root": run.root.model_copy(update={"system": "s" * 20_000})})
    line = orjson.dumps(to_atif(padded)) + b"\n"

    def peak(count: int) -> int:
        path = tmp_path_factory.mktemp("many") / "runs.jsonl"
        with path.open("wb") as file:
            for _ in range(count):
                file.write(line)
        tracemalloc.start()
        assert sum(isinstance(item, TeamRun) for item in read_traces(path)) == count
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    peak(5)
    # 400 runs are 8 MB of text; held together they would show.
    assert peak(400) < peak(20) + 1_000_000


def runs_and_reasons(path: Path, *rows: Any) -> tuple[int, list[str]]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read(path)
    return sum(not isinstance(item, Skipped) for item in found), [i.place for i in found if isinstance(i, Skipped)]


def test_a_bad_value_does_not_take_its_neighbours_along(tmp_path: Path) -> None:
    (atif,), (chat, _), spans = (
        [json.loads(line) for line in SAMPLES[name].splitlines()] for name in ("atif.json", "chat.jsonl", "genai.jsonl")
    )
    chats = [{**chat, "session_id": name, "task_id": name} for name in "abc"]
    odd = json.loads(json.dumps(spans[0]).replace('"aa"', '"bb"'))
    odd["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"].append({"key": "n", "value": {"intValue": "x"}})
    header = {"run": "of monday"}
    path = tmp_path / "traces.jsonl"
    assert runs_and_reasons(path, header, atif, atif) == (2, ["line 1"])
    assert runs_and_reasons(path, header, *chats) == (3, ["line 1"])
    assert runs_and_reasons(path, chats[0], {**chats[1], "answer": [1, None]}, chats[2]) == (2, ["b"])
    assert runs_and_reasons(path, odd, *spans) == (2, [])
    assert runs_and_reasons(path, *spans, header) == (1, ["line 4"])


def test_what_python_writes_as_json_is_read(tmp_path: Path) -> None:
    (chat, _) = (json.loads(line) for line in SAMPLES["chat.jsonl"].splitlines())
    odd = {**chat, "session_id": "b", "task_id": "b", "cost": float("nan"), "note": "\ud800"}
    assert runs_and_reasons(tmp_path / "chat.jsonl", chat, odd, {**chat, "session_id": "c"}) == (3, [])


def test_our_own_trajectories_are_read_once_and_a_bad_one_is_skipped(tmp_path: Path) -> None:
    rows = [good(task_id=name) for name in "ab"]
    for name in NAMES:
        write(tmp_path / "runs" / "one" / name, rows)
    (tmp_path / "runs" / "one" / "README.md").write_text("card")
    write(tmp_path / "runs" / "two.parquet", rows[:1])
    found = list(read_traces(tmp_path / "runs"))
    assert [item.task.id for item in found if isinstance(item, Trajectory)] == ["a", "b", "a"] and len(found) == 3
    with (tmp_path / "runs" / "one" / NAMES[0]).open("a") as file:
        file.write('{"task": 3, "profile": "web", "steps": []}\n' + rows[0].to_json()[:50])
    found = list(read_traces(tmp_path / "runs"))
    assert [item.place for item in found if isinstance(item, Skipped)] == ["line 3", "line 4"] and len(found) == 5
