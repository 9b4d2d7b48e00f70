"""The warm sandbox as programs see it, and as its callers do: fidelity, limits, files, many at once, death."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from coa.sandbox import CodeVerdict, ProgramLimits, Sandbox, SandboxError, open_sandbox
from coa.sandbox.base import UnreadableArguments
from coa.sandbox.warm import WarmSandbox
from coa.tools import Observation, ToolContext
from coa.tools import code as code_module
from coa.trajectory import Task

LIMITS = ProgramLimits(wall_s=10, cpu_s=5, memory_mb=512)


def with_sandbox(body: Callable[[Sandbox], Awaitable[None]], kind: str = "zygote", workers: int = 2) -> None:
    async def go() -> None:
        sandbox = await open_sandbox(kind, limits=LIMITS, workers=workers)
        try:
            await body(sandbox)
        finally:
            await sandbox.close()

    asyncio.run(go())


FORK = """
import multiprocessing
if __name__ == '__main__':
    with multiprocessing.Pool(2) as pool: print(pool.map(abs, [-1, -2]))
"""
SPAWN = """
import multiprocessing
if __name__ == '__main__':
    with multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.map(abs, [-3]))
"""
THREAD = """
import threading, time
def f(): time.sleep(0.05); print('thread')
threading.Thread(target=f).start()
"""
RECURSION = """
import sys
sys.setrecursionlimit(10**6)
def f(n): return n and 1 + f(n - 1)
print(f(20000))
"""
OTHER = """
import subprocess, sys
print(subprocess.run([sys.executable, '-c', 'print(5)'], capture_output=True).stdout)
"""
MANAGER = """
import multiprocessing
with multiprocessing.Manager() as manager:
    shared = manager.dict()
    shared['a'] = 1
    print(dict(shared))
"""
UNIX_SERVER = """
import asyncio
async def answer(reader, writer):
    writer.write(await reader.readline())
    writer.close()
async def main():
    await asyncio.start_unix_server(answer, '/tmp/server')
    reader, writer = await asyncio.open_unix_connection('/tmp/server')
    writer.write(b'hi\\n')
    print(await reader.readline())
    writer.close()
asyncio.run(main())
"""
SQLITE = """
import sqlite3
with sqlite3.connect('/tmp/data.db') as data:
    data.execute('create table t(x)')
    data.execute('insert into t values(1)')
