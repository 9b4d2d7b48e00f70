"""A programming problem with tests, read from the shapes in which they come.

LiveCodeBench (public and private tests), CodeContests, APPS and TACO (`inputs`, `outputs`, `fn_name`), AFM's RL rows
(lists of stdin and expected output, or assertions as Python), and our own.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import math
import pickle
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import Field, JsonValue, ValidationError

from coa.config import first_problem
from coa.errors import ScoringError, refused
from coa.sandbox import ProgramLimits
from coa.sandbox.values import literal
from coa.trajectory import Task
from coa.trajectory.types import Frozen

MOST_TEST_BYTES: Final = 512 << 20
"""Size of the unpacked private tests of one problem. Those of the published sets are far below it."""
_CHUNK: Final = 1 << 20


class Case(Frozen):
    """One test. `expected` never enters the sandbox in which the solution runs."""

    stdin: str = ""
    arguments: tuple[JsonValue, ...] | None = None
    """For a test that calls a function; the expectation is then a value."""
    literal: str | None = None
    """The arguments as a Python literal, where JSON cannot say them: tuples, sets, keys that are no strings."""
    expected: JsonValue = ""


class Problem(Frozen):
    id: str = "problem"
    cases: tuple[Case, ...] = ()
    function: str | None = None
    """What the cases with `arguments` call: a function, or a method of the class `Solution`."""
    assertions: str | None = None
    """Python that calls the solution and asserts, where it cannot be read as cases. It runs beside the solution."""
    checker: str | None = None
    """Python with a function `check(stdin, output, expected)`, for problems with more than one right output."""
    wall_s: float = Field(12.0, gt=0)
    cpu_s: float = Field(6.0, gt=0)
    memory_mb: int = Field(1024, gt=0)
    relative: float = Field(1e-9, ge=0)
    absolute: float = Field(1e-12, ge=0)
    ignore_case: bool = False
    bool_is_int: bool = False
    wrapped: bool = False
    """Whether an expected list of one item may mean the item itself, as in some collections."""
    samples_only: bool = False
    """Whether the statement prints every test, so that a program may pass without solving anything."""

    @property
    def limits(self) -> ProgramLimits:
        return ProgramLimits(wall_s=self.wall_s, cpu_s=self.cpu_s, memory_mb=self.memory_mb, output_bytes=16 << 20)

    def beside(self, statement: str) -> Problem:
        """The problem with `samples_only` as this statement makes it."""
        squeezed = _squeezed(statement)
        printed = bool(self.cases) and all(_is_printed(case, squeezed) for case in self.cases)
        return self.model_copy(update={"samples_only": True}) if printed else self


def read_problem(path: str | Path) -> Problem:
    """From a JSON file with one problem in any of the known shapes."""
    try:
        row = _json(Path(path).read_bytes())
    except OSError as error:
        raise refused(f"read the problem {path}", error, ScoringError) from error
    except (ValueError, RecursionError) as error:
        raise ScoringError(f"{path} cannot be read as a problem: {error}", hint="give a JSON file") from error
    if not isinstance(row, dict):
        hint = "give a file with one JSON object"
        raise ScoringError(f"{path} holds {type(row).__name__}, not one problem", hint=hint)
    return problem_from(row, source=str(path))


def problem_of(task: Task) -> Problem | None:
    """The problem that a task's tests make; None if it has none."""
    if task.tests is None:
        return None
    identity = str(task.meta.get("question_id") or task.id)
    if task.tests.functional is not None:
        problem = _from_assertions(identity, task.tests.functional)
        found = problem.beside(task.question)
        return found if problem.cases or "assert" in (problem.assertions or "") else None
    if not task.tests.cases:
        return None
    cases = tuple(Case(stdin=case.stdin, expected=case.expected) for case in task.tests.cases)
    return Problem(id=identity, cases=cases).beside(task.question)


def _is_printed(case: Case, statement: str) -> bool:
    """Whether a statement without blanks shows the input and the output of a test."""
    if case.arguments is None:
        return all(_squeezed(text) in statement for text in (case.stdin, str(case.expected)))
    values = [*(case.arguments if case.literal is None else ast.literal_eval(case.literal)), case.expected]
    return all(_squeezed(_spelled(value)) in statement for value in values)


