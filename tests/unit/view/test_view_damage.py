"""Damaged and disappearing data is shown as such, and everything beside it stays readable; what the server refuses."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coa.distill.atif_writer import to_atif
from coa.distill.team_run import AgentRun, ModelCall, Source, TeamRun
from coa.errors import CoaError
from coa.serve.store import Store, StoredRun, trajectory_line
from coa.trajectory import Task, write
from coa.trajectory.identity import run_id
from coa.view.as_json import as_json
from coa.view.indexer import update_index
from coa.view.reading import Missing, Reader
from coa.view.server import Viewer, open_viewer
from support.builders import make_trajectory, web_run
from support.unprivileged import as_nobody, can_become_nobody

CORPUS = Path(__file__).parents[2] / "corpus" / "teams"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@contextmanager
def looked(root: Path, index: Path) -> Iterator[Reader]:
    """Everything below `root`, as the pages ask for it."""
    update_index(index, [root])
    reader = Reader(index, [str(root)])
    try:
        yield reader
    finally:
        reader.close()


def problems(reader: Reader) -> dict[str, str]:
    return {f"{Path(one['file']).name} {one['place']}".strip(): one["message"] for one in reader.problems()["problems"]}


def readable(reader: Reader) -> int:
    """Number of runs; every one of them can be opened in every way."""
    rows = reader.runs({"limit": "500"})["rows"]
    for row in rows:
        assert reader.run(row["id"])["events"]
        assert reader.raw(row["id"])["json"]
        reader.tokens(row["id"])
    return len(rows)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = tmp_path / "runs"
    write(found / "good" / "trajectories.jsonl", [web_run(), web_run(sample=1)])
    return found


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "index.sqlite"


# ---- files


def test_a_torn_last_line_is_named_and_the_lines_before_it_are_shown(root: Path, index: Path) -> None:
    file = root / "torn" / "trajectories.jsonl"
    write(file, [web_run(), web_run(sample=1)])
    with file.open("ab") as end:
        end.write(web_run(sample=2).to_json().encode()[:200])
    with looked(root, index) as reader:
        assert "not complete" in problems(reader)["trajectories.jsonl end"]
        assert readable(reader) == 4
    with file.open("ab") as end:
        end.write(web_run(sample=2).to_json().encode()[200:] + b"\n")
    with looked(root, index) as reader:
        assert (problems(reader), readable(reader)) == ({}, 5)


def test_a_bad_line_in_the_middle_is_named_and_its_neighbours_are_shown(root: Path, index: Path) -> None:
    file = root / "bad" / "trajectories.jsonl"
    write(file, [web_run()])
    with file.open("ab") as end:
        end.write(b'{"task": \n' + b"\xff\xfe\x00 not UTF-8 \xc3\x28\n" + b"[1, 2]\n" + b'"text"\n' + b"null\n")
        end.write(web_run(sample=1).to_json().encode() + b"\n")
    with looked(root, index) as reader:
        found = problems(reader)
        assert sorted(found) == [f"trajectories.jsonl line {number}" for number in range(2, 7)]
        assert "not valid JSON" in found["trajectories.jsonl line 3"]
        assert "not a JSON object" in found["trajectories.jsonl line 4"]
        assert readable(reader) == 4


def test_a_version_of_the_schema_that_is_not_known_is_named(root: Path, index: Path) -> None:
    newer = json.loads(web_run().to_json()) | {"schema_version": 99}
    file = root / "newer" / "trajectories.jsonl"
    write(file, [web_run()])
    with file.open("a") as end:
        end.write(json.dumps(newer) + "\n")
    with looked(root, index) as reader:
        (message,) = problems(reader).values()
        assert "99" in message
        assert readable(reader) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": [{"agent": 5}]}, "steps"),
        ({"task": "no task"}, "task"),
        ({"stop": "because"}, "stop"),
        ({"scores": [1]}, "scores"),
        ({"usage": "much"}, "usage"),
    ],
)
def test_a_record_of_a_wrong_shape_does_not_hide_its_neighbours(
    root: Path, index: Path, change: dict[str, Any], words: str
) -> None:
    """It is a problem at once, or a run whose page says what is wrong with it."""
    wrong = json.loads(web_run(sample=7).to_json()) | change
    file = root / "odd" / "trajectories.jsonl"
    write(file, [web_run()])
    with file.open("a") as end:
        end.write(json.dumps(wrong) + "\n" + web_run(sample=1).to_json() + "\n")
    with looked(root, index) as reader:
        rows = reader.runs({"limit": "500"})["rows"]
        said = list(problems(reader).values())
        for row in rows:
            try:
                reader.run(row["id"])
            except CoaError as error:
                said.append(error.message)
        assert len(rows) >= 4
        assert any(words in message for message in said), said


def test_a_step_of_an_agent_that_the_profile_does_not_have_is_shown(root: Path, index: Path) -> None:
    write(root / "odd" / "trajectories.jsonl", [make_trajectory(("nobody", "hm"), ("answer", "Ada"))])
    with looked(root, index) as reader:
        assert readable(reader) == 3
        odd = next(row["id"] for row in reader.runs({})["rows"] if "nobody" in row["agents"])
        tokens = reader.tokens(odd)
        assert tokens["problem"] is not None and "nobody" in tokens["problem"]
        assert [span["tokens"][0][0] for span in tokens["spans"]] == ["hm", "Ada"]
        assert "nobody" in reader.raw(odd)["transcript"]


def test_a_truncated_parquet_file_is_named(root: Path, index: Path) -> None:
    file = root / "cut" / "kept.parquet"
    write(file, [web_run()] * 3)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with looked(root, index) as reader:
        assert "Parquet" in problems(reader)["kept.parquet"]
        assert readable(reader) == 2


def test_damage_inside_a_parquet_file_hides_only_what_it_hit(root: Path, index: Path) -> None:
    file = root / "scratched" / "kept.parquet"
    write(file, [make_trajectory(("answer", os.urandom(2_000).hex()), sample=number) for number in range(20)])
    data = bytearray(file.read_bytes())
    data[2_000:4_000] = bytes(2_000)
    file.write_bytes(data)
    with looked(root, index) as reader:
        assert any("damaged" in message or "Parquet" in message for message in problems(reader).values())
        assert readable(reader) >= 2


def test_an_empty_file_is_named_and_an_empty_run_is_not(root: Path, index: Path) -> None:
    (root / "empty.jsonl").touch()
    (root / "new").mkdir()
    (root / "new" / "trajectories.jsonl").touch()
    with looked(root, index) as reader:
        assert problems(reader) == {"empty.jsonl": "the file is empty"}
        assert readable(reader) == 2


def test_a_line_of_ten_megabytes_is_shown(root: Path, index: Path) -> None:
    write(root / "long" / "trajectories.jsonl", [make_trajectory(("answer", "x" * 10_000_000))])
    with looked(root, index) as reader:
        assert readable(reader) == 3
        assert problems(reader) == {}
        long = next(row["id"] for row in reader.runs({})["rows"] if row["answer"] and row["answer"].startswith("xxx"))
        tokens = reader.tokens(long)
        assert tokens["problem"] == "the run has 10,000,000 characters, too many to show token by token"
        assert len(as_json(tokens)) < 50_000


@pytest.mark.parametrize(
    "name", ["a?b#c%41.jsonl", "-rf.jsonl", "new\nline.jsonl", "\x1b[31mred\x1b[0m.jsonl", "<b>&.jsonl"]
)
def test_odd_names_of_files_are_only_names(root: Path, index: Path, name: str) -> None:
    write(root / "x" / name, [web_run(sample=3)])
    with looked(root, index) as reader:
        assert readable(reader) == 3


def test_a_name_that_is_not_utf_8_is_shown_somehow(root: Path, index: Path) -> None:
    odd = os.fsdecode(os.fsencode(str(root)) + b"/\xff\xfe")
    os.mkdir(odd)
    shutil.copy(root / "good" / "trajectories.jsonl", Path(odd) / "trajectories.jsonl")
    with looked(root, index) as reader:
        assert readable(reader) == 4
        overview = json.loads(as_json(reader.overview()))
        assert any("\ufffd" in folder["path"] for folder in overview["folders"])
        for folder in overview["folders"]:
            json.loads(as_json(reader.folder(folder["id"])))
        for row in reader.runs({})["rows"]:
            json.loads(as_json(reader.run(row["id"])))


# ---- what happens while it is viewed


def test_a_file_that_is_deleted_while_it_is_viewed_is_an_error_of_its_page_alone(root: Path, index: Path) -> None:
    with looked(root, index) as reader:
        (first, _) = reader.runs({})["rows"]
        write(root / "other" / "trajectories.jsonl", [web_run()])
        (root / "good" / "trajectories.jsonl").unlink()
        for ask in (reader.run, reader.raw, reader.tokens):
            with pytest.raises(CoaError, match=r"cannot be read|changed"):
                ask(first["id"])
    with looked(root, index) as reader:
        assert readable(reader) == 1
        with pytest.raises(Missing):
            reader.run(first["id"])


def test_a_file_that_is_replaced_by_another_is_read_again(root: Path, index: Path) -> None:
    file = root / "good" / "trajectories.jsonl"
    with looked(root, index) as reader:
        (first, _) = reader.runs({})["rows"]
        file.write_text("something else entirely, which is longer than a line of JSON " * 200)
        with pytest.raises(CoaError):
            reader.run(first["id"])
    with looked(root, index) as reader:
        assert readable(reader) == 0
        assert problems(reader)
    file.unlink()
    write(file, [make_trajectory(("answer", "new"))])
    with looked(root, index) as reader:
        assert [row["answer"] for row in reader.runs({})["rows"]] == ["new"]


def test_a_trace_that_is_damaged_later_says_so(root: Path, index: Path) -> None:
    file = root / "teams" / "session.calls.jsonl"
    file.parent.mkdir()
    shutil.copy(CORPUS / "ag2" / "gateway" / "session.calls.jsonl", file)
    with looked(root, index) as reader:
        (team,) = [row for row in reader.runs({})["rows"] if row["kind"] == "team"]
        assert reader.run(team["id"])["team"] is not None
        file.write_bytes(file.read_bytes()[:500])
        with pytest.raises(CoaError):
            reader.run(team["id"])
    with looked(root, index) as reader:
        assert any("session.calls.jsonl" in place for place in problems(reader))
        assert readable(reader) == 2


def test_a_trace_that_names_a_profile_which_does_not_exist_is_shown(root: Path, index: Path) -> None:
    team = TeamRun(
        task=Task(id="t", question="Who?", profile="/etc/<script>"),
        root=AgentRun(id="m", agent="manager", answer="Ada", events=(ModelCall(thought="I know."),)),
        source=Source(format="recorded"),
    )
    (root / "t.atif.json").write_text(json.dumps(to_atif(team)))
    with looked(root, index) as reader:
        assert problems(reader) == {}
        assert readable(reader) == 3


def test_an_index_that_is_damaged_is_made_again(root: Path, index: Path) -> None:
    with looked(root, index) as reader:
        assert readable(reader) == 2
    for file in index.parent.glob("index.sqlite*"):
        file.unlink()
    index.write_bytes(b"this is no database" * 1000)
    with looked(root, index) as reader:
        assert readable(reader) == 2


# ---- what stages wrote beside the runs


@pytest.mark.parametrize(
    "content",
    [b"", b'{"step": 1, "loss": 0.5}\n{"step": 2, "lo', b"\xff\xfe\n", b"[]\n", b'{"step": "x"}\nnull\n17\n'],
    ids=["empty", "torn", "bytes", "list", "odd"],
)
@pytest.mark.parametrize("stage", ["sft", "rl", "eval", "distill", "compare"])
def test_half_written_metrics_and_reports_do_not_hide_a_folder(
    root: Path, index: Path, stage: str, content: bytes
) -> None:
    folder = root / "stage"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"stage": stage}))
    (folder / "metrics.jsonl").write_bytes(content)
    (folder / "report.json").write_bytes(content)
    (folder / "groups").mkdir()
    (folder / "groups" / "step-0001.jsonl").write_bytes(content)
    with looked(root, index) as reader:
        for row in reader.overview()["folders"]:
            json.dumps(reader.folder(row["id"]))
        assert readable(reader) == 2


def test_a_database_of_a_server_is_read_and_a_forged_one_is_named(root: Path, index: Path) -> None:
    store = Store(root / "state", days=9, most_bytes=1 << 20)
    line = trajectory_line(web_run())
    for name in ("a", "b"):
        store.put(StoredRun(name, "me", "responses", "web", time.time(), "done", None, name, "Who?", None, b"{}", line))
    store.close()
    (root / "forged").mkdir()
    with sqlite3.connect(root / "forged" / "runs.sqlite") as forged:
        forged.execute("CREATE TABLE runs (id TEXT)")
    forged.close()
    with looked(root, index) as reader:
        assert readable(reader) == 4
        assert list(problems(reader)) == ["runs.sqlite"]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.skipif(not can_become_nobody(), reason="only root can act as another user")
def test_a_folder_that_may_not_be_read_is_named(open_folder: Path) -> None:
    root = open_folder / "shared"
    write(root / "open" / "trajectories.jsonl", [web_run()])
    write(root / "shut" / "trajectories.jsonl", [web_run()])
    write(root / "half" / "trajectories.jsonl", [web_run()])
    os.chmod(root / "shut", 0)
    os.chmod(root / "half" / "trajectories.jsonl", 0)
    script = f"""
