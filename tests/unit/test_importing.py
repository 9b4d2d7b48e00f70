"""Functions that users name are found in the folder they work in, and a bad name says what is wrong with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from coa.errors import ScoringError
from coa.importing import import_function


def load(target: str) -> object:
    return import_function(target, what="the scorer", error=ScoringError)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_a_module_of_the_current_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "scorers_in_the_current_folder.py").write_text(
        "class Kit:\n    @staticmethod\n    def score(): return 1\ndef score(): return 2\n"
    )
    assert import_function("scorers_in_the_current_folder:score", what="it", error=ScoringError)() == 2
    assert import_function("scorers_in_the_current_folder:Kit.score", what="it", error=ScoringError)() == 1


def test_a_file_may_be_named_and_finds_its_neighbours(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "neighbour_of_a_named_file.py").write_text("VALUE = 3\n")
    (folder / "named_file.py").write_text("from neighbour_of_a_named_file import VALUE\ndef score(): return VALUE\n")
    assert import_function("elsewhere/named_file.py:score", what="it", error=ScoringError)() == 3


@pytest.mark.parametrize(
    "target", ["json", "json:", ":x", "no.such.module:build", "json:nothing", "json:__name__", "x.py:y", "a b:c"]
)
def test_a_bad_target_is_an_error_that_names_it(target: str) -> None:
    with pytest.raises(ScoringError, match=f"the scorer '{target}'".replace(".", r"\.")) as raised:
        load(target)
    assert raised.value.hint is not None and "module:function" in raised.value.hint


def test_a_file_that_does_not_parse_is_an_error_of_the_same_kind(tmp_path: Path) -> None:
    (tmp_path / "unfinished.py").write_text("def score(:\n")
    with pytest.raises(ScoringError, match="cannot be imported"):
        load("unfinished.py:score")
