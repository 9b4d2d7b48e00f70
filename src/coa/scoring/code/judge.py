"""Runs a solution on a problem's tests and gives a verdict on each.

The solution runs in the sandbox, the comparison here: what is expected never goes in. A test that the sandbox itself
failed is tried once more and otherwise counts for nothing.
"""

from __future__ import annotations

import ast
import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from coa.errors import ScoringError
from coa.sandbox import CodeVerdict, Program, ProgramLimits, ProgramResult, Sandbox, SandboxError
from coa.sandbox.values import python_value
from coa.scoring.code.compare import OutputComparison, same_output, same_value
from coa.scoring.code.problem import Case, Problem

PRELUDE: Final = """
from string import *
from re import *
from datetime import *
from collections import *
from heapq import *
from bisect import *
from copy import *
from math import *
from random import *
from statistics import *
from itertools import *
from functools import *
from operator import *
from io import *
from sys import *
from json import *
from builtins import *
from typing import *
import array, ast, bisect, cmath, collections, copy, datetime, decimal, fractions, functools, heapq, io, itertools, json
import math, operator, os, random, re, statistics, string, sys, time, typing
sys.setrecursionlimit(50000)
sys.set_int_max_str_digits(50000)
"""
"""What solutions on the common platforms may use without importing it: names first, then the modules over them."""

AT_ONCE: Final = 2
"""Tests of one program that are asked for at the same time. The sandbox runs them so where it has turns to spare."""

BESIDE: Final = "by assertions that ran beside the solution"
"""The note of what passed in this way: a solution that is made to deceive such assertions can."""


SAMPLES: Final = "they are only the samples that the statement prints, which a program may repeat"


@dataclass(frozen=True, slots=True)
class TestResult:
    __test__ = False  # for pytest, which collects what is called Test

    verdict: CodeVerdict
    result: ProgramResult
    note: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """`verdict`: AC if all tests passed, else that of the first that did not."""

    verdict: CodeVerdict
    tests: tuple[TestResult, ...]
    total: int
    samples_only: bool = False
    """Whether the tests are only the samples that the statement prints."""

    @property
    def passed(self) -> int:
        return sum(test.verdict is CodeVerdict.AC for test in self.tests)

    @property
    def note(self) -> str:
        failed = next((n for n, test in enumerate(self.tests, start=1) if test.verdict is self.verdict), 0)
        if self.verdict is CodeVerdict.AC:
            weak = any(test.note == BESIDE for test in self.tests)
            which = f"all {self.total} tests passed{', ' + BESIDE if weak else ''}"
            return which + (f"; {SAMPLES}" if self.samples_only else "")
        why = self.tests[failed - 1].note if failed else ""
        return f"test {failed} of {self.total}: {self.verdict}{', ' + why if why else ''}"


async def judge(problem: Problem, code: str, sandbox: Sandbox, *, stop_at_first: bool = False) -> Judgement:
    tests = [test async for test in judge_tests(problem, code, sandbox, stop_at_first=stop_at_first)]
    wrong = [test.verdict for test in tests if test.verdict is not CodeVerdict.AC]
    # What the solution did wrong outweighs a test that the sandbox lost.
    certain = [verdict for verdict in wrong if verdict is not CodeVerdict.SANDBOX_ERROR]
    verdict = next(iter(certain or wrong), CodeVerdict.AC)
    return Judgement(verdict, tuple(tests), max(len(problem.cases), 1), problem.samples_only)


async def judge_tests(
    problem: Problem, code: str, sandbox: Sandbox, *, stop_at_first: bool = False
) -> AsyncIterator[TestResult]:
    """Test by test, as they are done."""
    if not problem.cases and problem.assertions is None:
        raise ScoringError(f"{problem.id} has no tests, so nothing can be said of a solution")
    if problem.assertions is not None:
        yield await _judge_assertions(problem, code, sandbox)
        return
    program = await sandbox.program(code, prelude=PRELUDE, limits=problem.limits)
    checker = None
    running: deque[asyncio.Task[TestResult]] = deque()
    try:
        if problem.checker is not None:
            checker = await sandbox.program(problem.checker, prelude=PRELUDE, limits=ProgramLimits())
        for number, case in enumerate(problem.cases, start=1):
            running.append(asyncio.ensure_future(_judge_case(problem, case, program, checker)))
            # The first test runs alone: it often decides.
            while running and (number in (1, len(problem.cases)) or len(running) == AT_ONCE):
                test = await running.popleft()
                yield test
                if test.verdict is CodeVerdict.CE or (stop_at_first and test.verdict is not CodeVerdict.AC):
                    return
    finally:
        for test_ahead in running:
            test_ahead.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await program.close()
        if checker is not None:
            await checker.close()


