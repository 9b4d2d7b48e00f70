"""Whose an output folder is, who writes into it, and files that are there whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from coa import folder
from coa.errors import FolderError, StoreError
from coa.folder import LockRecord, claim, lock, lock_file, put, replacing, write_atomic

HOLDING = """
import sys
from pathlib import Path
from coa.folder import lock, lock_file, replacing
with lock(sys.argv[1]), replacing(Path(sys.argv[1]) / "big.bin") as part:
    part.write_bytes(b"half")
    print("held", flush=True)
    sys.stdin.read()
"""


def python(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


# ---- writing


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_kill_before_the_rename_leaves_the_old_file(tmp_path: Path, moment: str) -> None:
    file = tmp_path / "report.json"
    write_atomic(file, "old")
    program = (
        "import os, sys\nfrom coa.folder import write_atomic\n"
        f"os.{moment} = lambda *_: os._exit(7)\nwrite_atomic(sys.argv[1], 'new' * 100_000)"
    )
    process = python(program, file)
    process.communicate()
    assert process.returncode == 7 and file.read_text() == "old" and len(names(tmp_path)) == 2
    with lock_file(file):
        pass
    assert names(tmp_path) == ["report.json"], "what was left is removed by the next one that writes here"


def test_a_file_is_on_the_disk_before_it_has_its_name_and_the_name_is_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    synced, replaced = os.fsync, os.replace

    def fsync(fd: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")
        synced(fd)

    def replace(old: Path, new: Path) -> None:
        done.append("rename")
        replaced(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_atomic(tmp_path / "a.json", b"x")
    assert done == [f"sync .a.{os.getpid()}.part.json", "rename", f"sync {tmp_path.name}"]


def test_what_breaks_while_it_is_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "out") as part:
        part.mkdir()
        (part / "half").write_text("x")
        raise ZeroDivisionError
    assert names(tmp_path) == []


def test_a_folder_takes_the_place_of_a_folder_and_a_file_never_does(tmp_path: Path) -> None:
    for text in ("old", "new"):
        with replacing(tmp_path / "model") as part:
            part.mkdir()
            (part / text).write_text(text)
    assert names(tmp_path) == ["model"] and names(tmp_path / "model") == ["new"]
    with pytest.raises(StoreError, match="cannot write"):
        write_atomic(tmp_path / "model", "a file")
    assert names(tmp_path / "model") == ["new"] and names(tmp_path) == ["model"]


def test_what_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot write .*/file/report\.json"):
        write_atomic(tmp_path / "file" / "report.json", "")
    with pytest.raises(StoreError, match="cannot write"), lock(tmp_path / "file"):
        pass


def test_put_needs_nothing_in_the_place(tmp_path: Path) -> None:
    (tmp_path / "part").write_text("x")
    put(tmp_path / "part", tmp_path / "whole")
    assert names(tmp_path) == ["whole"]


# ---- locking


@pytest.mark.parametrize("hold", [lock, lock_file])
def test_the_same_process_is_refused_a_second_time_and_the_lock_leaves_nothing(
    tmp_path: Path, hold: Callable[[Path], AbstractContextManager[None]]
) -> None:
    out, said = tmp_path / "out", f"in use by this process already .pid {os.getpid()} on"
    with hold(out), pytest.raises(FolderError, match=said), hold(out):
        pass
    with hold(out):
        pass
    assert names(tmp_path) == []


def test_another_process_is_named_and_its_death_frees_the_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with python(HOLDING, out) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with pytest.raises(FolderError) as refused, lock(out):
            pass
        assert f"in use by another process (pid {process.pid} on {socket.gethostname()}, since 20" in str(refused.value)
        assert refused.value.hint == "wait until it has ended, stop it, or choose another --out"
        process.send_signal(signal.SIGKILL)
    assert len(names(out)) == 2, "its lock and what it was writing"
    with lock(out):
        assert names(out) == [".lock"]
        assert json.loads((out / ".lock").read_text())["pid"] == os.getpid()


def left(path: Path, **changes: object) -> Path:
    """A lock that nobody holds, as a process left it."""
    path.mkdir(exist_ok=True)
    record = LockRecord.of_this_process().model_copy(update=changes)
    (path / ".lock").write_text(record.model_dump_json())
    return path


def test_a_number_that_is_used_again_is_not_the_process_that_left_the_lock(tmp_path: Path) -> None:
    """Process 1 runs, but it did not start at that tick."""
    with lock(left(tmp_path, pid=1, ticks=1 << 60)):
        pass


def test_a_process_from_before_the_machine_was_started_again_is_dead(tmp_path: Path) -> None:
    with lock(left(tmp_path, boot="another")):
        pass


def test_another_container_on_this_kernel_is_no_other_machine(tmp_path: Path) -> None:
    """Its host name is gone with it, but a lock that is free here is free."""
    with lock(left(tmp_path, host="c0ffee", pid=1 << 30)):
        pass


def test_a_process_of_another_machine_is_not_taken_for_dead(tmp_path: Path) -> None:
    left(tmp_path, host="elsewhere", boot="another", pid=1 << 30)
    said = f"another machine's process .pid {1 << 30} on elsewhere"
    with pytest.raises(FolderError, match=said) as refused, lock(tmp_path):
        pass
    assert refused.value.hint and f"rm {tmp_path / '.lock'}" in refused.value.hint
    (tmp_path / ".lock").unlink()
    with lock(tmp_path):
        pass


def test_where_the_file_system_has_no_locks_a_living_process_is_seen_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(folder._NO_FLOCK[0], "not here")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with lock(tmp_path), pytest.raises(FolderError, match="this process already"), lock(tmp_path):
        pass
    with lock(left(tmp_path, pid=1 << 30, ticks=3)):
        pass


def test_a_file_that_says_nothing_is_no_lock(tmp_path: Path) -> None:
    for text in ("", "{torn", '{"pid": 1}'):
        (tmp_path / ".lock").write_text(text)
        with lock(tmp_path):
            pass


def test_a_forked_child_neither_keeps_nor_frees_its_parents_lock(tmp_path: Path) -> None:
    program = """
