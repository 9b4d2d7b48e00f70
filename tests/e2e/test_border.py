"""The border of the command line, where only a process of its own can show it: full devices, pipes, Ctrl-C, bugs."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from coa.cli import main
from coa.trajectory import write
from support.builders import web_run
from support.commands import save_tiny_model

COA = [sys.executable, "-m", "coa"]


def coa(*arguments: object, **settings: Any) -> subprocess.CompletedProcess[str]:
    settings = {"stdout": subprocess.PIPE, **settings}
    return subprocess.run([*COA, *map(str, arguments)], stderr=subprocess.PIPE, text=True, timeout=120, **settings)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write(tmp_path / "runs.jsonl", [web_run(sample=number) for number in range(300)])
    return tmp_path / "runs.jsonl"


@pytest.mark.parametrize("command", [["export", "--to", "messages"], ["inspect", "--json"], ["inspect"]])
def test_a_full_device_is_an_error_and_no_traceback(command: list[str], runs: Path) -> None:
    with open("/dev/full", "w") as full:
        done = coa(command[0], runs, *command[1:], stdout=full)
    assert done.returncode == 1 and "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert "error: cannot write" in done.stderr and "No space left" in done.stderr and "hint: free" in done.stderr


def test_short_output_to_a_full_device_is_an_error_too() -> None:
    """It stays in a buffer until the program ends."""
    with open("/dev/full", "w") as full:
        done = coa("profile", "list", stdout=full)
    assert done.returncode == 1 and "No space left" in done.stderr and "Exception ignored" not in done.stderr


def test_a_reader_who_has_seen_enough_ends_it_silently(runs: Path) -> None:
    shell = f"{sys.executable} -m coa export {runs} --to messages | head -1"
    done = subprocess.run(shell, shell=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.count("\n") == 1 and not done.stderr


@pytest.mark.parametrize("after_s", [None, 0.0, 0.1, 0.3, 0.6])
def test_ctrl_c_prints_no_traceback(after_s: float | None, runs: Path) -> None:
    """None: while the commands are imported, when Ctrl-C has its default effect. Else: that long afterwards."""
    command = [*COA, "inspect", str(runs), "--mask", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    _wait(process, caught=True)  # by Python, which has just started
    _wait(process, caught=False)
    if after_s is not None:
        _wait(process, caught=True)
        time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert "Traceback" not in said and "KeyboardInterrupt" not in said, said
    assert process.returncode in (0, 130, -signal.SIGINT), (process.returncode, said)
    assert process.returncode != 130 or said == "interrupted\n"


def test_ctrl_c_while_a_class_is_made_is_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 turns it into a RuntimeError that is caused by the KeyboardInterrupt."""

    def command(*_: object, **__: object) -> None:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr("coa.cli.commands.app", command)
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 130


def _wait(process: subprocess.Popen[str], *, caught: bool) -> None:
    """Until the process handles Ctrl-C itself, or no longer does."""
    until = time.monotonic() + 30
    while time.monotonic() < until and process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        mask = next(line for line in status.splitlines() if line.startswith("SigCgt:")).split()[1]
        if bool(int(mask, 16) >> (signal.SIGINT - 1) & 1) is caught:
            return
        time.sleep(0.001)
    raise AssertionError(f"it did not come to that; it ended with {process.poll()}")


def test_what_nobody_expected_is_one_line_and_a_file_with_the_traceback(tmp_path: Path) -> None:
    """Here an error of a tool that a user wrote."""
    (tmp_path / "odd.py").write_text("def tool(setting=None):\n    raise ZeroDivisionError('odd')\n")
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = coa("tools", "call", "odd", "x", "--tool", "odd=odd:tool", cwd=tmp_path, env=environment)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "error: coa failed unexpectedly: ZeroDivisionError: odd (in odd.py, line 2)" in done.stderr, done.stderr
    (kept,) = tmp_path.glob("coa-traceback-*.txt")
    assert str(kept) in done.stderr and "ZeroDivisionError" in kept.read_text()


def test_debugging_shows_the_traceback_of_any_error(tmp_path: Path) -> None:
    done = coa("inspect", tmp_path / "none.jsonl", env=os.environ | {"COA_DEBUG": "1"})
    assert done.returncode == 1 and "Traceback" in done.stderr and "error: there is no file" in done.stderr


def test_a_disk_that_is_full_ends_training_with_what_to_do(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A limit on the size of files stands for the full disk. In this process, which has torch loaded already."""
    save_tiny_model(tmp_path / "tiny")
    write(tmp_path / "data.jsonl", [web_run(sample=number) for number in range(4)])
    words = ["--model", tmp_path / "tiny", "--data", tmp_path / "data.jsonl", "--out", tmp_path / "out"]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in ("sft", *words, "--set", "save_steps=1", "--set", "epochs=1")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capfd.readouterr().err
    assert end.value.code == 1 and "Traceback" not in said, said
    assert "error: cannot write a checkpoint in" in said and "the same command then goes on" in said
