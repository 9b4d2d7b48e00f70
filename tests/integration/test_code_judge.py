"""Solutions judged in the real sandbox: right, wrong, slow, and those that try to be taken for right."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from coa.errors import ScoringError
from coa.sandbox import CodeVerdict, Sandbox, open_sandbox
from coa.sandbox.remote import RemoteSandbox
from coa.scoring import scorer_for
from coa.scoring.code import Case, Judgement, Problem, judge
from coa.scoring.code.scorer import CodeScorer, program_in
from coa.trajectory import Task
from coa.trajectory.types import CodeTests, TestCase

DOUBLE = Problem(
    cases=tuple(Case(stdin=f"{n}\n", expected=f"{2 * n}\n") for n in (1, 2, 30)), wall_s=4, cpu_s=1, memory_mb=256
)
TWO_SUM = Problem(
    function="twoSum",
    cases=(Case(arguments=([2, 7, 11], 9), expected=[0, 1]), Case(arguments=([3, 3], 6), expected=[0, 1])),
    wall_s=4,
    cpu_s=1,
)


def with_judge(body: Callable[[Callable[[Problem, str], Awaitable[Judgement]]], Awaitable[None]]) -> None:
    async def go() -> None:
        sandbox = await open_sandbox("zygote")
        try:
            await body(lambda problem, code: judge(problem, code, sandbox))
        finally:
            await sandbox.close()

    asyncio.run(go())


def test_programs_that_read_and_print() -> None:
    solutions = [
        ("print(2 * int(input()))", CodeVerdict.AC),
        ("import sys\nprint(int(sys.stdin.readline()) * 2, end='')", CodeVerdict.AC),
        ("print(int(input()) ** 2)", CodeVerdict.WA),  # right for 2 only
        ("print(float(input()) * 2)", CodeVerdict.AC),  # 2.0 is exactly 2
        ("print(2)", CodeVerdict.WA),
        ("", CodeVerdict.WA),
        ("pass", CodeVerdict.WA),
        ("exit(0)", CodeVerdict.WA),
        ("import os; os._exit(0)", CodeVerdict.WA),
        ("print(2 * int(input()))\nexit(1)", CodeVerdict.RE),
        ("print(2 * int(input()))\nraise ValueError", CodeVerdict.RE),
        ("input(); print(2 * int(input()))", CodeVerdict.RE),
        ("while True: pass", CodeVerdict.TLE),
        ("x = [0] * 10**9", CodeVerdict.MLE),
        ("while True: print('x' * 10**6)", CodeVerdict.OLE),
        ("print(2 * int(input())", CodeVerdict.CE),
        ("n = int(input())\nfor m in range(100): print(m)", CodeVerdict.WA),  # the answer is among what it prints
    ]

    async def body(judged: Callable[[Problem, str], Awaitable[Judgement]]) -> None:
        for code, verdict in solutions:
            judgement = await judged(DOUBLE, code)
            assert judgement.verdict is verdict, f"{code}: {judgement}"
            assert judgement.passed == (
                3 if verdict is CodeVerdict.AC else sum(t.verdict is CodeVerdict.AC for t in judgement.tests)
            )

    with_judge(body)


RIGHT = """
class Solution:
    def twoSum(self, nums: List[int], target: int) -> List[int]:
        seen = {}
        for i, n in enumerate(nums):
            if target - n in seen:
                return [seen[target - n], i]
            seen[n] = i
