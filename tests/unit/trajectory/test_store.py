"""Files: exact, crash-proof, shared, and clear about damage."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
import tracemalloc
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coa.errors import SchemaVersionError, StoreError
from coa.trajectory import Failure, FailureSite, JsonlWriter, ParquetWriter, Stop, Trajectory, read, write, writer
from coa.trajectory.store import rewrite, set_aside
from support.builders import make_trajectory, web_run
from support.strategies import trajectories

ENDINGS = ["jsonl", "parquet"]


def numbered(count: int) -> list[Trajectory]:
    return [web_run(sample=n) for n in range(count)]


@pytest.mark.parametrize("ending", ENDINGS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(trajectories, max_size=4))
def test_what_is_written_is_read_back_exactly(ending: str, tmp_path: Path, records: list[Trajectory]) -> None:
    path = tmp_path / f"t.{ending}"
    path.unlink(missing_ok=True)
    assert write(path, records) == len(records)
    assert list(read(path)) == records


@pytest.mark.parametrize("name", ["trajectories.jsonl", "trajectories.parquet"])
def test_a_run_folder_is_read_like_its_file(name: str, tmp_path: Path) -> None:
    write(tmp_path / name, numbered(2))
    assert list(read(tmp_path)) == numbered(2)


def test_jsonl_is_appended_to(tmp_path: Path) -> None:
    write(tmp_path / "t.jsonl", numbered(2))
    write(tmp_path / "t.jsonl", [web_run(sample=2)])
    assert list(read(tmp_path / "t.jsonl")) == numbered(3)


@pytest.mark.parametrize("cut", [1, 2, 40, 400])
def test_a_torn_last_line_is_left_out_when_read_and_put_aside_on_resume(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write(path, numbered(3))
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    expected = numbered(3) if cut == 1 else numbered(2)  # one byte less is the line break alone: nothing is lost
    assert list(read(path)) == expected
    with JsonlWriter(path) as out:
        out.write(web_run(sample=9))
    assert list(read(path)) == [*expected, web_run(sample=9)]
    torn = tmp_path / "t.jsonl.torn"
    assert torn.exists() is (cut > 1)
    if cut > 1:
        assert torn.read_bytes().rstrip(b"\n") == whole[:-cut].rsplit(b"\n", 1)[1]


def test_a_torn_only_line_and_a_long_torn_line_are_repaired(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"schema_version":1,"task":"' + b"x" * 200_000)
    with JsonlWriter(path) as out:
        out.write(web_run())
    assert list(read(path)) == [web_run()]


def test_a_bad_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write(path, numbered(1))
    with path.open("ab") as file:
        file.write(b"{broken}\n")
    write(path, numbered(1))
    with pytest.raises(StoreError, match=r"t\.jsonl, line 2"):
        list(read(path))


def test_a_newer_record_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(web_run().to_json().replace('"schema_version":2', '"schema_version":7') + "\n")
    with pytest.raises(SchemaVersionError, match=r"line 1.*version 7"):
        list(read(path))


def run_python(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments], env=environment, stderr=subprocess.PIPE
    )


APPEND = """
import sys
from coa.trajectory import JsonlWriter
from support.builders import make_trajectory
path, who, count, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with JsonlWriter(path) as out:
    for n in range(count):
        out.write(make_trajectory(("think", who * size), sample=n))
