"""What the viewer finds below a folder, by names and by the beginnings of files."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coa.distill.importers.detect import is_team_trace
from coa.errors import StoreError
from coa.trajectory import write
from coa.view import sources
from coa.view.beginnings import closed, first_values
from coa.view.sources import Source, find_sources, source_of
from coa.worlds.folder import INDEX, NAME, PAGES, TASKS
from support.builders import web_run

CORPUS = Path(__file__).parents[2] / "corpus"
ALPACA = {"instruction": "Answer.", "input": "Who?", "output": "<think>\nhm\n</think>\n<answer>\nAda\n</answer>"}


def kinds(root: Path) -> dict[str, str]:
    return {str(source.path.relative_to(root)): source.kind for source in find_sources(root)}


def problems(root: Path) -> dict[str, str]:
    return {source.path.name: source.problem for source in find_sources(root) if source.problem is not None}


def put(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_each_kind_of_file_is_found_by_what_it_holds(tmp_path: Path) -> None:
    write(tmp_path / "run" / "trajectories.jsonl", [web_run()])
    write(tmp_path / "groups" / "step-0001.jsonl", [web_run()])
    write(tmp_path / "kept.parquet", [web_run()])
    line = web_run().to_json()
    put(tmp_path / "list.json", f"[{line}, {line}]")
    put(tmp_path / "afm.jsonl", json.dumps(ALPACA) + "\n")
    pq.write_table(pa.Table.from_pylist([ALPACA]), tmp_path / "afm.parquet")
    put(tmp_path / "packed.jsonl.gz", gzip.compress(line.encode() + b"\n"))
    put(tmp_path / "state" / "runs.sqlite", b"SQLite format 3\x00" + bytes(84))
    put(tmp_path / "teams" / "a.atif.json", "{}")
    assert kinds(tmp_path) == {
        "afm.jsonl": "alpaca", "afm.parquet": "alpaca", "groups/step-0001.jsonl": "jsonl", "kept.parquet": "parquet",
        "list.json": "json", "packed.jsonl.gz": "traces", "run/trajectories.jsonl": "jsonl",
        "state/runs.sqlite": "serve", "teams/a.atif.json": "traces",
    }  # fmt: skip
    assert problems(tmp_path) == {}


def test_every_captured_trace_is_found_and_nothing_else() -> None:
    found = {file for source in find_sources(CORPUS) for file in source.files if source.kind == "traces"}
    below = {file for file in CORPUS.rglob("*") if file.is_file()}
    assert {file for file in below if is_team_trace(file)} == found
    assert problems(CORPUS) == {}


def test_a_run_that_is_scattered_over_files_is_one_source() -> None:
    camel = CORPUS / "teams" / "camel" / "own"
    log = next(source for source in find_sources(camel) if source.path.name == "model_log")
    assert (log.path, len(log.files), log.kind) == (camel / "model_log", 8, "traces")
    (session,) = find_sources(CORPUS / "teams" / "claude_agent_sdk" / "own")
    assert session.files[0] == session.path
    assert [file.suffixes for file in session.files[1:]] == [[".jsonl"], [".meta", ".json"]] * 2


def test_models_worlds_tasks_reports_and_hidden_files_are_no_sources(tmp_path: Path) -> None:
    write(tmp_path / "trajectories.jsonl", [web_run()])
    write(tmp_path / "trajectories.parquet", [web_run()])
    for name in ("config.json", "report.json", "metrics.jsonl", "demo.json"):
        put(tmp_path / name, web_run().to_json())
    put(tmp_path / "tasks.jsonl", json.dumps({"id": "1", "question": "Who?", "answer": "Ada"}) + "\n")
    put(tmp_path / "scores.jsonl", json.dumps({"task": "1", "scores": {}}) + "\n")
    put(tmp_path / "trainer_state.json", "{}")
    put(tmp_path / "notes.md", "{}")
    write(tmp_path / ".live" / "trajectories.jsonl", [web_run()])
    write(tmp_path / "model" / "surplus.jsonl", [web_run()])
    put(tmp_path / "model" / "weights.safetensors", b"")
    write(tmp_path / "model" / "eval" / "trajectories.jsonl", [web_run()])
    put(tmp_path / "world" / NAME, "{}")
    for part in (INDEX, PAGES, TASKS):
        write(tmp_path / "world" / part / "looks-like-runs.jsonl", [web_run()])
    assert kinds(tmp_path) == {"trajectories.jsonl": "jsonl", "model/eval/trajectories.jsonl": "jsonl"}


def test_a_damaged_file_is_a_source_with_a_problem(tmp_path: Path) -> None:
    put(tmp_path / "torn.jsonl", web_run().to_json()[:300])
    put(tmp_path / "bytes.jsonl", b"\xff\xfe\x00" * 40)
    put(tmp_path / "empty.jsonl", b"")
    put(tmp_path / "cut.jsonl.gz", gzip.compress(web_run().to_json().encode())[:-20])
    write(tmp_path / "cut.parquet", [web_run()])
    whole = (tmp_path / "cut.parquet").read_bytes()
    put(tmp_path / "cut.parquet", whole[: len(whole) // 2])
    put(tmp_path / "runs.sqlite", b"not a database")
    found = problems(tmp_path)
    assert found.pop("torn.jsonl").startswith("not valid JSON")
    assert found.pop("bytes.jsonl").startswith("not UTF-8")
    assert found.pop("empty.jsonl") == "the file is empty"
    assert "gzip" in found.pop("cut.jsonl.gz")
    assert "is not a Parquet file" in found.pop("cut.parquet")
    assert found.pop("runs.sqlite") == "it is not an SQLite database"
    assert found == {}


def test_a_run_that_has_not_written_anything_yet_is_no_problem(tmp_path: Path) -> None:
    put(tmp_path / "trajectories.jsonl", b"")
    put(tmp_path / "runs.sqlite", b"")
    assert kinds(tmp_path) == {"runs.sqlite": "serve", "trajectories.jsonl": "jsonl"}
    assert problems(tmp_path) == {}


def test_a_damaged_first_line_hides_no_trajectories(tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", "{ torn\n" + (web_run().to_json() + "\n") * 2)
    assert kinds(tmp_path) == {"a.jsonl": "jsonl"}
    big = make_long("x" * (2 << 20))
    put(tmp_path / "a.jsonl", "{ torn\n" + big + "\n")
    assert kinds(tmp_path) == {"a.jsonl": "jsonl"}


def test_an_unknown_version_of_the_schema_is_left_to_the_reader(tmp_path: Path) -> None:
    put(tmp_path / "new.jsonl", json.dumps({"schema_version": 99, "chains": []}) + "\n")
    put(tmp_path / "package.json", json.dumps({"schema_version": 99}))
    assert kinds(tmp_path) == {"new.jsonl": "jsonl"}


def make_long(text: str) -> str:
    return web_run(question=text).to_json()


def test_a_line_of_ten_megabytes_is_recognised(tmp_path: Path) -> None:
    put(tmp_path / "long.jsonl", make_long("x" * 10_000_000) + "\n")
    assert kinds(tmp_path) == {"long.jsonl": "jsonl"}


def test_of_a_large_document_only_the_beginning_is_read(tmp_path: Path) -> None:
    call = {"role": "user", "content": "y" * 5_000}
    text = json.dumps([{"messages": [call, call]}] * 400, indent=1)
    file = put(tmp_path / "chats.json", text[:-40])  # its end is torn, so it can only be recognised by its beginning
    assert source_of(file) == Source(file, (file,), "traces")


@pytest.mark.parametrize(
    ("head", "value"),
    [
        (b'{"a": [1, {"b": 2, "c": "thr', {"a": [1, {"b": 2}]}),
        (b'{"a": "x, {", "b": [1, 2', {"a": "x, {", "b": [1]}),
        (b'{"a": "\\", ', None),
        (b'{"a": 1} {"b": 2', {"a": 1}),
        (b'{"a', None),
        (b"", None),
        (b"}]", None),
        (b"[[[[", None),
    ],
)
def test_a_truncated_document_is_closed_after_its_last_complete_member(head: bytes, value: object) -> None:
    assert closed(head) == value


def test_large_files_are_not_read_whole(tmp_path: Path) -> None:
    line = json.dumps({"question": "Who?", "filler": "z" * 1_000}) + "\n"
    file = put(tmp_path / "tasks.jsonl", line * 3_000)
    assert len(list(first_values(file))) <= 50


def test_files_that_have_not_changed_are_not_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def looking(file: Path) -> Source | None:
        opened.append(file.name)
        return source_of(file)

    monkeypatch.setattr(sources, "source_of", looking)
    write(tmp_path / "runs.jsonl", [web_run()])
    put(tmp_path / "tasks.jsonl", json.dumps({"id": "1", "question": "Who?"}) + "\n")
    looked: sources.Looked = {}
    first = list(find_sources(tmp_path, looked))
    assert opened == ["runs.jsonl", "tasks.jsonl"]
    assert list(find_sources(tmp_path, looked)) == first
    assert opened == ["runs.jsonl", "tasks.jsonl"]
    put(tmp_path / "tasks.jsonl", web_run().to_json() + "\n")
    assert [source.path.name for source in find_sources(tmp_path, looked)] == ["runs.jsonl", "tasks.jsonl"]
    assert opened == ["runs.jsonl", "tasks.jsonl", "tasks.jsonl"]


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    write(tmp_path / "run" / "trajectories.jsonl", [web_run()])
    (tmp_path / "run" / "again").symlink_to(tmp_path)
    (tmp_path / "broken.jsonl").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert kinds(tmp_path) == {"run/trajectories.jsonl": "jsonl"}


def test_a_named_file_without_runs_says_so(tmp_path: Path) -> None:
    file = put(tmp_path / "tasks.jsonl", json.dumps({"id": "1", "question": "Who?"}) + "\n")
    (source,) = find_sources(file)
    assert source.problem == "it holds neither trajectories nor traces of a team"


def test_a_path_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no file or folder"):
        list(find_sources(tmp_path / "runs"))