"""


def test_functions_that_return() -> None:
    solutions = [
        (RIGHT, CodeVerdict.AC),
        (RIGHT.replace("[seen[target - n], i]", "(seen[target - n], i)"), CodeVerdict.AC),
        (RIGHT.replace("[seen[target - n], i]", "[i, seen[target - n]]"), CodeVerdict.WA),
        (RIGHT.replace("return [", "print(1); return ["), CodeVerdict.AC),
        ("def twoSum(nums, target): return [0, 1]", CodeVerdict.AC),
        ("def twoSum(nums, target): return {0, 1}", CodeVerdict.WA),
        ("def twoSum(nums, target): return [False, True]", CodeVerdict.WA),
        ("def twoSum(nums, target): print([0, 1])", CodeVerdict.WA),
        (
            "class L(list):\n    def __eq__(self, other): return True\ndef twoSum(nums, target): return L([5])",
            CodeVerdict.WA,
        ),
        ("class A:\n    def __eq__(self, other): return True\ndef twoSum(nums, target): return A()", CodeVerdict.RE),
        ("import os\ndef twoSum(nums, target): os._exit(0)", CodeVerdict.RE),
        ("import sys\ndef twoSum(nums, target): sys.exit(0)", CodeVerdict.RE),
        ("def other(): pass", CodeVerdict.RE),
        ("def twoSum(nums, target):\n    while True: pass", CodeVerdict.TLE),
        ("def twoSum(nums, target): return nums[10**6]", CodeVerdict.RE),
    ]

    async def body(judged: Callable[[Problem, str], Awaitable[Judgement]]) -> None:
        for code, verdict in solutions:
            judgement = await judged(TWO_SUM, code)
            assert judgement.verdict is verdict, f"{code}: {judgement}"

    with_judge(body)


def test_what_is_expected_is_nowhere_in_the_sandbox() -> None:
    """The program looks through everything it can see: its memory, its files, other processes."""
    code = """
import glob, re
secret = re.compile(rb'[t]he-expected-[o]utput')  # does not match itself
for path in glob.glob('/proc/*/environ') + glob.glob('/proc/*/cmdline') + glob.glob('/work/*') + glob.glob('/tmp/*'):
    try:
        if secret.search(open(path, 'rb').read()): print(path)
    except OSError: pass
searched = 0
for line in open('/proc/self/maps'):
    fields = line.split()
    if 'r' not in fields[1] or len(fields) > 5 and fields[5].startswith('[v'): continue
    low, high = (int(part, 16) for part in fields[0].split('-'))
    with open('/proc/self/mem', 'rb') as memory:
        memory.seek(low)
        try: data = memory.read(high - low)
        except OSError: continue
    searched += len(data)
    if secret.search(data): print(line)