print(data.execute('select * from t').fetchall())
data.close()
"""
PRINTED = [
    ("print(2**100)", "1267650600228229401496703205376\n"),
    ("import sys\nprint(__name__, sys.argv, __file__)", "__main__ ['/work/main.py'] /work/main.py\n"),
    ("print(sorted(name for name in globals() if name[:2] != '__'))", "[]\n"),
    ("print(input() + input())\ntry: input()\nexcept EOFError: print('end')", "ab\nend\n"),
    ("import sys\nfor line in sys.stdin: print(len(line))", "2\n2\n"),
    ("import sys\nprint(sys.stdin.buffer.read())", "b'a\\nb\\n'\n"),
    ("import atexit\natexit.register(print, 'bye')\nprint('hi')", "hi\nbye\n"),
    (THREAD, "thread\n"),
    (FORK, "[1, 2]\n"),
    (SPAWN, "[3]\n"),
    ("import subprocess\nprint(subprocess.run(['echo', 'x'], capture_output=True).stdout)", "b'x\\n'\n"),
    (OTHER, "b'5\\n'\n"),
    ("import asyncio\nasync def f(): return 7\nprint(asyncio.run(f()))", "7\n"),
    ("import inspect\ndef f(): pass\nprint(inspect.getsource(f).strip())", "def f(): pass\n"),
    (RECURSION, "20000\n"),
    ("import tempfile\nprint(tempfile.TemporaryFile().write(b'x'), open('f', 'w').write('yy'))", "1 2\n"),
    ("import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int = 1\nprint(A())", "A(x=1)\n"),
    ("import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__name__)", "A\n"),
    ("print('é', '\\ud800'.encode('utf-8', 'surrogatepass'))", "é b'\\xed\\xa0\\x80'\n"),
    (MANAGER, "{'a': 1}\n"),
    (UNIX_SERVER, "b'hi\\n'\n"),
    (SQLITE, "[(1,)]\n"),
    ("import shutil\nopen('a', 'w').write('x' * 9)\nprint(open(shutil.copy('a', 'b')).read())", "xxxxxxxxx\n"),
    ("from multiprocessing import shared_memory as s\nm = s.SharedMemory(create=True, size=9)\nm.unlink()", ""),
    ("import numpy as np\na = np.eye(99)\nprint((a @ a).sum(), len(np.linalg.svd(a)[1]))", "99.0 99\n"),
    ("import os\nprint(os.cpu_count() > 0, 'MemTotal' in open('/proc/meminfo').read())", "True True\n"),
    ("exit()\nprint('no')", ""),
    ("import os\nprint(os.getcwd(), os.environ['HOME'], os.listdir('.'))", "/work /work ['main.py']\n"),
]


def test_programs_behave_as_in_any_interpreter() -> None:
    async def body(sandbox: Sandbox) -> None:
        for code, expected in PRINTED:
            result = await sandbox.run(code, stdin="a\nb\n")
            assert (result.verdict, result.text) == (CodeVerdict.OK, expected), f"{code}: {result}"

    with_sandbox(body)


ENDS = [
    ("import sys; sys.exit(3)", CodeVerdict.RE, 3, ""),
    ("import sys; sys.exit('why')", CodeVerdict.RE, 1, "why\n"),
    ("raise SystemExit", CodeVerdict.OK, 0, ""),
    ("import os; os._exit(7)", CodeVerdict.RE, 7, ""),
    ("import os; os.kill(os.getpid(), 9)", CodeVerdict.RE, None, ""),
    ("import os; os.abort()", CodeVerdict.RE, None, ""),
    ("import ctypes; ctypes.string_at(0)", CodeVerdict.RE, None, ""),
    ("print(1", CodeVerdict.CE, 1, "'(' was never closed"),
    ("x = bytearray(1 << 40)", CodeVerdict.MLE, 1, "MemoryError"),
    ("import time\nwhile 1: time.sleep(1)", CodeVerdict.TLE, None, ""),
    ("while 1: pass", CodeVerdict.TLE, None, ""),
    ("while 1: print('x' * 1000)", CodeVerdict.OLE, None, ""),
    ("import socket; socket.create_connection(('127.0.0.1', 80))", CodeVerdict.RE, 1, "Network is unreachable"),
]


def test_every_end_has_its_verdict() -> None:
    async def body(sandbox: Sandbox) -> None:
        for code, verdict, exit_code, error in ENDS:
            result = await sandbox.run(
                code, limits=ProgramLimits(wall_s=3, cpu_s=0.5, memory_mb=256, output_bytes=100_000)
            )
            assert (result.verdict, result.exit_code) == (verdict, exit_code), (code, result)
            assert error in result.error_text
            assert bool(result.note) is (verdict is not CodeVerdict.OK)

    with_sandbox(body)


def test_a_traceback_shows_the_programs_own_lines_and_nothing_of_ours() -> None:
    async def body(sandbox: Sandbox) -> None:
        result = await sandbox.run("def f(x):\n    return 1 / x\n\nf(0)")
        lines = [line for line in result.error_text.splitlines() if not set(line) <= set(" ^~")]
        assert lines == [
            "Traceback (most recent call last):",
            '  File "/work/main.py", line 4, in <module>',
            "    f(0)",
            '  File "/work/main.py", line 2, in f',
            "    return 1 / x",
            "ZeroDivisionError: division by zero",
        ]

    with_sandbox(body)


def test_binary_and_large_output_arrive_as_written() -> None:
    async def body(sandbox: Sandbox) -> None:
        result = await sandbox.run("import sys\nsys.stdout.buffer.write(bytes(range(256)) * 4096)")
        assert result.stdout == bytes(range(256)) * 4096 and not result.stdout_truncated
        cut = await sandbox.run("print('x' * 5000)", limits=ProgramLimits(output_bytes=1000))
        assert (len(cut.stdout), cut.stdout_truncated, cut.verdict) == (1000, True, CodeVerdict.OLE)
        lines = await sandbox.run("import sys\nsys.stderr.write('e' * 500_000)\nprint('done')")
        assert (len(lines.stderr), lines.text) == (500_000, "done\n")

    with_sandbox(body)


def test_output_before_a_time_limit_is_kept() -> None:
    async def body(sandbox: Sandbox) -> None:
        result = await sandbox.run("print('so far')\nwhile 1: pass", limits=ProgramLimits(wall_s=0.5, cpu_s=5))
        assert (result.verdict, result.text) == (CodeVerdict.TLE, "so far\n")

    with_sandbox(body)


def test_files_go_in_and_come_out_and_links_do_not_lead_out() -> None:
    async def body(sandbox: Sandbox) -> None:
        code = (
            "import os\nos.makedirs('out')\nopen('out/copy', 'wb').write(open('data/in.bin', 'rb').read()[::-1])\n"
            "os.symlink('/etc/passwd', 'link')\nos.symlink('/', 'root')\nos.mkfifo('pipe')\nprint(open('t.txt').read())"
        )
        result = await sandbox.run(
            code,
            files={"data/in.bin": b"\x00\x01\xff", "t.txt": "héllo"},
            collect=["out/copy", "link", "root/etc/passwd", "pipe", "absent", "out"],
        )
        assert result.text == "héllo\n"
        assert result.files == {"out/copy": b"\xff\x01\x00"}
        for name in ("../x", "/etc/x", ""):
            with pytest.raises(SandboxError, match="does not stay"):
                await sandbox.run("", files={name: "x"})
        for names, why in (
            (["a\0b"], "NUL"),
            (["\ud800"], "UTF-8"),
            (["x" * 256], "too long"),
            (["a", "a/b"], "needs a folder"),
            (["main.py/x"], "needs a folder"),
        ):
            with pytest.raises(SandboxError, match=why):
                await sandbox.run("", files=dict.fromkeys(names, "x"))
        with pytest.raises(SandboxError, match="NUL"):
            await sandbox.run("", collect=["a\0b"])

    with_sandbox(body)


def test_a_program_of_the_code_tool_finds_the_tasks_files_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "files"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "a.csv").write_bytes(b"1,2\n\xff")
    (root / "b.csv").write_text("by its whole path")
    (root / "unlisted.csv").write_text("not for this task")
    (root / "large.bin").write_bytes(b"x" * 2000)
    (tmp_path / "secret").write_text("secret")
    monkeypatch.setattr(code_module, "MOST_FILE_BYTES", 1000)
    listed = ("sub/a.csv", str(root / "b.csv"), "../secret", "large.bin")
    context = ToolContext(Task(id="t", question="?", files=listed))
    program = """
