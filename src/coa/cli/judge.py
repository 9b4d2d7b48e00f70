"""`coa judge`: run a program on the tests of a problem and print a verdict for each test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coa.cli.output import echo, echo_json
from coa.cli.sandbox import Kind, Unsafe

if TYPE_CHECKING:
    from coa.scoring.code import Judgement


def judge(
    problem: Annotated[
        Path, typer.Argument(help="JSON file in the format of LiveCodeBench, CodeContests, APPS, AFM, or coa.")
    ],
    solution: Annotated[Path, typer.Argument(help="File with the program; - reads stdin.", allow_dash=True)],
    tests: Annotated[
        Path | None,
        typer.Option(help="LiveCodeBench's release file, or a folder of them, with the full tests of the problem."),
    ] = None,
    stop_at_first: Annotated[
        bool, typer.Option("--stop-at-first", help="Stop at the first test that does not pass.")
    ] = False,
    kind: Kind = None,
    unsafe: Unsafe = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Judge a program by its tests. Exit code 0 if all passed, 1 if not."""
    import asyncio
    import sys
    import tokenize

    from coa.errors import ScoringError, refused
    from coa.sandbox import CodeVerdict, open_sandbox
    from coa.scoring.code import judge as judge_program
    from coa.scoring.code import read_problem
    from coa.scoring.code.full_tests import read_problem_with

    known = read_problem(problem) if tests is None else read_problem_with(problem, tests)
    try:
        if str(solution) == "-":
            code = sys.stdin.read()
        else:
            with tokenize.open(solution) as file:  # in the encoding that its first lines name
                code = file.read()
    except OSError as error:
        raise refused(f"read {solution}", error, ScoringError) from error
    except (UnicodeDecodeError, SyntaxError) as error:
        raise ScoringError(f"{solution} is not Python text: {error}", hint="save it as UTF-8") from error

    async def go() -> Judgement:
        sandbox = await open_sandbox(kind, unsafe=unsafe)
        try:
            return await judge_program(known, code, sandbox, stop_at_first=stop_at_first)
        finally:
            await sandbox.close()

    judged = asyncio.run(go())
    if as_json:
        import orjson

        spent = ("cpu_s", "wall_s", "memory_mb")
        rows = [
            {"verdict": test.verdict, "note": test.note, **{name: getattr(test.result, name) for name in spent}}
            for test in judged.tests
        ]
        report = {"verdict": judged.verdict, "passed": judged.passed, "tests": judged.total,
                  "samples_only": judged.samples_only, "results": rows}  # fmt: skip
        echo_json(orjson.dumps(report, option=orjson.OPT_INDENT_2))
    else:
        for number, test in enumerate(judged.tests, start=1):
            took = f"{test.result.cpu_s:6.2f} s {test.result.memory_mb:6.0f} MB"
            echo(f"{number:4}  {test.verdict:<13} {took}  {test.note}".rstrip())
        echo(f"{judged.verdict}: {judged.passed} of {judged.total} tests passed")
    if judged.samples_only:
        echo(
            "note: these are only the sample tests that the statement prints, and a program that prints their outputs "
            "passes; give the full tests with --tests",
            err=True,
        )
    if judged.verdict is not CodeVerdict.AC:
        raise typer.Exit(1)