assert searched > 1 << 20
"""
    problem = Problem(cases=(Case(stdin="", expected="the-expected-output-of-this-test"),), wall_s=20, cpu_s=20)

    async def body(judged: Callable[[Problem, str], Awaitable[Judgement]]) -> None:
        judgement = await judged(problem, code)
        assert judgement.verdict is CodeVerdict.WA and judgement.tests[0].result.text == "", judgement

    with_judge(body)


def test_integers_of_any_size_are_exact() -> None:
    problem = Problem(function="f", cases=(Case(arguments=(2**100,), expected=2**100 + 1),))

    async def body(judged: Callable[[Problem, str], Awaitable[Judgement]]) -> None:
        assert (await judged(problem, "def f(n): return n + 1")).verdict is CodeVerdict.AC
        assert (await judged(problem, "def f(n): return n + 2")).verdict is CodeVerdict.WA
        assert (await judged(problem, "def f(n): return float(n)")).verdict is CodeVerdict.WA

    with_judge(body)


def test_arguments_keep_their_python_types() -> None:
    cases = (Case(arguments=(), literal="[(1, 2)]", expected=[1, 2, 3]),)
    problem = Problem(function="f", cases=cases, bool_is_int=True)

    async def body(judged: Callable[[Problem, str], Awaitable[Judgement]]) -> None:
        assert (await judged(problem, "def f(t): return t + (3,)")).verdict is CodeVerdict.AC
        assert (await judged(problem, "def f(t): return sorted({t: 3}) and [True, 2, 3]")).verdict is CodeVerdict.AC

    with_judge(body)


def test_solutions_may_use_what_the_platforms_give_them() -> None:
    """Names and modules, both; classes of their own in dataclasses and pickles; output in files they never close."""
    solutions = [
        "print(bisect.bisect_left([1, 2], 2) + len(copy.deepcopy([1])))",
        "print(deque([2])[0])",
        "print(int(stdin.readline()) * 2)",
        "print(int(mean([2, 2])))",
        "print(pow(2, 1, 5))",
        "out = open(1, 'w')\nout.write('2')",
        "import sys, io, atexit\nsys.stdout = io.StringIO()\n"
        "atexit.register(lambda: sys.__stdout__.write(sys.stdout.getvalue()))\nprint(2)",
        "print(len(str(10**5000)) - 4999)",
        "print(int(open('/dev/stdin').read()) * 2)",
    ]
    problem = Problem(cases=(Case(stdin="1\n", expected="2\n"),))
    called = Problem(function="f", cases=(Case(arguments=(1,), expected=2),))
    dataclass = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\nimport pickle\n"
        "@dataclass\nclass A:\n    x: int\ndef f(n): return pickle.loads(pickle.dumps(A(n + 1))).x"
    )

    async def body(judged: Callable[[Problem, str], Awaitable[Judgement]]) -> None:
        for code in solutions:
            judgement = await judged(problem, code)
            assert judgement.verdict is CodeVerdict.AC, f"{code}: {judgement}"
        assert (await judged(called, dataclass)).verdict is CodeVerdict.AC
        wrapped = called.model_copy(update={"cases": (Case(arguments=(1,), expected=[2]),), "wrapped": True})
        assert (await judged(wrapped, "def f(n): return n + 1")).verdict is CodeVerdict.AC

    with_judge(body)


def test_a_program_too_hard_to_compile_is_not_the_sandboxes_fault() -> None:
    bomb = "".join(f"{' ' * n}try:\n{' ' * n} pass\n{' ' * n}finally:\n" for n in range(19)) + " " * 19 + "pass\n"
    problem = DOUBLE.model_copy(update={"memory_mb": 64, "wall_s": 3.0})

    async def body(judged: Callable[[Problem, str], Awaitable[Judgement]]) -> None:
        assert (await judged(problem, bomb)).verdict in (CodeVerdict.CE, CodeVerdict.MLE, CodeVerdict.TLE)

    with_judge(body)


def test_without_tests_nothing_is_accepted() -> None:
    async def body(judged: Callable[[Problem, str], Awaitable[Judgement]]) -> None:
        with pytest.raises(ScoringError, match="no tests"):
            await judged(Problem(), "print(1)")

    with_judge(body)


def test_output_in_files_that_nobody_closed_is_read() -> None:
    solutions = (
        "out = open(1, 'w')\nout.write(str(2 * int(input())))",
        "stdout = open(1, 'w')\nstdout.write(str(2 * int(input())))",  # a name that the prelude has too
        "def f():\n    global stdout\n    stdout = open(1, 'w')\n    stdout.write(str(2 * int(input())))\nf()",
        "globals()['stdout'] = open(1, 'w')\nstdout.write(str(2 * int(input())))",
        "del stdout, stdin, pi\na = 1\nb = open(1, 'w')\nb.write(str(2 * int(input())))",
    )

    async def body(judged: Callable[[Problem, str], Awaitable[Judgement]]) -> None:
        for code in solutions:
            judgement = await judged(DOUBLE, code)
            assert judgement.verdict is CodeVerdict.AC, f"{code}: {judgement}"

    with_judge(body)


def test_tests_come_in_their_order_though_two_run_at_once() -> None:
    waits = (0.0, 0.6, 0.0, 0.3, 0.0, 0.0)
    problem = Problem(
        cases=tuple(Case(stdin=f"{n} {wait}\n", expected=f"{n}\n") for n, wait in enumerate(waits)), wall_s=9
    )
    code = "n, wait = input().split()\ntime.sleep(float(wait))\nprint(n if n != '4' else 'wrong')"

    async def go() -> None:
        sandbox = await open_sandbox("zygote", workers=2)
        judgement = await judge(problem, code, sandbox)
        assert [test.result.text for test in judgement.tests] == ["0\n", "1\n", "2\n", "3\n", "wrong\n", "5\n"]
        judgement = await judge(problem, code, sandbox, stop_at_first=True)
        assert [test.verdict for test in judgement.tests] == [CodeVerdict.AC] * 4 + [CodeVerdict.WA]
        assert (await sandbox.run("print(1)")).ok, "what ran beside the last test gave its place back"
        await sandbox.close()

    asyncio.run(go())


def test_free_assertions_must_all_be_reached() -> None:
    problem = Problem(assertions="for n in range(5):\n    assert abs(f(n) - n * n) < 1e-9", wall_s=4, cpu_s=1)

    async def body(judged: Callable[[Problem, str], Awaitable[Judgement]]) -> None:
        for code, verdict in (
            ("def f(n): return n * n", CodeVerdict.AC),
            ("def f(n): return n", CodeVerdict.WA),
            ("import os\nos._exit(0)", CodeVerdict.RE),
            ("import sys\ndef f(n): sys.exit(0)", CodeVerdict.RE),
            ("def f(n): raise KeyError", CodeVerdict.RE),
            ("def f(", CodeVerdict.CE),
            ("class Solution:\n    def f(self, n): return n * n", CodeVerdict.RE),
        ):
            judgement = await judged(problem, code)
            assert judgement.verdict is verdict, f"{code}: {judgement}"
            assert ("beside the solution" in judgement.note) == (verdict is CodeVerdict.AC), "how far it can be trusted"

    with_judge(body)


def test_a_problem_with_many_right_outputs_brings_its_own_checker() -> None:
    checker = """
