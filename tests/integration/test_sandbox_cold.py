"""Sandboxes that start a fresh interpreter behind the walls of another program: the same runs on each that is here."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from coa.sandbox import CodeVerdict, ProgramLimits, Sandbox, SandboxError, open_sandbox
from coa.sandbox.inside.usage import usage

LIMITS = ProgramLimits(wall_s=20, cpu_s=5, memory_mb=512)
KINDS = [
    pytest.param(kind, marks=pytest.mark.skipif(not shutil.which(kind), reason=f"{kind} is not on PATH"))
    for kind in ("nsjail", "bwrap", "runsc")
]
each_kind = pytest.mark.parametrize("kind", KINDS)


def with_sandbox(kind: str, body: Callable[[Sandbox], Awaitable[None]]) -> None:
    async def go() -> None:
        sandbox = await open_sandbox(kind, limits=LIMITS, workers=2)
        try:
            assert sandbox.about.startswith(kind)
            await body(sandbox)
        finally:
            await sandbox.close()

    asyncio.run(go())


ENDS = [
    # program, verdict, exit code (None: a signal ended it, or either may be)
    ("print(2**100, input())", CodeVerdict.OK, 0),
    ("import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'pass'], check=True)", CodeVerdict.OK, 0),
    ("import multiprocessing\nwith multiprocessing.Pool(2) as pool: pool.map(abs, [-1, -2])", CodeVerdict.OK, 0),
    ("raise SystemExit(7)", CodeVerdict.RE, 7),
    ("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)", CodeVerdict.RE, None),
    ("kept = [bytearray(100 << 20) for _ in range(9)]", CodeVerdict.MLE, None),
    ("print(", CodeVerdict.CE, 1),
]


@each_kind
def test_every_end_has_its_verdict(kind: str) -> None:
    async def body(sandbox: Sandbox) -> None:
        for code, verdict, exit_code in ENDS:
            result = await sandbox.run(code, stdin="x\n")
            assert result.verdict is verdict, (code, result)
            assert exit_code is None or result.exit_code == exit_code, (code, result)
        result = await sandbox.run("print('so far')\nwhile True: pass", limits=ProgramLimits(wall_s=20, cpu_s=1))
        assert (result.verdict, result.text) == (CodeVerdict.TLE, "so far\n")

    with_sandbox(kind, body)


@each_kind
def test_files_go_in_and_come_out_and_links_do_not_lead_out(kind: str) -> None:
    async def body(sandbox: Sandbox) -> None:
        code = (
            "import os\nos.makedirs('out')\nopen('out/copy', 'wb').write(open('data/in.bin', 'rb').read()[::-1])\n"
            "open('large', 'wb').write(bytes(2 << 20))\n"
            "os.symlink('/etc/passwd', 'link')\nos.symlink('/', 'root')\nos.mkfifo('pipe')\nprint(open('t.txt').read())"
        )
        result = await sandbox.run(
            code,
            files={"data/in.bin": b"\x00\n\xff", "t.txt": "héllo"},
            collect=["out/copy", "link", "large", "root/etc/passwd", "pipe", "absent", "out"],
        )
        assert result.text == "héllo\n", result
        assert result.files == {"out/copy": b"\xff\n\x00", "large": bytes(2 << 20)}
        with pytest.raises(SandboxError, match="does not stay in the working folder"):
            await sandbox.run("", collect=["../x"])

    with_sandbox(kind, body)


@each_kind
def test_functions_return_plain_data_and_nothing_else(kind: str) -> None:
    async def body(sandbox: Sandbox) -> None:
        lie = "    for handle in range(3, 64):\n        try: os.write(handle, b'5')\n        except OSError: pass\n"
        program = await sandbox.program(f"import os\ndef add(a, b): return a + b\ndef lie():\n{lie}    os._exit(0)")
        added = await program.call("add", [2, 3])
        assert (added.ok, added.returned, added.value) == (True, True, 5), added
        assert not (await program.call("lie", [])).returned

    with_sandbox(kind, body)


@each_kind
def test_nothing_outlives_a_killed_supervisor(kind: str, tmp_path: Path) -> None:
    script = tmp_path / "load.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import asyncio
            from coa.sandbox import ProgramLimits, open_sandbox
            async def main():
                sandbox = await open_sandbox({kind!r}, limits=ProgramLimits(wall_s=600, cpu_s=600))
                print("opened", flush=True)
                await sandbox.run("import os, time\\nos.fork()\\ntime.sleep(600)")
            asyncio.run(main())
            """
        )
    )
    supervisor = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert supervisor.stdout is not None
    supervisor.stdout.readline()
    family: list[int] = []

    def running() -> bool:
        family[:] = [pid for pid in usage({supervisor.pid: 0})[0].resident if pid != supervisor.pid]
        return len(family) >= 4  # the walls' program, process 1, the run and its child

    assert _comes_true(running)
    supervisor.send_signal(signal.SIGKILL)
    supervisor.wait()
    supervisor.stdout.close()
    assert _comes_true(lambda: not any(_alive(pid) for pid in family))


def _comes_true(claim: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not (held := claim()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return held


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not shutil.which("runsc"), reason="gVisor is not installed")
def test_devices_and_set_user_id_programs_are_inert_in_gvisor() -> None:
    """It lets a plain user make device files and shows no `nosuid`, so what counts is what they do."""
    code = """
        import ctypes, os, stat, subprocess
        for kind in (stat.S_IFCHR, stat.S_IFBLK):
            for device in ((1, 1), (1, 2), (1, 4), (8, 0), (10, 232)):
                path = '/work/%d-%d-%d' % (kind, *device)
                try:
                    os.mknod(path, kind | 0o666, os.makedev(*device))
                    open(path, 'rb').close()
                    print('opened', kind, device)
                except OSError: pass
        print(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))  # no_new_privs
    """

    async def body(sandbox: Sandbox) -> None:
        assert (await sandbox.run(textwrap.dedent(code))).text == "1\n"

    with_sandbox("runsc", body)


def test_a_program_that_is_not_here_is_named_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    for kind, hint in (("nsjail", "github.com/google/nsjail"), ("runsc", "gVisor"), ("bwrap", "bubblewrap")):
        with pytest.raises(SandboxError, match=f"{kind} is not on PATH") as caught:
            asyncio.run(open_sandbox(kind))
        assert caught.value.hint is not None and hint in caught.value.hint


@pytest.mark.skipif(not shutil.which("true"), reason="there is no program that does nothing")
def test_walls_that_start_nothing_are_no_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of that name which only exits well must not be taken for isolation, nor the code run without it."""
    nothing = str(shutil.which("true"))
    monkeypatch.setenv("PATH", str(tmp_path))
    for kind in ("nsjail", "bwrap", "runsc"):
        (tmp_path / kind).symlink_to(nothing)
        with pytest.raises(SandboxError, match="could not be isolated"):
            asyncio.run(open_sandbox(kind))