import os
print(open("sub/a.csv", "rb").read(), open("b.csv").read(), sorted(os.listdir()))
open("large.bin")
"""

    async def go() -> tuple[Observation, set[str]]:
        tool = code_module.open_code(None, {"COA_FILES_ROOT": str(root)})
        try:
            seen = await tool.call({"code": program}, context)
            prints = {await tool.fingerprint({}, context)}
            (root / "b.csv").write_text("changed")
            return seen, prints | {await tool.fingerprint({}, context)}
        finally:
            await tool.close()

    seen, prints = asyncio.run(go())
    assert seen.text.startswith(r"b'1,2\n\xff' by its whole path ['b.csv', ")
    assert "unlisted" not in seen.text and "'secret'" not in seen.text and not seen.ok
    assert "note: large.bin is too large" in seen.text and len(prints) == 2


def test_random_numbers_differ_between_runs_and_hashes_do_not() -> None:
    async def body(sandbox: Sandbox) -> None:
        code = "import random\nprint(random.random(), hash('x'))"
        first, second = [(await sandbox.run(code)).text.split() for _ in range(2)]
        assert first[0] != second[0] and first[1] == second[1]

    with_sandbox(body)


def test_a_program_is_compiled_once_and_each_test_starts_fresh() -> None:
    async def body(sandbox: Sandbox) -> None:
        program = await sandbox.program(
            "import os\nseen = os.listdir('/tmp')\nopen('/tmp/left', 'w').close()\nprint(int(input()) * k, seen)",
            prelude="k = 3",
        )
        for n in (5, 7):
            assert (await program.run(f"{n}\n")).text == f"{n * 3} []\n"
        assert (await program.run("x\n")).verdict is CodeVerdict.RE
        assert (await program.run("9\n")).text == "27 []\n"
        await program.close()

    with_sandbox(body)


def test_a_test_that_ends_its_cell_does_not_end_the_program() -> None:
    async def body(sandbox: Sandbox) -> None:
        code = "import os, signal\nexec(input())"
        program = await sandbox.program(
            code, limits=ProgramLimits(wall_s=4, cpu_s=1, memory_mb=200, output_bytes=10_000)
        )
        for line, verdict in (
            ("print('ok')", CodeVerdict.OK),
            ("while True: pass", CodeVerdict.TLE),
            ("os.kill(os.getppid(), signal.SIGKILL)", CodeVerdict.RE),
            ("os.kill(os.getppid(), signal.SIGSTOP)", CodeVerdict.TLE),
            ("print('x' * 100_000)", CodeVerdict.OLE),
            ("x = [bytearray(30 << 20) for _ in range(9)]", CodeVerdict.MLE),
            ("os.fork() or __import__('time').sleep(60)", CodeVerdict.OK),
            ("print('ok')", CodeVerdict.OK),
        ):
            result = await program.run(line + "\n")
            assert result.verdict is verdict, f"{line}: {result}"
        await program.close()

    with_sandbox(body)


def test_function_calls_return_plain_data_and_nothing_else() -> None:
    async def body(sandbox: Sandbox) -> None:
        code = textwrap.dedent(
            """
            import os
            class Same:
                def __eq__(self, other): return True
            class Number(int):
                def __eq__(self, other): return True
            class Solution:
                def add(self, a, b): return a + b
                def pair(self): return (1, [2.5, None, True], {1: 'x'})
                def same(self): return Same()
                def number(self): return Number(5)
                def leave(self): os._exit(0)
                def lie(self):
                    for handle in range(3, 64):
                        try: os.write(handle, b'5')
                        except OSError: pass
                    os._exit(0)
            def plain(x): return x
            """
        )
        program = await sandbox.program(code)
        added = await program.call("add", [2, 3])
        assert (added.ok, added.returned, added.value) == (True, True, 5)
        assert (await program.call("pair", [])).value == [1, [2.5, None, True], {"dict": [[1, "x"]]}]
        assert (await program.call("plain", ["é"])).value == "é"
        assert (await program.call("number", [])).value == 5
        for name in ("same", "absent", "leave", "lie"):
            result = await program.call(name, [])
            assert not result.returned, (name, result)
        await program.close()

    with_sandbox(body)


def test_a_program_that_does_not_compile_says_so_for_every_test() -> None:
    async def body(sandbox: Sandbox) -> None:
        program = await sandbox.program("def f(:\n")
        for _ in range(2):
            result = await program.run("")
            assert result.verdict is CodeVerdict.CE and "SyntaxError" in result.error_text
        assert program.compile_error is not None
        await program.close()

    with_sandbox(body)


def test_too_much_output_in_one_test_is_never_charged_to_the_next() -> None:
    async def body(sandbox: Sandbox) -> None:
        program = await sandbox.program("print('x' * int(input()))", limits=ProgramLimits(output_bytes=1000))
        for _ in range(15):
            loud = await program.run("5000\n")
            assert loud.verdict is CodeVerdict.OLE, loud
            quiet = await program.run("3\n")
            assert quiet.text == "xxx\n", quiet
        for _ in range(15):
            assert (
                await sandbox.run("print('x' * 5000)", limits=ProgramLimits(output_bytes=1000))
            ).verdict is CodeVerdict.OLE
        await program.close()

    with_sandbox(body)


def test_nothing_of_one_test_is_there_for_the_next() -> None:
    async def body(sandbox: Sandbox) -> None:
        code = (
            "import os, resource\nprint(sorted(os.listdir('/work') + os.listdir('/tmp') + os.listdir('/dev/shm')), "
            "'left' in open('/work/main.py').read())\n"
            "os.makedirs('/tmp/closed/inner'); os.chmod('/tmp/closed', 0)\n"
            "open('/work/main.py', 'a').write('# le' + 'ft')\n"
            "try: resource.prlimit(os.getppid(), resource.RLIMIT_NPROC, (0, 0)); print('changed the runner')\n"
            "except OSError: pass"
        )
        program = await sandbox.program(code.replace("'left'", "'le' 'ft'"))
        for _ in range(3):
            result = await program.run()
            assert result.text == "['main.py'] False\n", result
        await program.close()

    with_sandbox(body)


def test_the_folders_themselves_are_as_new_for_each_test() -> None:
    async def body(sandbox: Sandbox) -> None:
        for change in (
            "os.chmod(place, 0)",
            "os.chmod(place, 0o711)",
            "os.utime(place, (5, 5))",
            "os.setxattr(place, 'user.note', b'left')",
        ):
            program = await sandbox.program(
                "import os\n"
                "for place in ('/tmp', '/dev/shm', '/work'):\n"
                "    seen = os.stat(place)\n"
                "    print(oct(seen.st_mode), seen.st_mtime == 5, os.listxattr(place))\n"
                f"    try: {change}\n"
                "    except OSError: pass"
            )
            for _ in range(3):
                assert (await program.run()).text == "0o40700 False []\n" * 3, change
            await program.close()

    with_sandbox(body)


def test_no_test_slows_the_next_one_down() -> None:
    async def body(sandbox: Sandbox) -> None:
        code = (
            "import os\nprint(os.nice(0), len(os.sched_getaffinity(0)), os.sched_getscheduler(0))\n"
            "parent, (one, *_) = os.getppid(), os.sched_getaffinity(0)\n"
        )
        for change in (
            "os.setpriority(os.PRIO_PROCESS, parent, 19)",
            "os.sched_setaffinity(parent, {one})",
            "os.sched_setscheduler(parent, os.SCHED_IDLE, os.sched_param(0))",
        ):
            program = await sandbox.program(code + change)
            told = {(await program.run()).text for _ in range(3)}
            now = (os.nice(0), len(os.sched_getaffinity(0)), os.sched_getscheduler(0))
            assert told == {"{} {} {}\n".format(*now)}, (change, told)
            await program.close()

    with_sandbox(body)


def test_memory_cannot_be_hidden_outside_of_processes() -> None:
    async def body(sandbox: Sandbox) -> None:
        for code in (
            "import os\nos.memfd_create('x')",
            "import ctypes\nlibc = ctypes.CDLL(None)\nif libc.shmget(0, 1 << 20, 0o1600) < 0: raise OSError",
            "import mmap\nmmap.mmap(-1, 1 << 20)",
            "import mmap\nmmap.mmap(open('/dev/zero', 'rb').fileno(), 1 << 20, prot=mmap.PROT_READ)",
        ):
            assert (await sandbox.run(code)).verdict is CodeVerdict.RE
        children = (
            "import subprocess, sys, time\n"
            "code = 'x = bytearray(b\"1\") * (60 << 20); import time; time.sleep(20)'\n"
            "for _ in range(9): subprocess.Popen([sys.executable, '-S', '-c', code])\ntime.sleep(20)"
        )
        for head in ("", "import numpy\n"):
            limits = ProgramLimits(wall_s=15, cpu_s=15, memory_mb=200)
            assert (await sandbox.run(head + children, limits=limits)).verdict is CodeVerdict.MLE

    with_sandbox(body)


def test_the_time_of_children_counts() -> None:
    async def body(sandbox: Sandbox) -> None:
        code = (
            "import os, time\n"
            "for _ in range(40):\n"
            "    pid = os.fork()\n"
            "    if pid == 0:\n"
            "        end = time.process_time() + 0.1\n"
            "        while time.process_time() < end: pass\n"
            "        os._exit(0)\n"
            "    os.waitpid(pid, 0)\nprint('all')"
        )
        result = await sandbox.run(code, limits=ProgramLimits(wall_s=60, cpu_s=1))
        assert (result.verdict, result.text) == (CodeVerdict.TLE, ""), result

    with_sandbox(body)


ORPHANS = """
import os, time
reader, writer = os.pipe()
for _ in range(40):
    if os.fork() == 0:
        if os.fork() == 0:
            end = time.process_time() + 0.1
            while time.process_time() < end: pass
            os.write(writer, b'.')
            os._exit(0)
        os._exit(0)
    os.wait()
    os.read(reader, 1)
