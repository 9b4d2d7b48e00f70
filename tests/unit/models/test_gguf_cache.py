"""The header of a GGUF file is read once and then taken from the cache, as long as the file stays as it is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import orjson
import pytest

from coa.models.gguf import read_header
from coa.models.tokenizer import smollm2_file


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


def _marked(copy: Path) -> None:
    """Change the copy, so that whoever reads it can be told from whoever reads the file."""
    row = orjson.loads(copy.read_bytes())
    row["header"]["marked"] = True
    copy.write_bytes(orjson.dumps(row))


def test_a_header_is_read_once_and_the_copy_is_equal_to_it(cache: Path) -> None:
    first = read_header(smollm2_file())
    (copy,) = cache.iterdir()
    assert read_header(smollm2_file()) == first and len(first["tokenizer.ggml.tokens"]) > 40_000  # type: ignore[arg-type]
    _marked(copy)
    assert read_header(smollm2_file()) == {**first, "marked": True}


def test_a_file_that_changed_is_read_again(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    shutil.copyfile(smollm2_file(), file)
    first = read_header(file)
    (copy,) = cache.iterdir()
    _marked(copy)
    os.utime(file, ns=(1, 1))
    assert read_header(file) == first and "marked" not in orjson.loads(copy.read_bytes())["header"]
    _marked(copy)
    with file.open("ab") as longer:
        longer.write(b"x")
    os.utime(file, ns=(1, 1))
    assert read_header(file) == first


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"file": 3}', b'{"header": {}}', bytes(range(256))])
def test_a_damaged_copy_is_replaced(cache: Path, content: bytes) -> None:
    first = read_header(smollm2_file())
    (copy,) = cache.iterdir()
    whole = copy.read_bytes()
    copy.write_bytes(content)
    assert read_header(smollm2_file()) == first and copy.read_bytes() == whole


def test_a_cache_that_cannot_be_written_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way of a folder")
    monkeypatch.setenv("COA_CACHE", str(tmp_path / "file"))
    assert "tokenizer.ggml.tokens" in read_header(smollm2_file())
    assert (tmp_path / "file").read_text() == "in the way of a folder"