def _spelled(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return literal(value)


def _squeezed(text: str) -> str:
    return "".join(text.split())


def problem_from(row: Mapping[str, Any], *, source: str = "row") -> Problem:
    try:
        problem = _problem_from(row)
    except (ValidationError, ValueError, TypeError, KeyError, zlib.error, pickle.UnpicklingError, SyntaxError,
            RecursionError) as error:  # fmt: skip
        reason = first_problem(error) if isinstance(error, ValidationError) else str(error)
        raise ScoringError(f"{source} is not a problem: {reason}") from error
    if not problem.cases and problem.assertions is None:
        raise ScoringError(
            f"{source} has no tests; its fields are {', '.join(sorted(row))}",
            hint="give `cases` with stdin and expected, LiveCodeBench's test fields, or inputs and outputs",
        )
    return problem


def _problem_from(row: Mapping[str, Any]) -> Problem:
    identity = str(row.get("question_id") or row.get("id") or row.get("name") or "problem")
    if "reward_model" in row:
        from coa.trajectory.formats.tasks import to_task

        found = problem_of(to_task(row))
        if found is None:
            raise ValueError("its ground truth holds no tests")
        return found
    if "public_test_cases" in row or "private_test_cases" in row:
        found = _from_livecodebench(identity, row)
        hidden = bool(_tests(row.get("private_test_cases")))
        return found if hidden else found.beside(str(row.get("question_content") or ""))
    if any(name in row for name in ("public_tests", "private_tests", "generated_tests")):
        return _from_codecontests(identity, row)
    if "input_output" in row:
        return _from_pairs(identity, _parsed(row["input_output"]))
    if "inputs" in row and "outputs" in row:
        return _from_pairs(identity, row)
    if row.get("functional"):
        return _from_assertions(identity, str(row["functional"]))
    if "stdin" in row and "expected_output" in row:
        return _from_pairs(identity, {"inputs": row["stdin"], "outputs": row["expected_output"]})
    return Problem.model_validate(row)


def _from_livecodebench(identity: str, row: Mapping[str, Any]) -> Problem:
    tests = [*_tests(row.get("public_test_cases")), *_tests(row.get("private_test_cases"))]
    function = _parsed(row.get("metadata") or "{}").get("func_name")
    cases = []
    for test in tests:
        if test.get("testtype") == "functional":
            arguments = tuple(_json(line) for line in test["input"].split("\n") if line.strip())
            cases.append(Case(arguments=arguments, expected=_json(test["output"])))
        else:
            cases.append(Case(stdin=test["input"], expected=test["output"]))
    return Problem(id=identity, cases=tuple(cases), function=function)


def _tests(field: Any) -> list[dict[str, Any]]:
    """A list, JSON of one, or the private tests' base64 of a zlib-packed pickle of JSON."""
    if field is None or field == "":
        return []
    if isinstance(field, str):
        try:
            field = _json(field)
        except ValueError:
            field = _json(_TextOnly(io.BytesIO(_unpacked(base64.b64decode(field)))).load())
    return list(field)


def _unpacked(packed: bytes) -> bytes:
    """Decompressed as a stream, up to a limit: a megabyte of zlib can stand for a gigabyte."""
    stream, found = zlib.decompressobj(), bytearray()
    while packed and not stream.eof:
        found += stream.decompress(packed, min(_CHUNK, MOST_TEST_BYTES + 1 - len(found)))
        packed = stream.unconsumed_tail
        if len(found) > MOST_TEST_BYTES:
            raise ValueError(f"its private tests unpack to more than {MOST_TEST_BYTES >> 20} MB")
    if not stream.eof:
        raise ValueError("its private tests are cut off")
    return bytes(found)


def _json(text: str | bytes) -> Any:
    """With integers of any size: orjson makes floats of them, and Python refuses those of more than 4,300 digits."""
    return json.loads(text, parse_int=_integer)


def _integer(digits: str) -> int:
    if len(digits) <= 4000:
        return int(digits)
    if digits.startswith("-"):
        return -_integer(digits[1:])
    half = len(digits) // 2
    scale: int = 10**half
    return _integer(digits[:-half]) * scale + _integer(digits[-half:])


class _TextOnly(pickle.Unpickler):
    """A pickle can run anything when it is read; one that holds text needs to look up nothing."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"the tests want {module_name}.{global_name}, which is not data")


def _from_codecontests(identity: str, row: Mapping[str, Any]) -> Problem:
    cases: list[Case] = []
    for name in ("public_tests", "private_tests", "generated_tests"):
        tests = row.get(name) or {}
        cases += _cases(tests.get("input", ()), tests.get("output", ()))
    limit = row.get("time_limit") or {}
    seconds = (
        float(limit.get("seconds") or 0) + float(limit.get("nanos") or 0) / 1e9 if isinstance(limit, Mapping) else 0
    )
    cpu_s = max(seconds * 2, 6.0)  # limits are made for compiled languages
    return Problem(id=identity, cases=tuple(cases), cpu_s=cpu_s, wall_s=2 * cpu_s)


def _from_pairs(identity: str, row: Mapping[str, Any]) -> Problem:
    function = row.get("fn_name")
    inputs, outputs = row["inputs"], row["outputs"]
    if function is None:
        return Problem(id=identity, cases=tuple(_cases(inputs, outputs)))
    if len(inputs) != len(outputs):
        raise ValueError(f"{len(inputs)} inputs but {len(outputs)} outputs")
    cases = [Case(arguments=tuple(i), expected=o) for i, o in zip(inputs, outputs, strict=True)]
    return Problem(id=identity, cases=tuple(cases), function=function, wrapped=True)


def _cases(inputs: Any, outputs: Any) -> list[Case]:
    inputs, outputs = ([side] if isinstance(side, str) else list(side) for side in (inputs, outputs))
    if len(inputs) != len(outputs):
        raise ValueError(f"{len(inputs)} inputs but {len(outputs)} outputs")
    return [Case(stdin=_text(i), expected=_text(o)) for i, o in zip(inputs, outputs, strict=True)]


def _text(side: Any) -> str:
    """Some rows keep a test as a list of lines."""
    return "\n".join(map(str, side)) if isinstance(side, list | tuple) else str(side)


def _parsed(field: Any) -> dict[str, Any]:
    parsed = _json(field) if isinstance(field, str) else field
    return parsed if isinstance(parsed, dict) else {}


def _from_assertions(identity: str, text: str) -> Problem:
    """Assertions of the form "call, compare with a literal" become cases, so that what they expect stays outside."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ScoringError(f"the assertions of {identity} are not Python: {error}") from error
    read = _read_assertions(tree.body)
    if read is None:
        return Problem(id=identity, assertions=text)
    function, cases = read
    return Problem(id=identity, cases=tuple(cases), function=function, bool_is_int=True)


def _read_assertions(body: Iterable[ast.stmt]) -> tuple[str, list[Case]] | None:
    """`result = f(...)` then `assert result == literal`, or `assert f(...) == literal`; None for anything else.

    `is True` and its like do as well.
    """
    function: str | None = None
    pending: ast.expr | None = None
    name: str | None = None
    cases: list[Case] = []
    for statement in body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and pending is None:
            target = statement.targets[0]
            if not isinstance(target, ast.Name):
                return None
            pending, name = statement.value, target.id
            continue
        if not isinstance(statement, ast.Assert) or not isinstance(statement.test, ast.Compare):
            return None
        test = statement.test
        if len(test.ops) != 1 or not _is_equality(test.ops[0], test.comparators[0]):
            return None
        called: ast.expr | None = test.left
        if isinstance(called, ast.Name) and called.id == name:
            called, pending = pending, None
        elif pending is not None:
            return None
        found = _call(called)
        expected = _literal(test.comparators[0])
        if found is None or expected is _NO_LITERAL or (function is not None and found[0] != function):
            return None
        function, arguments = found
        plain = _as_json(arguments)
        if plain == arguments and plain is not _NO_LITERAL:
            cases.append(Case(arguments=tuple(plain), expected=expected))
        else:
            cases.append(Case(arguments=(), literal=literal(arguments), expected=expected))
    return (function, cases) if function is not None and pending is None else None


def _is_equality(operator: ast.cmpop, wanted: ast.expr) -> bool:
    """`==`, or `is` beside True, False or None, of which there is one each."""
    constant = isinstance(wanted, ast.Constant) and (wanted.value is None or isinstance(wanted.value, bool))
    return isinstance(operator, ast.Eq) or (isinstance(operator, ast.Is) and constant)


def _call(node: ast.expr | None) -> tuple[str, list[Any]] | None:
    """`Solution().f(literals)` or `f(literals)`."""
    if not isinstance(node, ast.Call) or node.keywords:
        return None
    function = node.func
    if isinstance(function, ast.Attribute):
        made = function.value
        if not (isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and made.func.id == "Solution"):
            return None
        if made.args or made.keywords:
            return None
        name = function.attr
    elif isinstance(function, ast.Name):
        name = function.id
    else:
        return None
    try:
        return name, [ast.literal_eval(argument) for argument in node.args]
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return None


_NO_LITERAL: Final[Any] = object()


def _literal(node: ast.expr) -> Any:
    """A value that JSON can hold, or the mark that it is none."""
    try:
        return _as_json(ast.literal_eval(node))
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return _NO_LITERAL


def _as_json(value: Any) -> Any:
    """As JSON would bring it back, with integers of any size."""
    if isinstance(value, list | tuple):
        items = [_as_json(item) for item in value]
        return _NO_LITERAL if any(item is _NO_LITERAL for item in items) else items
    if isinstance(value, dict):
        named = {_key(name): _as_json(item) for name, item in value.items()}
        return _NO_LITERAL if any(_NO_LITERAL in (name, item) for name, item in named.items()) else named
    if isinstance(value, float):
        return value if math.isfinite(value) else _NO_LITERAL
    return value if value is None or isinstance(value, bool | int | str) else _NO_LITERAL


def _key(name: Any) -> Any:
    """As `json.dumps` spells a key."""
    if isinstance(name, str):
        return name
    return json.dumps(name) if name is None or isinstance(name, bool | int | float) else _NO_LITERAL