import os, sys, signal
from coa.folder import lock
with lock(sys.argv[1]):
    child = os.fork()
    if child:
        os.waitpid(child, os.WUNTRACED)
        print(child, flush=True)
        sys.stdin.read()
    else:
        try:
            with lock(sys.argv[1]):
                os._exit(9)
        except Exception as error:
            assert "another process" in str(error)
        os.kill(os.getpid(), signal.SIGSTOP)
sys.exit(0)
"""
    with python(program, tmp_path) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait()
        try:
            with lock(tmp_path):  # though the child lives and was forked while its parent held it
                os.kill(child, signal.SIGCONT)
                with suppress(ProcessLookupError):
                    while (status := Path(f"/proc/{child}/stat")).exists() and ") Z " not in status.read_text():
                        pass
                assert names(tmp_path) == [".lock"], "the child went through its end of the block"
        finally:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def test_whoever_waits_gets_the_lock_when_it_is_free(tmp_path: Path) -> None:
    out = tmp_path / "cache"
    program = "import sys\nfrom coa.folder import lock_file\nwith lock_file(sys.argv[1], wait=True): print('mine')"
    with lock_file(out):
        process = python(program, out)
    assert process.communicate(timeout=60)[0] == "mine\n" and names(tmp_path) == []


# ---- claiming


def test_a_folder_is_of_one_run_and_says_what_differs(tmp_path: Path) -> None:
    record = {"config": {"lr": 0.1, "data": ["a"], "quiet": False}, "coa": "1"}
    assert claim(tmp_path, "sft", record, settings="config") is None
    (tmp_path / "metrics.jsonl").write_text("")
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved == {"stage": "sft", **record}
    other = {"config": {"lr": 0.5, "data": ["b"], "quiet": True}, "coa": "2"}
    with pytest.raises(FolderError) as refused:
        claim(tmp_path, "sft", other, settings="config", free=("quiet",))
    assert "lr was 0.1 and is now 0.5; data was ['a'] and is now ['b']" in refused.value.message
    quiet = {"config": {**record["config"], "quiet": True}, "coa": "2"}  # type: ignore[dict-item]
    assert claim(tmp_path, "sft", quiet, settings="config", free=("quiet",)) == saved
    assert json.loads((tmp_path / "config.json").read_text()) == saved, "what it was started with"
    assert claim(tmp_path, "sft", quiet, settings="config", free=("quiet",), renew=True) == saved
    assert json.loads((tmp_path / "config.json").read_text())["coa"] == "2"
    with pytest.raises(FolderError, match="another kind of run"):
        claim(tmp_path, "rl", record, settings="config")


def test_a_setting_newer_than_the_run_has_its_default_and_an_old_name_its_new_one(tmp_path: Path) -> None:
    claim(tmp_path, "rl", {"config": {"lr": 1, "enough": 3}}, settings="config")
    (tmp_path / "metrics.jsonl").write_text("")

    def renamed(side: dict[str, object]) -> dict[str, object]:
        return {{"enough": "early_stop"}.get(key, key): value for key, value in side.items()}

    new = {"config": {"lr": 1, "early_stop": 3, "kl": 0.0}}
    claim(tmp_path, "rl", new, settings="config", defaults={"kl": 0.0}, compared=renamed)
    with pytest.raises(FolderError, match=r"kl was 0\.0 and is now 0\.1"):
        changed = {"config": {**new["config"], "kl": 0.1}}
        claim(tmp_path, "rl", changed, settings="config", defaults={"kl": 0.0}, compared=renamed)
    with pytest.raises(FolderError, match="enough was 3 and is now None"):
        claim(tmp_path, "rl", {"config": {"lr": 1}}, settings="config")


def test_settings_without_a_run_may_be_corrected_where_the_stage_allows_it(tmp_path: Path) -> None:
    with lock(tmp_path):
        claim(tmp_path, "eval", {"model": "a"})
        with pytest.raises(FolderError, match="model was 'a' and is now 'b'"):
            claim(tmp_path, "eval", {"model": "b"})
        claim(tmp_path, "eval", {"model": "b"}, correctable=True)
        assert json.loads((tmp_path / "config.json").read_text())["model"] == "b"
        with pytest.raises(FolderError, match="another kind of run"):
            claim(tmp_path, "sft", {}, correctable=True)


def test_a_folder_of_something_else_is_refused_but_for_hidden_files(tmp_path: Path) -> None:
    with lock(tmp_path):
        (tmp_path / ".gitkeep").write_text("")
        claim(tmp_path, "sft", {}, foreign="*", write=False)
        (tmp_path / "thesis.tex").write_text("")
        with pytest.raises(FolderError, match="is not empty"):
            claim(tmp_path, "sft", {}, foreign="*")
        claim(tmp_path, "teach", {}, write=False)
    (tmp_path / "config.json").write_text("{torn")
    with pytest.raises(FolderError, match=r"config\.json cannot be read"):
        claim(tmp_path, "teach", {})


def test_a_run_from_before_stages_were_named_goes_on(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"settings": {"model": "a"}}')
    claim(tmp_path, "sample", {"settings": {"model": "a"}}, settings="settings")
    with pytest.raises(FolderError, match="model was 'a' and is now 'b'"):
        claim(tmp_path, "sample", {"settings": {"model": "b"}}, settings="settings")
    with pytest.raises(FolderError, match="another kind of run"):
        claim(tmp_path, "sft", {"config": {}}, settings="config")
    (tmp_path / "config.json").write_text('{"command": "teach", "team": "a:b"}')
    claim(tmp_path, "teach", {"team": "a:b", "seed": 7}, defaults={"team": "a:b", "seed": 7})


def test_what_is_made_anew_each_time_is_refused_only_other_kinds_of_folders(tmp_path: Path) -> None:
    for words in ({}, {"config": {"seed": 1}}, {}, {"config": {"seed": 2}}):
        claim(tmp_path, "distill", words, settings="config", compared=lambda _: {}, write=bool(words), renew=True)
    assert json.loads((tmp_path / "config.json").read_text()) == {"stage": "distill", "config": {"seed": 2}}
    with pytest.raises(FolderError, match="another kind of run"):
        claim(tmp_path, "sft", {"config": {}}, settings="config")