print('all')
"""
BROOD = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        while True: pass
time.sleep(60)
"""


def test_the_time_of_orphans_counts_in_runs_and_in_tests() -> None:
    async def body(sandbox: Sandbox) -> None:
        limits = ProgramLimits(wall_s=60, cpu_s=1)
        result = await sandbox.run(ORPHANS, limits=limits)
        assert (result.verdict, result.text) == (CodeVerdict.TLE, ""), result
        program = await sandbox.program(ORPHANS, limits=limits)
        result = await program.run()  # told when it is over: each of them was within the limit
        assert result.verdict is CodeVerdict.TLE and result.cpu_s > 3.5, result
        await program.close()
        program = await sandbox.program(BROOD, limits=limits)
        result = await program.run()  # ended in the middle: together they are not
        assert result.verdict is CodeVerdict.TLE and 1 < result.cpu_s < 10 and result.wall_s < 30, result
        await program.close()

    with_sandbox(body)


def test_tests_at_the_same_time_are_in_different_places() -> None:
    async def body(sandbox: Sandbox) -> None:
        code = (
            "import os, time\nopen('/tmp/here', 'x').close()\nbegan = time.monotonic()\n"
            "time.sleep(0.5)\nprint(began, time.monotonic(), len([p for p in os.listdir('/proc') if p.isdigit()]))"
        )
        program = await sandbox.program(code)
        results = await asyncio.gather(program.run(), program.run(), program.run())
        await program.close()
        assert all(result.ok for result in results), results
        times = sorted(tuple(map(float, result.text.split())) for result in results)
        assert times[1][0] < times[0][1] <= times[2][0], "two at once, as there are two workers, and no more"
        assert all(processes == 3 for *_, processes in times), "init, the one that forks, and itself"

    with_sandbox(body)


