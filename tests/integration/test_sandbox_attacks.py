"""Model-written code that tries to get out, on real sandboxes, as root and as a plain user."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Set
from pathlib import Path

import pytest

from support.attack_driver import HARMLESS, prepared
from support.attacks import ATTACKS
from support.unprivileged import as_nobody, can_become_nobody

ROOT = Path(__file__).resolve().parents[2]
NOT_LIMITED_BY_BWRAP = {"make files without end"}
"""It cannot set a number of inodes. They are memory, and gone with the run."""
INERT_IN_GVISOR = {"have or regain capabilities", "make a set-user-id program or a device"}
"""Its own kernel shows no `nosuid` and lets anybody make device files; test_sandbox_cold shows that both do nothing."""


def attack(kind: str, *, nobody: bool) -> dict[str, dict[str, object]]:
    arguments = ("-m", "support.attack_driver", kind)
    if nobody:
        if not can_become_nobody():
            pytest.skip("only root can become another user; the run as this user is in the other test")
        done = as_nobody(*arguments)
    else:
        done = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            cwd="/",
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}"},
        )
    assert done.returncode == 0, done.stderr
    return {report["attack"]: report for report in json.loads(done.stdout)}


def check(
    reports: dict[str, dict[str, object]],
    *,
    except_for: Set[str] = frozenset(),
    unless_slow: Set[str] = frozenset(),
) -> None:
    """`except_for` get through; `unless_slow` get through where the machine is quick enough for their time limit."""
    expected = {a.name for a in ATTACKS if not a.only_x86_64 or platform.machine() == "x86_64"}
    assert set(reports) == expected
    for name, report in reports.items():
        if name not in unless_slow:
            assert report["escaped"] is (name in except_for), report
        assert report["verdict"] != "SANDBOX_ERROR", report
        assert report["bystander_lives"], report
        assert report["files"] == ["private", "readable", "socket"], report
    for name in (attack.name for attack in ATTACKS if attack.memory_mb is not None and attack.name in reports):
        assert reports[name]["verdict"] == "MLE" or name in except_for, reports[name]
    for name in ("ignore signals and sleep", "spin"):
        assert reports[name]["verdict"] == "TLE"
    for name in ("write 200 MB to standard output", "write 200 MB to standard error"):
        assert reports[name]["verdict"] == "OLE"


def _unlimited_for_root(nobody: bool) -> Set[str]:
    """The kernel limits no processes of root's number; the watch outside ends them, after 50 ms."""
    return {"fork without end"} if os.geteuid() == 0 and not nobody else frozenset()


@pytest.mark.parametrize("nobody", [False, True], ids=["as this user", "as nobody"])
def test_no_attack_gets_out_of_the_warm_sandbox(nobody: bool) -> None:
    reports = attack("zygote", nobody=nobody)
    check(reports)
    assert reports["take 3.6 GB in twelve processes"]["verdict"] == "MLE"


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed; the warm sandbox does not need it")
@pytest.mark.parametrize("nobody", [False, True], ids=["as this user", "as nobody"])
def test_no_attack_gets_out_of_bubblewrap(nobody: bool) -> None:
    check(attack("bwrap", nobody=nobody), except_for=NOT_LIMITED_BY_BWRAP, unless_slow=_unlimited_for_root(nobody))


@pytest.mark.skipif(not shutil.which("nsjail"), reason="nsjail is not on PATH; the warm sandbox does not need it")
@pytest.mark.parametrize("nobody", [False, True], ids=["as this user", "as nobody"])
def test_no_attack_gets_out_of_nsjail(nobody: bool) -> None:
    check(attack("nsjail", nobody=nobody), unless_slow=_unlimited_for_root(nobody))


@pytest.mark.skipif(not shutil.which("runsc"), reason="gVisor is not on PATH; the warm sandbox does not need it")
@pytest.mark.parametrize("nobody", [False, True], ids=["as this user", "as nobody"])
def test_no_attack_gets_out_of_gvisor(nobody: bool) -> None:
    check(attack("runsc", nobody=nobody), except_for=INERT_IN_GVISOR, unless_slow={"make files without end"})


def test_the_attacks_are_real() -> None:
    """Those that do no harm succeed in a plain process; otherwise the tests above would prove nothing."""
    with prepared() as outside:
        for name in HARMLESS:
            code = next(a.code for a in ATTACKS if a.name == name)
            done = subprocess.run(
                [sys.executable, "-c", outside.fill(code)], capture_output=True, text=True, timeout=60
            )
            assert "ESCAPED" in done.stdout, (name, done.stderr)