async def _judge_case(problem: Problem, case: Case, program: Program, checker: Program | None) -> TestResult:
    test = await _try_case(problem, case, program, checker)
    if test.verdict is CodeVerdict.SANDBOX_ERROR:
        test = await _try_case(problem, case, program, checker)
    return test


async def _try_case(problem: Problem, case: Case, program: Program, checker: Program | None) -> TestResult:
    if case.arguments is not None:
        arguments = case.arguments if case.literal is None else ast.literal_eval(case.literal)
        result = await _called(program, problem.function or "main", arguments)
    else:
        result = await program.run(case.stdin)
    if not result.ok:
        return TestResult(result.verdict, result, _last_line(result) or result.note)
    if case.arguments is not None and not result.returned:
        return TestResult(CodeVerdict.RE, result, result.note or "it ended without returning")
    if checker is not None:
        return await _ask_checker(checker, case, result)
    how = OutputComparison(problem.relative, problem.absolute, problem.ignore_case, problem.bool_is_int)
    if case.arguments is not None:
        right = same_value(result.value, case.expected, how)
        if not right and problem.wrapped and isinstance(case.expected, list) and len(case.expected) == 1:
            right = same_value(result.value, case.expected[0], how)
        return TestResult(
            CodeVerdict.AC if right else CodeVerdict.WA, result, "" if right else "another value was expected"
        )
    right = same_output(result.text, str(case.expected), how)
    return TestResult(
        CodeVerdict.AC if right else CodeVerdict.WA, result, "" if right else "another output was expected"
    )


async def _ask_checker(checker: Program, case: Case, result: ProgramResult) -> TestResult:
    """The problem's checker runs in a separate sandbox: it is foreign code too."""
    output = python_value(result.value) if case.arguments is not None else result.text
    given = list(case.arguments) if case.arguments is not None else case.stdin
    said = await _called(checker, "check", [given, output, case.expected])
    if not said.ok or not isinstance(said.value, bool):
        why = _last_line(said) or said.note or f"it returned {str(said.value)[:100]}"
        if said.verdict is not CodeVerdict.SANDBOX_ERROR or said.note.startswith("the arguments cannot be"):
            # Does it break on this output only? Then the output is at fault, as one that is no number is.
            proof = await _called(checker, "check", [given, case.expected, case.expected])
            if proof.ok and proof.value is True:
                return TestResult(CodeVerdict.WA, result, f"the checker cannot read it: {why}")
        return TestResult(CodeVerdict.SANDBOX_ERROR, said, f"the checker failed: {why}")
    return TestResult(
        CodeVerdict.AC if said.value else CodeVerdict.WA, result, "" if said.value else "the checker refused it"
    )


async def _called(program: Program, function: str, arguments: Sequence[object]) -> ProgramResult:
    try:
        return await program.call(function, arguments)
    except SandboxError as error:  # arguments that cannot be written or read
        return ProgramResult(CodeVerdict.SANDBOX_ERROR, note=error.message)


async def _judge_assertions(problem: Problem, code: str, sandbox: Sandbox) -> TestResult:
    """Assertions too free to be read as cases run behind the solution; what counts is that they were all reached."""
    program = await sandbox.program(code, prelude=PRELUDE, limits=problem.limits)
    try:
        result = await program.holds(problem.assertions or "")
        if result.verdict is CodeVerdict.SANDBOX_ERROR:
            result = await program.holds(problem.assertions or "")
    finally:
        await program.close()
    if result.ok:
        passed = result.returned and result.value is True
        note = BESIDE if passed else "it ended before the assertions"
        return TestResult(CodeVerdict.AC if passed else CodeVerdict.RE, result, note)
    failed = _last_line(result).startswith("AssertionError")
    return TestResult(CodeVerdict.WA if failed else result.verdict, result, _last_line(result) or result.note)


def _last_line(result: ProgramResult) -> str:
    return result.error_text.strip().rpartition("\n")[2][:200]