"""


def test_two_processes_never_interleave_a_record(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    # records of 300 kB, far more than one write to a pipe or a page would keep together by luck
    both = [run_python(APPEND, str(path), who, "40", "300000") for who in "ab"]
    for process in both:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    found = sorted((t.steps[0].text[0], t.sample) for t in read(path))
    assert found == sorted((who, n) for who in "ab" for n in range(40))


def test_a_killed_writer_is_resumed_without_loss_or_duplicates(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    code = """
    import sys
    from coa.trajectory import JsonlWriter, read
    from support.builders import make_trajectory
    path = sys.argv[1]
    with JsonlWriter(path) as out:
        done = {t.key for t in read(path)}
        for n in range(400):
            t = make_trajectory(("think", "x" * 20000), sample=n)
            if t.key not in done:
                out.write(t)
    """
    for attempt in range(6):
        process = run_python(code, str(path))
        goal = (attempt + 1) * 400_000
        while process.poll() is None and (not path.exists() or path.stat().st_size < goal):
            pass
        process.send_signal(signal.SIGKILL)
        process.communicate()
    process = run_python(code, str(path))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()
    assert sorted(t.sample for t in read(path)) == list(range(400))


def test_a_full_disk_leaves_whole_records(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    code = """
    import sys, resource
    from coa.errors import StoreError
    from coa.trajectory import JsonlWriter
    from support.builders import make_trajectory
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    with JsonlWriter(sys.argv[1]) as out:
        for n in range(100):
            try:
                out.write(make_trajectory(("think", "x" * 9000), sample=n))
            except StoreError as error:
                assert "cannot append" in str(error), error
                sys.exit(7)
    """
    process = run_python(code, str(path))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 7, errors.decode()
    assert [t.sample for t in read(path)] == list(range(5))
    assert path.read_bytes().endswith(b"\n")
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 50_000


def test_reading_does_not_take_the_file_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write(path, (make_trajectory(("observation", "x" * 100_000), sample=n) for n in range(300)))
    assert path.stat().st_size > 30_000_000
    tracemalloc.start()
    try:
        assert sum(1 for _ in read(path)) == 300
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3_000_000


def test_parquet_is_written_in_groups_and_put_in_place_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with ParquetWriter(path) as out:
        for n in range(40):
            out.write(make_trajectory(("observation", "x" * 2_000_000), sample=n))
        assert not path.exists()
    with pq.ParquetFile(path) as file:
        assert file.metadata.num_row_groups >= 2
    assert [t.sample for t in read(path)] == list(range(40))
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_parquet_file_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write(path, numbered(1))
    with pytest.raises(KeyboardInterrupt), ParquetWriter(path) as out:
        out.write(web_run(sample=5))
        raise KeyboardInterrupt
    assert list(read(path)) == numbered(1)
    assert list(tmp_path.iterdir()) == [path]


def test_parquet_columns_can_be_queried(tmp_path: Path) -> None:
    write(tmp_path / "t.parquet", [web_run().scored("exact", 1.0)])
    row = pq.read_table(tmp_path / "t.parquet").to_pylist()[0]
    assert row["task_id"] == "t1" and row["answer"] == "Ada" and row["stop"] == "answered"
    assert [step["agent"] for step in row["steps"]][:3] == ["think", "plan", "think"]
    assert row["scores"][0]["name"] == "exact"


@pytest.mark.parametrize(
    ("path", "reason"),
    [("missing.jsonl", "there is no file"), (".", "holds neither"), ("bad.parquet", "not a Parquet file")],
)
def test_unreadable_paths_are_explained(path: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    with pytest.raises(StoreError, match=reason):
        list(read(tmp_path / path))


def test_unwritable_paths_are_explained(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"\.jsonl or \.parquet"):
        writer(tmp_path / "t.csv")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(StoreError, match="cannot write"):
        writer(tmp_path / "folder.jsonl")


def test_records_are_set_aside_and_an_open_writer_follows_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    failure = Failure(site=FailureSite.MODEL, message="away")
    failed = make_trajectory(sample=1).model_copy(update={"stop": Stop.FAILED, "failure": failure})
    with JsonlWriter(path) as out:
        out.write(make_trajectory(("answer", "a"), sample=0))
        out.write(failed)
        assert set_aside(path, [Stop.FAILED]) == 1
        assert [t.sample for t in read(path)] == [0]
        out.write(make_trajectory(("answer", "b"), sample=2))  # opened before the file was replaced
    assert [t.sample for t in read(path)] == [0, 2]
    assert path.with_name("t.jsonl.aside").read_text().count("\n") == 1
    assert set_aside(path, [Stop.FAILED]) == 0 and set_aside(tmp_path / "none.jsonl", [Stop.FAILED]) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["t.jsonl", "t.jsonl.aside"]


def test_records_are_changed_in_place_all_or_none(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    write(file, [web_run(sample=number) for number in range(3)])
    with file.open("ab") as out:
        out.write(b'{"torn')
    rewrite(file, lambda run: run.scored("exact", float(run.sample)))
    assert [run.scores["exact"].value for run in read(file)] == [0.0, 1.0, 2.0]
    before = file.read_bytes()

    def fails(run: Trajectory) -> Trajectory:
        if run.sample == 2:
            raise KeyError("no verdict")
        return run.scored("exact", 9.0)

    with pytest.raises(KeyError):
        rewrite(file, fails)
    assert file.read_bytes() == before and sorted(path.name for path in tmp_path.iterdir()) == [
        "runs.jsonl",
        "runs.jsonl.torn",
    ]


def test_whoever_appends_meets_the_changed_file(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    with JsonlWriter(file) as out:
        out.write(web_run(sample=0))
        rewrite(file, lambda run: run.scored("exact", 1.0))
        out.write(web_run(sample=1))
    assert [(run.sample, bool(run.scores)) for run in read(file)] == [(0, True), (1, False)]