def check(stdin, output, expected):
    parts = output.split()
    return len(parts) == 2 and sum(map(int, parts)) == int(stdin)
"""
    problem = Problem(cases=(Case(stdin="10\n", expected="5 5"),), checker=checker)

    async def body(judged: Callable[[Problem, str], Awaitable[Judgement]]) -> None:
        assert (await judged(problem, "n = int(input())\nprint(1, n - 1)")).verdict is CodeVerdict.AC
        assert (await judged(problem, "n = int(input())\nprint(1, n)")).verdict is CodeVerdict.WA
        assert (await judged(problem, "print('no number', 1)")).verdict is CodeVerdict.WA  # the checker cannot read it
        broken = problem.model_copy(update={"checker": "def check(a, b, c): return 1 / 0"})
        assert (await judged(broken, "print(5, 5)")).verdict is CodeVerdict.SANDBOX_ERROR

    with_judge(body)


TASK = Task(
    id="t",
    question="q",
    tests=CodeTests(cases=(TestCase(stdin="1\n", expected="2\n"), TestCase(stdin="2\n", expected="4\n"))),
)


def test_the_code_scorer_gives_one_zero_or_nothing() -> None:
    async def go() -> None:
        scorer = scorer_for("auto")
        right = await scorer.score(TASK, "Here it is:\n```py\nprint(2 * int(input()))\n```\n")
        assert (right.value, right.rule) == (1.0, "code")
        wrong = await scorer.score(TASK, "print(2)")
        assert wrong.value == 0.0 and "WA" in wrong.reason
        assert (await scorer.score(TASK, None)).value == 0.0
        await scorer.close()
        unreachable: Sandbox = RemoteSandbox(["http://127.0.0.1:9"])
        lost = CodeScorer(unreachable)
        verdict = await lost.score(TASK, "print(2 * int(input()))")
        assert verdict.value is None and verdict.broken
        await unreachable.close()

    asyncio.run(go())


def test_of_several_fences_the_last_is_the_program() -> None:
    assert program_in("```py\nx = 1\n```\nbetter:\n```python\ny = 2\n```\n") == "y = 2\n"
    assert program_in("print(1)") == "print(1)"


CHECKED = Problem(
    function="f",
    cases=(Case(arguments=(3,), expected=[1, 2]),),
    checker="def check(given, output, expected):\n    return sorted(output) == expected\n",
    wall_s=8,
    cpu_s=4,
)
FORGED = """
import gc, os, sys
def f(n):
    frame = sys._getframe(1)
    while frame is not None and "job" not in frame.f_locals:
        frame = frame.f_back
    inside = frame.f_locals
    with open(inside["result"], "wb", closefd=False) as file:
        file.write(inside["job"]["nonce"].encode() + b'{"float": "abc"}')
    os._exit(0)