def test_a_program_takes_no_second_place_while_others_wait() -> None:
    async def body(sandbox: Sandbox) -> None:
        other = asyncio.ensure_future(sandbox.run("import time\ntime.sleep(1)"))
        await asyncio.sleep(0.1)
        program = await sandbox.program("print(open('/proc/self/stat').read().split()[0])")
        results = await asyncio.gather(*(program.run() for _ in range(4)))
        await program.close()
        numbers = [int(result.text) for result in results]
        assert len(set(numbers)) == 4, "process numbers of one place, which none of them shares"
        assert (await other).ok

    with_sandbox(body)


def test_a_closed_sandbox_stays_closed_and_one_of_another_loop_says_so() -> None:
    async def closed() -> None:
        sandbox = await open_sandbox("zygote", workers=1)
        runs = [asyncio.ensure_future(sandbox.run("import time; time.sleep(0.5)")) for _ in range(3)]
        await asyncio.sleep(0.2)
        await sandbox.close()
        for run in runs:
            assert (await run).verdict is CodeVerdict.SANDBOX_ERROR
        assert isinstance(sandbox, WarmSandbox) and sandbox._plain._process is None

    asyncio.run(closed())
    sandbox = asyncio.run(open_sandbox("zygote"))
    result = asyncio.run(sandbox.run("print(1)"))
    assert result.verdict is CodeVerdict.SANDBOX_ERROR and "another event loop" in result.note
    asyncio.run(sandbox.close())


