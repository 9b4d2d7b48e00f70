"""`coa serve` has the viewer at /view/: over its own runs, or over the folders that its settings name."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from coa.serve.config import ServeConfig
from coa.serve.viewing import shown_folders
from coa.trajectory import write
from support.builders import web_run
from support.gated import GATE, GatedModel
from support.served import AGENT, SEARCH, served

_PATIENCE_S = 60


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COA_CACHE", str(tmp_path / "cache"))


def asked(url: str, key: str | None = None) -> Any:
    headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
    with urlopen(Request(url, headers=headers), timeout=30) as answer:
        body = answer.read()
    return json.loads(body) if url.partition("?")[0].endswith(".json") else body.decode()


def runs(url: str, count: int, key: str | None = None) -> list[dict[str, Any]]:
    """The rows, as soon as there are as many as that."""
    end = time.monotonic() + _PATIENCE_S
    while len(rows := asked(f"{url}/view/api/runs.json", key)["rows"]) < count:
        assert time.monotonic() < end, f"{len(rows)} of {count} runs"
        time.sleep(0.1)
    return list(rows)


def test_runs_of_the_server_are_in_its_viewer() -> None:
    with served() as server:
        server.client.responses.create(model=AGENT, input="Which tower is the tallest?")
        (row,) = runs(server.url, 1)
        assert row["question"] == "Which tower is the tallest?" and row["answer"] == "The Vell tower."
        record = asked(f"{server.url}/view/api/runs/{row['id']}.json")
        assert [one["agent"] for one in record["events"] if one["type"] == "began"][-1] == "answer"
        server.client.responses.create(model=AGENT, input="And the second?")
        assert {row["question"] for row in runs(server.url, 2)} >= {"And the second?"}


def test_the_page_of_the_viewer_is_found_with_and_without_its_slash() -> None:
    with served() as server:
        assert asked(f"{server.url}/view") == asked(f"{server.url}/view/")
        assert 'src="static/view.js"' in asked(f"{server.url}/view/")
        assert "import" in asked(f"{server.url}/view/static/view.js")


def test_with_keys_only_named_folders_are_shown_and_only_to_holders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COA_SERVE_KEYS", "a-key-of-some-length-1")
    write(tmp_path / "shown" / "trajectories.jsonl", [web_run()])
    with served() as server, pytest.raises(HTTPError, match="404"):
        asked(f"{server.url}/view/api/runs.json", "a-key-of-some-length-1")
    with served(config={"view": (tmp_path / "shown",)}) as server:
        assert "view.js" in asked(f"{server.url}/view/"), "the page itself shows nothing"
        with pytest.raises(HTTPError, match="401"):
            asked(f"{server.url}/view/api/runs.json")
        (row,) = runs(server.url, 1, "a-key-of-some-length-1")
        assert row["task"] == "t1"
        with pytest.raises(HTTPError, match="401"):
            asked(f"{server.url}/view/api/runs/{row['id']}.json")


def test_the_viewer_of_a_server_only_reads() -> None:
    with served() as server:
        for method in ("POST", "PUT", "DELETE"):
            request = Request(f"{server.url}/view/api/index.json", method=method, data=b"{}")
            with pytest.raises(HTTPError, match="405"):
                urlopen(request, timeout=30)


def test_what_a_server_shows_follows_from_its_settings(tmp_path: Path) -> None:
    plain = ServeConfig(state=tmp_path)
    assert shown_folders(plain, None, keys=False) == [tmp_path / "runs.sqlite"]
    assert shown_folders(plain, tmp_path / "out", keys=False) == [tmp_path / "out" / "trajectories.jsonl"]
    assert shown_folders(plain, tmp_path / "out", keys=True) == []
    assert shown_folders(ServeConfig(page=False), None, keys=False) == []
    assert shown_folders(ServeConfig(view=(tmp_path,)), None, keys=True) == [tmp_path]


def test_a_run_that_the_server_is_making_is_in_the_viewer_step_by_step() -> None:
    model = GatedModel([SEARCH, f"<think>I read it.</think>{GATE}\n<answer>The Vell tower.</answer>"])
    with served(model=model) as server:
        server.client.responses.create(model=AGENT, input="Which is the tallest?", background=True)
        (row,) = runs(server.url, 1)
        end = time.monotonic() + _PATIENCE_S
        while (row := asked(f"{server.url}/view/api/runs.json")["rows"][0])["steps"] < 3:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert (row["kind"], row["outcome"]) == ("live", "running")
        model.open_gate()
        while asked(f"{server.url}/view/api/runs.json")["total"] == 0:
            assert time.monotonic() < end
            time.sleep(0.05)
        (row,) = asked(f"{server.url}/view/api/runs.json")["rows"]
        assert (row["kind"], row["answer"]) == ("trajectory", "The Vell tower.")