"""
DEEP = "def f(n):\n    value = []\n    for _ in range(3000): value = [value]\n    return value\n"


def test_an_answer_that_breaks_the_judge_is_wrong() -> None:
    """Each made the judge raise, or left the answer unscored."""
    plain = CHECKED.model_copy(update={"checker": None})
    solutions = [
        (plain, DEEP, CodeVerdict.RE, "nested too deep"),
        (CHECKED, DEEP, CodeVerdict.RE, "nested too deep"),
        (plain, FORGED, CodeVerdict.RE, "cannot be read"),
        (CHECKED, FORGED, CodeVerdict.RE, "cannot be read"),
        (CHECKED, "def f(n): return {frozenset([1])}", CodeVerdict.WA, "refused"),
        (CHECKED, "def f(n): return {1, 2}", CodeVerdict.AC, ""),
        (CHECKED, "def f(n): return 10 ** 6000", CodeVerdict.WA, "the checker cannot read it: TypeError"),
        (CHECKED, "def f(n): return float('nan')", CodeVerdict.WA, "the checker cannot read it: TypeError"),
        (CHECKED, "def f(n): return {float('nan')}", CodeVerdict.WA, "the checker cannot read it: the arguments"),
    ]

    async def body(judged: Callable[[Problem, str], Awaitable[Judgement]]) -> None:
        for problem, code, verdict, note in solutions:
            judgement = await judged(problem, code)
            assert judgement.verdict is verdict and note in judgement.note, f"{code}: {judgement.note}"

    with_judge(body)


def test_a_checker_that_exceeds_its_limits_on_this_output_alone_finds_it_wrong() -> None:
    def checked(body: str) -> Problem:
        return CHECKED.model_copy(update={"checker": f"def check(given, output, expected):\n    {body}\n"})

    floods = checked("print('x' * (5 << 20) * (output != expected)); return True")
    undecided = checked("return True if output == expected else None")
    useless = checked("print('x' * (5 << 20)); return True")

    async def body(judged: Callable[[Problem, str], Awaitable[Judgement]]) -> None:
        for problem in (floods, undecided):
            assert (await judged(problem, "def f(n): return [1, 2]")).verdict is CodeVerdict.AC
            assert (await judged(problem, "def f(n): return [1, 3]")).verdict is CodeVerdict.WA
        assert (await judged(useless, "def f(n): return [1, 2]")).verdict is CodeVerdict.SANDBOX_ERROR

    with_judge(body)


def test_a_function_may_return_an_integer_of_any_size() -> None:
    wanted = 7**20_000
    problem = Problem(function="f", cases=(Case(arguments=(wanted,), expected=wanted + 1),))

    async def body(judged: Callable[[Problem, str], Awaitable[Judgement]]) -> None:
        assert (await judged(problem, "def f(n): return n + 1")).verdict is CodeVerdict.AC
        assert (await judged(problem, "def f(n): return n")).verdict is CodeVerdict.WA

    with_judge(body)


def test_a_task_whose_tests_cannot_be_read_is_unscored_and_stops_nothing() -> None:
    broken = Task(id="t", question="?", tests=CodeTests(functional="assert f(1 == 2"))
    verdict = asyncio.run(CodeScorer().score(broken, "def f(n): return n"))
    assert verdict.value is None and verdict.broken and "not Python" in verdict.reason