@pytest.mark.slow
def test_a_thousand_queued_runs_stay_within_few_descriptors() -> None:
    async def body(sandbox: Sandbox) -> None:
        most = 0

        async def one(n: int) -> bool:
            nonlocal most
            result = await sandbox.run(f"print({n} * 2)")
            most = max(most, len(os.listdir("/proc/self/fd")))
            return result.text == f"{2 * n}\n"

        before = len(os.listdir("/proc/self/fd"))
        assert all(await asyncio.gather(*(one(n) for n in range(1000))))
        assert most - before < 40
        assert len(os.listdir("/proc/self/fd")) <= before + 1

    with_sandbox(body)


def test_a_dead_interpreter_is_replaced_and_its_runs_are_no_ones_fault() -> None:
    async def body(sandbox: Sandbox) -> None:
        assert isinstance(sandbox, WarmSandbox)
        slow = asyncio.ensure_future(sandbox.run("import time; time.sleep(30)"))
        await asyncio.sleep(0.3)
        process = sandbox._plain._process
        assert process is not None
        process.kill()
        lost = await slow
        assert lost.verdict is CodeVerdict.SANDBOX_ERROR and "died" in lost.note
        assert (await sandbox.run("print(1)")).text == "1\n"

    with_sandbox(body)


def test_a_cancelled_run_is_ended_and_its_place_is_free() -> None:
    async def body(sandbox: Sandbox) -> None:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await sandbox.run("import time; time.sleep(30)")
        assert (await sandbox.run("print(1)")).text == "1\n"
        assert isinstance(sandbox, WarmSandbox)
        assert not sandbox._plain._ended

    with_sandbox(body, workers=1)


