"""What a sandbox is: code goes in, a result comes out, whichever way the code is isolated.

`Sandbox.run` runs one script. `Sandbox.program` gives a `Program`, which is compiled once and tested many times. The
subclasses (warm.py, cold.py, remote.py) differ in where the code runs; what it means to run it is the same.
"""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

from pydantic import ConfigDict, JsonValue, PlainSerializer, PlainValidator

from coa.errors import ToolError
from coa.sandbox.values import is_long, literal


class SandboxError(ToolError):
    """No sandbox is available, or it broke. Never the fault of the code that was to run in it."""


class UnreadableArguments(SandboxError):
    """The arguments of a function are neither JSON nor a Python literal, or need more memory than a run may have."""


class CodeVerdict(StrEnum):
    OK = "OK"
    """The program ended with exit code 0. For a test: its output is not compared yet."""
    AC = "AC"
    """Accepted: the output is what was expected."""
    WA = "WA"
    """Wrong answer."""
    TLE = "TLE"
    """Time limit exceeded, in wall time or CPU time."""
    MLE = "MLE"
    """Memory limit exceeded."""
    OLE = "OLE"
    """Output limit exceeded."""
    RE = "RE"
    """Runtime error: an uncaught exception, an exit code other than 0, or a signal."""
    CE = "CE"
    """Compile error: the code is not valid Python."""
    SANDBOX_ERROR = "SANDBOX_ERROR"
    """The sandbox failed. This says nothing about the code and must never count against it."""


MB: Final = 1 << 20


def _decode(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise ValueError("bytes travel as base64 text")
    return base64.b64decode(value, validate=True)


WireBytes = Annotated[bytes, PlainValidator(_decode), PlainSerializer(lambda value: base64.b64encode(value).decode())]
"""Bytes that are base64 text wherever they are JSON."""


def writable(text: str) -> str:
    """Text that can be encoded as UTF-8: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode()


def to_bytes(text: bytes | str) -> bytes:
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """Limits of one run. They hold for all of its processes together, except `open_files`."""

    wall_s: float = 10.0
    cpu_s: float = 10.0
    memory_mb: int = 1024
    disk_mb: int = 64
    """Of everything that the run writes to /work, /tmp and /dev/shm."""
    processes: int = 64
    """Threads count as processes."""
    open_files: int = 256
    output_bytes: int = 4 * MB
    """Of standard output and of standard error, each. A run that writes more is ended."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise SandboxError(f"the limit {name} is {getattr(self, name)!r}; it must be above 0")


@dataclass(frozen=True, slots=True)
class ProgramResult:
    __pydantic_config__ = ConfigDict(extra="forbid")

    verdict: CodeVerdict
    stdout: WireBytes = b""
    stderr: WireBytes = b""
    exit_code: int | None = None
    """None if a signal ended it; see `signal`."""
    signal: int | None = None
    wall_s: float = 0.0
    cpu_s: float = 0.0
    memory_mb: float = 0.0
    """The peak of all processes together, as far as it was observed."""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    files: Mapping[str, WireBytes] = field(default_factory=dict)
    """The files that were named in `collect` and that the run left."""
    value: JsonValue = None
    """The value that the function returned, for a function call."""
    returned: bool = False
    """Whether the function returned at all."""
    note: str = ""
    """Explains the verdict: which limit was exceeded, or why the sandbox broke."""

    @property
    def ok(self) -> bool:
        return self.verdict is CodeVerdict.OK

    @property
    def text(self) -> str:
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        return self.stderr.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Script:
    """One run: the code, its input, and what is wanted back."""

    code: str
    stdin: bytes = b""
    arguments: Sequence[str] = ()
    files: Mapping[str, bytes | str] = field(default_factory=dict)
    collect: Sequence[str] = ()
    prelude: str = ""
    """Code that runs before, in the same namespace."""
    function: str | None = None
    """Call this function with the arguments in `stdin`, instead of running the code as a script."""
    assertions: str | None = None
    """Run these behind the code."""


class Program(ABC):
    """A program that is compiled once and run for many tests, each from a fresh start."""

    compile_error: ProgramResult | None = None
    """Set if the code does not compile; every test then has this result."""

    async def run(self, stdin: bytes | str = b"") -> ProgramResult:
        return await self.test(to_bytes(stdin))

    async def call(self, function: str, arguments: Sequence[object]) -> ProgramResult:
        """Call a function of it, or a method of its class `Solution`, and get the returned value as plain data.

        The arguments are what JSON or a Python literal can express.
        """
        try:
            return await self.test(_written_arguments(arguments), function=function)
        except UnreadableArguments as error:
            return ProgramResult(CodeVerdict.SANDBOX_ERROR, note=str(error))

    async def holds(self, assertions: str) -> ProgramResult:
        """Run assertions behind the program; `returned` is set if all of them were reached.

        The assertions share a process with the program, so a program made to deceive them can. Wherever a test can be
        put that way, judge a program by values that are compared outside.
        """
        return await self.test(b"", assertions=assertions)

    @abstractmethod
    async def test(self, stdin: bytes, function: str | None = None, assertions: str | None = None) -> ProgramResult:
        """One test, as `run`, `call` or `holds` asks for it. The arguments of a function are in `stdin`.

        They are read where the program runs, within its limits. Raises `UnreadableArguments` if they cannot be.
        """

    async def close(self) -> None:  # noqa: B027 (most programs hold nothing)
        """End what the program keeps running between tests."""


def _written_arguments(arguments: Sequence[object]) -> bytes:
    """As `inside/cell.py` reads them."""
    try:
        if _is_json(list(arguments)):
            return b"j" + json.dumps(list(arguments)).encode()
        return b"p" + literal(list(arguments)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise SandboxError(f"the arguments cannot be written: {error}") from error


def _is_json(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    if isinstance(value, int):
        return not is_long(value)
    return value is None or isinstance(value, float | str)


class Sandbox(ABC):
    limits: ProgramLimits
    """Of runs that name no limits."""

    @property
    @abstractmethod
    def about(self) -> str:
        """Which isolation is in force, in one line for people."""

    async def run(
        self,
        code: str,
        *,
        stdin: bytes | str = b"",
        arguments: Sequence[str] = (),
        files: Mapping[str, bytes | str] | None = None,
        collect: Sequence[str] = (),
        limits: ProgramLimits | None = None,
    ) -> ProgramResult:
        """Run `code` as a script that shares nothing with other runs. Never raises for what the code does.

        `files` are put into its working folder first. Those files named in `collect` that the script leaves there come
        back in the result.
        """
        script = Script(code, to_bytes(stdin), arguments, files or {}, collect)
        return await self.run_script(script, limits or self.limits)

    @abstractmethod
    async def run_script(self, script: Script, limits: ProgramLimits) -> ProgramResult: ...

    @abstractmethod
    async def program(self, code: str, *, prelude: str = "", limits: ProgramLimits | None = None) -> Program:
        """For many tests of one program; `limits` hold for each test."""

    async def close(self) -> None:  # noqa: B027 (most sandboxes hold nothing)
        """End everything that runs in the sandbox."""
