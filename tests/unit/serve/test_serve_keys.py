from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coa.errors import ConfigError, StoreError
from coa.serve.caller import Caller
from coa.serve.config import ServeConfig
from coa.serve.keys import Keys, add_key

LONG = "k" * 40
OTHER = "m" * 40


def bearer(key: str) -> str:
    return f"Bearer {key}"


def test_without_keys_everybody_is_the_caller_without_a_name() -> None:
    keys = Keys()
    assert not keys.required
    assert keys.check(None) == Caller("") == keys.check(bearer("anything"))


def test_a_named_key_of_the_environment_names_its_caller() -> None:
    keys = Keys(f"alice:{LONG}, bob:{OTHER}")
    assert keys.required
    assert keys.check(bearer(LONG)) == Caller("alice")
    assert keys.check(f"bearer  {OTHER}") == Caller("bob")


def test_the_settings_name_the_variable_and_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alice = add_key(tmp_path / "keys", "alice")
    monkeypatch.setenv("OUR_KEYS", f"bob:{LONG}")
    keys = Keys.of(ServeConfig(keys_env="OUR_KEYS", keys_file=tmp_path / "keys"))
    assert (keys.check(bearer(alice)), keys.check(bearer(LONG))) == (Caller("alice"), Caller("bob"))
    monkeypatch.delenv("OUR_KEYS")
    assert not Keys.of(ServeConfig(keys_env="OUR_KEYS")).required


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", LONG, f"Basic {LONG}", f"Bearer {LONG}x", f"Bearer {LONG[:-1]}", "Bearer ké"],
)
def test_any_other_header_is_refused(header: str | None) -> None:
    assert Keys(f"alice:{LONG}").check(header) is None


def test_the_owner_behind_an_unnamed_key_does_not_depend_on_the_order_of_keys() -> None:
    first, second = Keys(f"{LONG},{OTHER}"), Keys(f"{OTHER},{LONG}")
    assert first.check(bearer(LONG)) == second.check(bearer(LONG))
    assert first.check(bearer(LONG)) != first.check(bearer(OTHER))
    assert LONG not in repr(first.check(bearer(LONG)))


@pytest.mark.parametrize(
    ("given_keys", "problem"),
    [
        ("short", "fewer than 16"),
        (f"al ice:{LONG}", "name"),
        (f":{LONG}", "name"),
        (f"alice:{LONG},alice:{OTHER}", "earlier"),
        (f"{LONG},{LONG}", "earlier"),
        (f"alice:{LONG[:20]} {LONG[:20]}", "characters"),
    ],
)
def test_keys_that_cannot_be_used_are_refused_without_showing_them(given_keys: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        Keys(given_keys)
    assert LONG[:20] not in str(caught.value)
    assert caught.value.hint


def test_a_key_that_is_added_is_accepted_and_only_its_hash_is_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    alice, bob = add_key(file, "alice"), add_key(file, "bob")
    keys = Keys(file=file)
    assert keys.check(bearer(alice)) == Caller("alice")
    assert keys.check(bearer(bob)) == Caller("bob")
    text = file.read_text()
    assert alice not in text and bob not in text
    assert [line.split()[0] for line in text.splitlines()] == ["alice", "bob"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]


def test_keys_of_the_environment_and_of_a_file_are_accepted_together(tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys", "alice")
    keys = Keys(f"bob:{LONG}", tmp_path / "keys")
    assert (keys.check(bearer(key)), keys.check(bearer(LONG))) == (Caller("alice"), Caller("bob"))
    with pytest.raises(ConfigError, match="both"):
        Keys(f"alice:{LONG}", tmp_path / "keys")


def test_a_key_added_while_the_server_runs_is_accepted_and_a_deleted_one_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    alice = add_key(file, "alice")
    keys = Keys(file=file)
    assert keys.check(bearer(alice)) == Caller("alice")
    bob = add_key(file, "bob")
    assert keys.check(bearer(bob)) == Caller("bob")
    file.write_text("".join(line for line in file.read_text().splitlines(True) if not line.startswith("alice ")))
    assert keys.check(bearer(alice)) is None
    assert keys.check(bearer(bob)) == Caller("bob")


def test_a_file_that_disappears_admits_nobody_until_it_is_back(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    alice = add_key(file, "alice")
    keys = Keys(file=file)
    text = file.read_text()
    file.unlink()
    assert keys.required and keys.check(bearer(alice)) is None and keys.check(None) is None
    file.write_text(text)
    assert keys.check(bearer(alice)) == Caller("alice")


def test_a_line_that_breaks_while_the_server_runs_admits_nobody_and_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    alice, bob = add_key(file, "alice"), add_key(file, "bob")
    keys = Keys(file=file)
    file.write_text(file.read_text().replace("bob blake2b", "bob md5"))
    with caplog.at_level(logging.ERROR):
        assert keys.check(bearer(bob)) is None
        assert keys.check(bearer(alice)) == Caller("alice")
    assert "line 2" in caplog.text


def test_comments_and_empty_lines_are_no_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# who has access\n\n")
    alice = add_key(file, "alice")
    assert Keys(file=file).check(bearer(alice)) == Caller("alice")
    assert file.read_text().startswith("# who has access\n")


def test_an_empty_file_of_keys_closes_the_server(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("")
    keys = Keys(file=tmp_path / "keys")
    assert keys.required and keys.check(None) is None


def test_a_missing_file_names_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no file of keys") as caught:
        Keys(file=tmp_path / "keys")
    assert caught.value.hint and "coa serve --add-key" in caught.value.hint


def test_a_broken_line_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"alice {LONG}\n")
    with pytest.raises(StoreError, match="line 1") as caught:
        Keys(file=tmp_path / "keys")
    assert LONG not in str(caught.value)


def test_a_file_that_everybody_may_write_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    add_key(file, "alice")
    file.chmod(0o666)
    with pytest.raises(StoreError, match="everybody") as caught:
        Keys(file=file)
    assert caught.value.hint == f"chmod 600 {file}"


def test_two_keys_cannot_have_one_name(tmp_path: Path) -> None:
    add_key(tmp_path / "keys", "alice")
    with pytest.raises(ConfigError, match="already"):
        add_key(tmp_path / "keys", "alice")
    with pytest.raises(ConfigError, match="cannot be the name"):
        add_key(tmp_path / "keys", "two words")


@given(st.text(max_size=200))
def test_no_other_header_is_ever_accepted(header: str) -> None:
    assert KEYS.check(header) is None
    assert KEYS.check(f"Bearer {header}") is None


KEYS = Keys(f"alice:{LONG}")