def test_nothing_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    """SIGKILL under load: every process of the sandbox is gone soon after, and a new one starts clean."""
    mark = f"coa-{os.getpid()}-{time.monotonic_ns()}"
    script = tmp_path / "load.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import asyncio
            from coa.sandbox import ProgramLimits, open_sandbox
            async def main():
                sandbox = await open_sandbox("zygote", workers=4, limits=ProgramLimits(wall_s=600, cpu_s=600))
                code = "import os, time, subprocess\\nos.fork()\\nsubprocess.run(['sleep', '600', '{mark}'])"
                code = code.replace(", '{mark}'", "") + "  # {mark}"
                runs = [asyncio.ensure_future(sandbox.run("import time\\n" + code)) for _ in range(4)]
                await asyncio.sleep(1)
                print("loaded", sandbox._plain._process.pid, flush=True)
                await asyncio.gather(*runs)
            asyncio.run(main())
            """
        )
    )
    supervisor = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert supervisor.stdout is not None
    launcher = int(supervisor.stdout.readline().split()[1])
    family = _descendants(launcher)
    assert len(family) >= 10  # launcher, interpreter, and init, program and children of four runs
    supervisor.send_signal(signal.SIGKILL)
    supervisor.wait()
    supervisor.stdout.close()
    deadline = time.monotonic() + 20
    while any(_alive(pid) for pid in family) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in family if _alive(pid)]

    async def body(sandbox: Sandbox) -> None:
        assert (await sandbox.run("print('clean')")).text == "clean\n"

    with_sandbox(body)


def _descendants(root: int) -> list[int]:
    from coa.sandbox.inside.usage import usage

    return list(usage({root: 0})[0].resident)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_supervisors_own_memory_does_not_grow_with_output() -> None:
    async def body(sandbox: Sandbox) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(5):
            result = await sandbox.run(
                "import sys\nwhile 1: sys.stdout.write('x' * (1 << 20))", limits=ProgramLimits(output_bytes=1 << 20)
            )
            assert result.verdict is CodeVerdict.OLE
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # kilobytes

    with_sandbox(body)


def test_without_isolation_it_refuses_unless_told() -> None:
    async def go() -> None:
        with pytest.raises(SandboxError, match="asked for twice"):
            await open_sandbox("unsafe")
        with pytest.raises(SandboxError, match="no sandbox 'jail'"):
            await open_sandbox("jail")
        sandbox = await open_sandbox("unsafe", unsafe=True)
        result = await sandbox.run("print(input())", stdin="plain\n")
        assert (result.verdict, result.text) == (CodeVerdict.OK, "plain\n")
        assert "NO ISOLATION" in sandbox.about
        program = await sandbox.program("def f(x): return [x]")
        assert (await program.call("f", [1])).value == [1]
        await sandbox.close()

    asyncio.run(go())


def test_runs_of_different_limits_take_turns_and_each_has_its_own() -> None:
    """One process waits ahead with the limits of the run before; a run of others must not get them."""
    code = (
        "import resource, shutil; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], shutil.disk_usage('/tmp').total)"
    )

    async def body(sandbox: Sandbox) -> None:
        small, large = ProgramLimits(open_files=9, disk_mb=8), ProgramLimits(open_files=200, disk_mb=16)
        for limits in (small, large, large, small, small):
            result = await sandbox.run(code, limits=limits)
            assert result.text == f"{limits.open_files} {limits.disk_mb << 20}\n", result

    with_sandbox(body)


def test_the_open_files_of_one_run_do_not_limit_the_next() -> None:
    code = "kept = [open('/dev/null') for _ in range(100)]\nprint(len(kept))"

    async def body(sandbox: Sandbox) -> None:
        for _ in range(2):
            assert (await sandbox.run(code, limits=ProgramLimits(open_files=20))).verdict is CodeVerdict.RE
            assert (await sandbox.run(code, limits=ProgramLimits())).text == "100\n"
            assert (await sandbox.run(code, limits=ProgramLimits(open_files=400))).text == "100\n"

    with_sandbox(body)


def test_runs_at_the_same_time_share_no_names_of_sockets() -> None:
    code = (
        "import socket, time\n"
        "server = socket.socket(socket.AF_UNIX); server.bind('\\0same'); server.listen()\n"
        "time.sleep(1)\n"
        "print(open('/proc/net/unix').read().count('@'))"
    )

    async def body(sandbox: Sandbox) -> None:
        results = await asyncio.gather(sandbox.run(code), sandbox.run(code))
        assert [result.text for result in results] == ["1\n", "1\n"], results

    with_sandbox(body)


def test_the_sockets_of_one_run_do_not_count_for_the_next() -> None:
    async def body(sandbox: Sandbox) -> None:
        many = "import socket, time\nkept = [socket.socketpair() for _ in range(100)]\ntime.sleep(0.2)\nprint(1)"
        small = ProgramLimits(memory_mb=24)
        for _ in range(2):
            result = await sandbox.run(many)
            assert result.ok and result.memory_mb > 40, result
            assert (await sandbox.run(many, limits=small)).verdict is CodeVerdict.MLE
            assert (await sandbox.run("import time\ntime.sleep(0.2)\nprint(1)", limits=small)).text == "1\n"

    with_sandbox(body)


FORGERY = """
import os, sys
def f():
    frame = sys._getframe()
    while frame and 'job' not in frame.f_locals: frame = frame.f_back
    for handle in range(3, 64):
        try: os.write(handle, frame.f_locals['job']['nonce'].encode() + b'!it was the arguments')
        except OSError: pass
    os._exit(0)
