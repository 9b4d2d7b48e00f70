"""The viewer follows what other processes write: new runs appear, running chains grow, and its own process ends."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from coa.runtime.live import live_feed
from coa.trajectory import Usage, load_profile, write
from coa.view import open_viewer
from coa.view.indexer import Indexer
from coa.view.server import Viewer
from support.builders import web_run

_PATIENCE_S = 60


def asked(viewer: Viewer, path: str) -> Any:
    with urlopen(f"{viewer.url}/{path}", timeout=30) as answer:
        return json.load(answer)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


def test_new_runs_and_running_chains_appear_while_the_viewer_is_open(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    write(folder / "trajectories.jsonl", [web_run()])
    with open_viewer([folder], port=0, cache=tmp_path / "cache") as viewer:
        until(lambda: asked(viewer, "api/runs.json")["total"] == 1)
        write(folder / "trajectories.jsonl", [web_run(sample=1)])
        until(lambda: asked(viewer, "api/runs.json")["total"] == 2)
        done = web_run()
        with live_feed(folder) as feed:
            running = feed.begin(done.task, load_profile("web"), 2, model="m")
            until(lambda: asked(viewer, "api/index.json")["facets"]["outcomes"].get("running") == 1)
            row = asked(viewer, "api/runs.json")["rows"][0]
            assert (row["outcome"], row["kind"], row["steps"]) == ("running", "live", 0)
            assert asked(viewer, "api/runs.json?outcome=running")["rows"] == [row]
            assert row not in asked(viewer, "api/runs.json?outcome=right")["rows"]
            for step in done.steps[:5]:
                running.step(step, Usage(completion_tokens=7))
            until(lambda: asked(viewer, "api/runs.json")["rows"][0]["steps"] == 5)
            record = asked(viewer, f"api/runs/{row['id']}.json")
            assert record["running"] and [one["agent"] for one in record["events"] if one["type"] == "began"] == [
                "think", "plan", "think", "web_search",
            ]  # fmt: skip
            write(folder / "trajectories.jsonl", [web_run(sample=2)])
            running.end()
            until(lambda: all(row["kind"] != "live" for row in asked(viewer, "api/runs.json")["rows"]))
            until(lambda: asked(viewer, "api/runs.json")["total"] == 3)
            over = asked(viewer, f"api/runs/{row['id']}.json")
            assert not over["running"] and over["row"]["sample"] == 2, "who watched it sees its end"


def test_changes_are_sent_to_pages_that_listen(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    write(folder / "trajectories.jsonl", [web_run()])
    with open_viewer([folder], port=0, cache=tmp_path / "cache") as viewer:
        until(lambda: asked(viewer, "api/runs.json")["total"] == 1)
        with urlopen(f"{viewer.url}/api/changes", timeout=30) as stream:
            first = json.loads(stream.readline().removeprefix(b"data: "))
            write(folder / "trajectories.jsonl", [web_run(sample=1)])
            for line in stream:
                if line.startswith(b"data: ") and json.loads(line.removeprefix(b"data: "))["progress"]["runs"] == 2:
                    break
            assert first["progress"]["runs"] == 1


def test_two_viewers_of_one_folder_share_an_index(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    write(folder / "trajectories.jsonl", [web_run()])
    with open_viewer([folder], port=0, cache=tmp_path / "cache") as first:
        until(lambda: asked(first, "api/runs.json")["total"] == 1)
        with open_viewer([folder], port=0, cache=tmp_path / "cache") as second:
            assert asked(second, "api/runs.json")["total"] == 1
    write(folder / "trajectories.jsonl", [web_run(sample=1)])
    with open_viewer([folder], port=0, cache=tmp_path / "cache") as third:
        until(lambda: asked(third, "api/runs.json")["total"] == 2)


def test_the_process_of_the_index_ends_with_its_viewer(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with Indexer(tmp_path / "index.sqlite", [tmp_path / "runs"]) as indexer:
        assert indexer._process is not None
        pid = indexer._process.pid
        until(lambda: (tmp_path / "index.sqlite").exists())
    assert not _is_alive(pid)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
