"""`coa view` from the command line: a server that ends quietly, a bundle for any web server, clear refusals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import orjson
import pytest

from coa.trajectory import write
from support.builders import web_run

COA = (sys.executable, "-m", "coa.cli")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COA_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "runs" / "trajectories.jsonl", [web_run(), web_run(sample=1)])
    return tmp_path / "runs"


@contextmanager
def viewing(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [*COA, "view", "--no-open", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def asked(url: str) -> Any:
    with urlopen(url, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_the_viewer_says_where_it_is_and_ends_quietly(folder: Path, sign: signal.Signals) -> None:
    with viewing(str(folder), "--port", "0") as (process, line):
        assert line.startswith(f"viewing {folder} at http://127.0.0.1:")
        url = line.split()[-1]
        with urlopen(url, timeout=60) as page:
            assert b"view.js" in page.read()
        assert asked(f"{url}/api/index.json")["bundle"] is False
        process.send_signal(sign)
        out, err = process.communicate(timeout=60)
        assert out == "" and "Traceback" not in err and process.returncode in (0, 130, -sign)


def test_a_single_run_folder_is_opened_at_its_own_page(folder: Path) -> None:
    (folder / "config.json").write_bytes(orjson.dumps({"stage": "eval"}))
    with viewing(str(folder), "--port", "0") as (_, line):
        base, _, place = line.split()[-1].partition("/#/folder/")
        end = time.monotonic() + 60
        while place not in {one["id"] for one in asked(f"{base}/api/index.json")["folders"]}:
            assert time.monotonic() < end
            time.sleep(0.1)
        assert asked(f"{base}/api/folders/{place}.json")["kind"] == "eval"


def test_a_bundle_is_shown_by_any_web_server(folder: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    done = subprocess.run([*COA, "view", str(folder), "--bundle", str(site)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == f"2 runs written to {site}\n", done.stderr
    handler = partial(_Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        index = asked(f"{url}/api/index.json")
        (first, second) = asked(f"{url}/api/rows-0.json")
        assert index["bundle"] and index["row_files"] == 1
        assert (first["sample"], second["sample"]) == (0, 1)
        assert asked(f"{url}/api/runs/{second['id']}.json")["row"] == second
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nowhere"], 1, "nowhere"),
        (["{folder}", "--host", "0.0.0.0"], 2, "this machine only"),
        (["{folder}", "--bundle", "{folder}"], 1, "not a bundle"),
        (["{folder}", "--bundle", "site", "--port", "80"], 2, "--bundle writes files"),
        (["{folder}", "--cache", "/dev/null/cache"], 1, "/dev/null/cache"),
        (["{folder}", "--cache", "{folder}/trajectories.jsonl"], 2, "the cache must be a folder"),
        (["{folder}", "--cache", "{folder}/trajectories.jsonl", "--bundle", "site"], 2, "the cache must be a folder"),
    ],
)
def test_a_wrong_call_names_what_is_wrong(folder: Path, arguments: list[str], code: int, words: str) -> None:
    given = [argument.format(folder=folder) for argument in arguments]
    done = subprocess.run([*COA, "view", *given], capture_output=True, text=True, timeout=60, cwd=folder.parent)
    assert done.returncode == code and words in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.startswith(("error: ", "Usage")), done.stderr


def test_a_taken_port_is_refused_if_it_was_asked_for_and_avoided_if_not(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run([*COA, "view", str(folder), "--port", port], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and f"127.0.0.1:{port}" in done.stderr
    with viewing(str(folder)) as (_, first), viewing(str(folder)) as (_, second):
        assert first.split()[-1] != second.split()[-1]
        assert asked(f"{second.split()[-1]}/api/index.json")["version"]


def test_no_index_is_left_in_the_folder_that_is_viewed(folder: Path, tmp_path: Path) -> None:
    before = sorted(os.listdir(folder))
    with viewing(str(folder), "--port", "0") as (_, line):
        asked(f"{line.split()[-1]}/api/runs.json")
    assert sorted(os.listdir(folder)) == before
    assert list((tmp_path / "cache" / "view").glob("*.sqlite"))


def test_without_a_folder_of_runs_the_hint_says_how_to_name_one(tmp_path: Path) -> None:
    done = subprocess.run([*COA, "view"], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 2 and "coa view FOLDER" in done.stderr


def test_an_empty_bundle_is_written_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    command = [*COA, "view", "empty", "--bundle", "site", "--cache", "cache"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0 and "warning: nothing was found in empty" in done.stderr