def g(x): return x
"""


def test_arguments_that_cannot_be_read_are_the_callers_fault_and_no_program_can_claim_it() -> None:
    async def body(sandbox: Sandbox) -> None:
        program = await sandbox.program(FORGERY, limits=ProgramLimits(memory_mb=64))
        assert (await program.call("g", [(1, {2})])).value == [1, {"set": [2]}]
        for given in (b"", b"j", b"j7", b"p[1,", b"p" + b"-" * 50_000 + b"1", b"p\xff", b"pf()"):
            with pytest.raises(UnreadableArguments, match="the arguments cannot be read"):
                await program.test(given, function="g")
        forged = await program.call("f", [])
        assert (forged.verdict, forged.returned) == (CodeVerdict.OK, False), forged
        too_large = await program.call("g", [[[]] * 1_000_000])
        assert too_large.verdict in (CodeVerdict.MLE, CodeVerdict.SANDBOX_ERROR) and not too_large.returned
        assert (await program.call("g", [1])).value == 1
        await program.close()

    with_sandbox(body)


def test_a_process_that_died_while_it_waited_ahead_is_replaced() -> None:
    async def body(sandbox: Sandbox) -> None:
        assert isinstance(sandbox, WarmSandbox)
        assert (await sandbox.run("print(1)")).ok
        process = sandbox._plain._process
        assert process is not None
        for _ in range(100):  # it is forked after the run was told to be over
            family = _descendants(process.pid)
            waiting = [pid for pid in family if _descendants(pid) == [pid] and "inside" in _command(pid)]
            if waiting:
                break
            await asyncio.sleep(0.02)
        assert len(waiting) == 1
        os.kill(waiting[0], signal.SIGKILL)
        while _alive(waiting[0]):
            await asyncio.sleep(0.01)
        assert (await sandbox.run("print(2)")).text == "2\n"

    with_sandbox(body)


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
