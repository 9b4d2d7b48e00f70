"""Scanners are found by name, by entry point and by module:function; one that fails stops nobody else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coa.errors import ConfigError
from coa.scan import Note, ScannerFailure, Severity, open_scanners, scan_run
from coa.scan.scanners import SCANNERS
from coa.trajectory import Profile, Trajectory
from support.scanned import run_of

OWN = '''
from coa.scan import Note, Severity

def long_answers(trajectory, profile):
    """answers of more than ten characters"""
    if len(trajectory.answer or "") > 10:
        yield len(trajectory.steps) - 1, "warning", f"{len(trajectory.answer)} characters", "long"

class Polite:
    name = "polite"
    about = "says please"
    def scan(self, trajectory, profile):
        return [Note(None, Severity.INFO, "please")]

class Halfway:
    name = "halfway"
    def scan(self, trajectory, profile):
        return []
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "ownscanners.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("ownscanners", None)


def declare(folder: Path, **points: str) -> None:
    """An installed package with these entry points."""
    info = folder / "own_scanners-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-scanners\nVersion: 1.0\n")
    listed = "".join(f"{name} = {value}\n" for name, value in points.items())
    (info / "entry_points.txt").write_text(f"[coa.scanners]\n{listed}")


LONG = run_of(("answer", "a very long answer"))


def test_without_names_every_shipped_scanner_is_opened() -> None:
    opened = open_scanners()
    assert [one.name for one in opened] == [kind().name for kind in SCANNERS]
    assert len({one.name for one in opened}) == 8 and all(one.about for one in opened)


def test_names_select_scanners_once_and_in_their_order() -> None:
    assert [one.name for one in open_scanners(["loops", "tool_errors", "loops"])] == ["loops", "tool_errors"]


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        open_scanners(["loop"])
    assert "'loop'" in caught.value.message and "repeated_calls, tool_errors" in (caught.value.hint or "")


def test_a_function_of_a_user_is_a_scanner(own: Path) -> None:
    for name in ("ownscanners:long_answers", f"{own / 'ownscanners.py'}:long_answers"):
        (scanner,) = open_scanners([name])
        assert (scanner.name, scanner.about) == ("long_answers", "answers of more than ten characters")
        (found,) = scan_run(LONG, [scanner], run="abc", file="runs.jsonl")
        assert found.model_dump(mode="json") == {
            "run": "abc", "step": 0, "scanner": "long_answers", "severity": "warning", "message": "18 characters",
            "kind": "long", "task": "t1", "file": "runs.jsonl",
        }  # fmt: skip


def test_a_package_adds_scanners_by_entry_point(own: Path, caplog: pytest.LogCaptureFixture) -> None:
    declare(own, long_answers="ownscanners:long_answers", polite="ownscanners:Polite", loops="ownscanners:Polite")
    assert [one.name for one in open_scanners()][-2:] == ["long_answers", "polite"]
    assert "the scanner loops of ownscanners:Polite is left out: the name is taken" in caplog.text
    (polite,) = open_scanners(["polite"])
    assert [found.message for found in scan_run(LONG, [polite])] == ["please"]


def test_a_package_that_cannot_be_loaded_is_left_out_unless_it_is_named(
    own: Path, caplog: pytest.LogCaptureFixture
) -> None:
    declare(own, broken="nowhere_to_be_found:scan", halfway="ownscanners:Halfway")
    assert len(open_scanners()) == len(SCANNERS)
    assert "the scanner broken of nowhere_to_be_found:scan cannot be loaded" in caplog.text
    assert "halfway is not a scanner but a Halfway" in caplog.text
    with pytest.raises(ConfigError, match="cannot be loaded"):
        open_scanners(["broken"])


def test_what_is_no_scanner_is_refused(own: Path) -> None:
    with pytest.raises(ConfigError, match="is not a scanner but a Halfway"):
        open_scanners(["ownscanners:Halfway"])
    with pytest.raises(ConfigError, match="cannot be imported"):
        open_scanners(["ownscanners:nothing"])


class Odd:
    about = "fails in its own way"

    def __init__(self, name: str, *said: object) -> None:
        self.name, self._said = name, said

    def scan(self, trajectory: Trajectory, profile: Profile) -> Iterator[Note]:
        for each in self._said:
            if isinstance(each, Exception):
                raise each
            yield each  # type: ignore[misc]


def test_a_scanner_that_fails_is_reported_and_the_others_go_on() -> None:
    odd = [
        Odd("raises", KeyError("x")), Odd("speaks", "not a note"), Odd("shouts", (0, "fatal", "no such severity")),
        Odd("fine", (0, "info", "ok")),
    ]  # fmt: skip
    failures: list[ScannerFailure] = []
    assert [found.scanner for found in scan_run(LONG, odd, failures=failures)] == ["fine"]
    assert [failure.scanner for failure in failures] == ["raises", "speaks", "shouts"]
    assert failures[0].message == "KeyError: 'x'" and "not str" in failures[1].message


def test_without_a_place_for_failures_they_are_warnings(caplog: pytest.LogCaptureFixture) -> None:
    assert scan_run(LONG, [Odd("raises", KeyError("x"))]) == []
    assert "task t1: raises: KeyError: 'x'" in caplog.text


def test_a_step_that_is_not_there_is_none_and_long_messages_are_cut() -> None:
    (found,) = scan_run(LONG, [Odd("far", (7, Severity.INFO, "x" * 10_000))])
    assert found.step is None and len(found.message) == 500


def test_a_run_whose_profile_is_unknown_is_a_failure() -> None:
    failures: list[ScannerFailure] = []
    lost = LONG.model_copy(update={"profile": "gone", "profile_hash": "0" * 16})
    assert scan_run(lost, open_scanners(), failures=failures) == []
    assert [failure.scanner for failure in failures] == ["profile"]
