"""A bundle has every answer of the API as a file, replaces only bundles, and works without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coa.errors import CoaError, StoreError
from coa.trajectory import write
from coa.view import write_bundle
from coa.view.index import cache_file
from coa.view.reading import Reader
from support.builders import web_run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = web_run()
    runs = [made.model_copy(update={"task": made.task.model_copy(update={"id": f"t{number}"})}) for number in range(3)]
    write(tmp_path / "runs" / "trajectories.jsonl", runs)
    return tmp_path / "runs"


def content(site: Path, path: str) -> Any:
    return json.loads((site / "api" / path).read_bytes())


def test_files_of_a_bundle_are_the_answers_of_the_server(root: Path, tmp_path: Path) -> None:
    site, cache = tmp_path / "site", tmp_path / "cache"
    assert write_bundle([root], site, cache=cache) == 3
    reader = Reader(cache_file([root], cache), ["runs"])
    rows = [row for number in range(content(site, "index.json")["row_files"])
            for row in content(site, f"rows-{number}.json")]  # fmt: skip
    assert rows == reader.runs({"limit": "500"})["rows"] and len(rows) == 3
    for row in rows:
        for path, answer in ((f"runs/{row['id']}.json", reader.run), (f"runs/{row['id']}/tokens.json", reader.tokens),
                             (f"runs/{row['id']}/raw.json", reader.raw)):  # fmt: skip
            assert content(site, path) == json.loads(json.dumps(answer(row["id"]), default=dict))
    for folder in content(site, "index.json")["folders"]:
        assert content(site, f"folders/{folder['id']}.json")["folder"]["id"] == folder["id"]
    assert content(site, "problems.json") == {"problems": []}
    assert content(site, "findings.json")["scanned"] == 3
    texts = content(site, "text-0.json")
    assert [text[0] for text in texts] == [row["id"] for row in rows]
    assert any("Ada Lovelace" in text for _, _, text in texts[0][3])


def test_a_bundle_has_the_page_with_its_policy_and_all_its_scripts(root: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    write_bundle([root], site, cache=tmp_path / "cache")
    page = (site / "index.html").read_text()
    assert "Content-Security-Policy" in page and "script-src 'self'" in page
    assert 'src="/' not in page and 'href="/' not in page, "a bundle may be anywhere on its server"
    assert (site / "static" / "view.js").is_file() and (site / "static" / "bundle.js").is_file()
    assert content(site, "index.json")["bundle"] is True
    assert content(site, "index.json")["roots"] == ["runs"]


def test_a_bundle_is_replaced_and_anything_else_is_not(root: Path, tmp_path: Path) -> None:
    site, cache = tmp_path / "site", tmp_path / "cache"
    write_bundle([root], site, cache=cache)
    (site / "stale.txt").write_text("from before")
    assert write_bundle([root], site, cache=cache) == 3
    assert not (site / "stale.txt").exists()
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "chapter.tex").write_text("years of work")
    with pytest.raises(StoreError, match="not a bundle"):
        write_bundle([root], other, cache=cache)
    assert (other / "chapter.tex").read_text() == "years of work"


def test_a_path_that_is_not_there_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(CoaError, match="nowhere"):
        write_bundle([tmp_path / "nowhere"], tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_a_run_that_vanished_is_left_out_and_the_others_are_written(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = Reader.run

    def gone(self: Reader, uid: str) -> Any:
        if self.runs({})["rows"][1]["id"] == uid:
            raise StoreError("the file has changed")
        return real(self, uid)

    monkeypatch.setattr(Reader, "run", gone)
    assert write_bundle([root], tmp_path / "site", cache=tmp_path / "cache") == 3
    assert len(list((tmp_path / "site" / "api" / "runs").glob("*.json"))) == 2
    assert "is left out" in caplog.text