from pathlib import Path
from coa.view.sources import find_sources
for source in find_sources(Path({str(root)!r})):
    print(source.path.relative_to({str(root)!r}), source.problem)
"""
    said = as_nobody("-c", script)
    assert said.returncode == 0, said.stderr
    assert "open/trajectories.jsonl None" in said.stdout
    assert "shut cannot be read: Permission denied" in said.stdout
    assert "half/trajectories.jsonl" in said.stdout


# ---- what the server refuses


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    root = tmp_path_factory.mktemp("shown")
    write(root / "trajectories.jsonl", [web_run()])
    (root.parent / "secret.json").write_text('{"secret": 1}')
    with open_viewer([root], port=0, cache=tmp_path_factory.mktemp("cache")) as found:
        patience = time.monotonic() + 60
        while json.loads(ask(found, "/api/runs.json")[2])["total"] < 1:
            assert time.monotonic() < patience, "the run was not indexed"
            time.sleep(0.1)
        yield found


def ask(
    viewer: Viewer, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """A request as it is written here: nothing corrects its path."""
    connection = http.client.HTTPConnection(viewer.url.removeprefix("http://"), timeout=30)
    try:
        connection.putrequest(method, path, skip_host="Host" in (headers or {}))
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        body = b"" if path == "/api/changes" else answer.read()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body
    finally:
        connection.close()


PAGES = ("/", "/static/view.js", "/static/base.css", "/static/icon.svg", "/api/index.json", "/api/runs.json",
         "/api/problems.json", "/api/findings.json", "/api/changes")  # fmt: skip
REFUSED = ("/nothing", "/api/runs/none.json", "/api/folders/none.json", "/static/none.js", "/api/compare.json")


@pytest.mark.parametrize("path", [*PAGES, *REFUSED])
def test_every_answer_keeps_what_it_shows_from_running(viewer: Viewer, path: str) -> None:
    status, headers, _ = ask(viewer, path)
    assert (status == 200) is (path in PAGES)
    rules = headers["content-security-policy"]
    assert "default-src 'none'" in rules and "require-trusted-types-for 'script'" in rules
    assert "unsafe" not in rules and "frame-ancestors 'none'" in rules
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.json", "/static/../../secret.json", "/static/..%2f..%2fsecret.json", "/static/%2e%2e/pages.py",
        "/static/../pages.py", "//etc/passwd", "/etc/passwd", "/static//etc/passwd", "/static/%00",
        "/api/../secret.json",
        "/api/runs/../../secret.json", "/api/runs/..%2f..%2fsecret.json", "/api/runs/%2fetc%2fpasswd.json",
        "/api/runs/%00.json", "/api/runs/'%20OR%201=1--.json", "/api/runs/%F0%9F%99%82.json", "/api/runs/%ff.json",
        "/api/runs/" + "a" * 20_000 + ".json", "/api/runs/<script>.json", "/api/folders/..json",
        "/api/folders/%2e%2e.json",
        "/api/folders/none/steps/1.json", "/api/folders/none/steps/-1.json", "/api/folders/none/steps/x.json",
        "/api/folders/none/steps/99999999999999999999.json", "/api/runs/none/tokens.json", "/api/runs/none/raw.json",
        "/api/runs/none/other.json", "/view.html", "/templates/view.html", "/index.html",
    ],
)  # fmt: skip
def test_paths_that_lead_out_and_ids_that_do_not_exist_find_nothing(viewer: Viewer, path: str) -> None:
    status, _, body = ask(viewer, path)
    assert status in (400, 404)
    assert b"secret" not in body.replace(b"secret.json", b"") and b"root:" not in body and b"import" not in body
    assert "message" in json.loads(body)["error"]


@pytest.mark.parametrize(
    "query",
    [
        "offset=x", "offset=-1", "limit=x", "limit=-1", "limit=999999999", "offset=99999999999999999999999",
        "sort=evil",
        "sort=id;DROP", "q=%22", "q=*", "q=a%20OR", "q=NEAR(", "q=%00", "q=" + "a" * 50_000, "min_tokens=x",
        "min_tokens=1e999", "step=x", "folder='", "in=nothing", "agent=%27", "unknown=1", "outcome=,,", "finding='",
        "q=%ff", "q=%F0%9F%99%82", "q=(((((((", "q=-", "q=col:term", "q=%22unclosed",
    ],
)  # fmt: skip
def test_odd_queries_are_answered_or_refused_and_break_nothing(viewer: Viewer, query: str) -> None:
    for page in ("runs", "compare", "findings"):
        status, _, body = ask(viewer, f"/api/{page}.json?{query}")
        assert status in (200, 400, 404), (page, body[:300])
        json.loads(body)
    assert json.loads(ask(viewer, "/api/runs.json")[2])["total"] == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "ODD"])
def test_the_server_only_reads(viewer: Viewer, method: str) -> None:
    for path in ("/", "/api/runs.json", "/static/view.js"):
        assert ask(viewer, path, method)[0] in (400, 405)


def test_heads_are_answered_without_a_body(viewer: Viewer) -> None:
    status, headers, body = ask(viewer, "/api/runs.json", "HEAD")
    assert (status, body) == (200, b"")
    assert headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "", "192.0.2.1", "[2001:db8::1]:80", "a b"],
)
def test_names_of_other_hosts_are_not_served(viewer: Viewer, host: str) -> None:
    status, _, body = ask(viewer, "/api/runs.json", headers={"Host": host})
    assert status in (400, 421)
    assert b"Who?" not in body


@pytest.mark.parametrize("host", ["localhost", "localhost:80", "127.0.0.1", "127.0.0.1:9", "[::1]:80", "LOCALHOST"])
def test_names_of_this_machine_are_served(viewer: Viewer, host: str) -> None:
    assert ask(viewer, "/api/runs.json", headers={"Host": host})[0] == 200


def test_pages_of_other_sites_may_not_read(viewer: Viewer) -> None:
    for site in ("cross-site", "same-site"):
        assert ask(viewer, "/api/runs.json", headers={"Sec-Fetch-Site": site})[0] == 403
    assert ask(viewer, "/api/runs.json", headers={"Sec-Fetch-Site": "same-origin"})[0] == 200


def test_an_open_page_does_not_trouble_the_end_of_the_viewer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "runs" / "trajectories.jsonl", [web_run()])
    with open_viewer([tmp_path / "runs"], port=0, cache=tmp_path / "cache") as viewer:
        connection = http.client.HTTPConnection(viewer.url.removeprefix("http://"), timeout=30)
        connection.request("GET", "/api/changes")
        stream = connection.getresponse()
        assert stream.readline().startswith(b"data: ")
    stream.read()  # it ends as it should: a chunk that is missing would be an error
    connection.close()
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == []


def test_a_run_has_the_id_that_reports_link_to(viewer: Viewer) -> None:
    (row,) = json.loads(ask(viewer, "/api/runs.json")[2])["rows"]
    file = next(Path(root) for root in json.loads(ask(viewer, "/api/index.json")[2])["roots"]) / "trajectories.jsonl"
    assert row["id"] == run_id(file, 0)
