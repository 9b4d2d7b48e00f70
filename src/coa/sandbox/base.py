"""What a sandbox is: code in, outcome out, the same for every way of isolating it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from pydantic import JsonValue

from coa.errors import ToolError


class SandboxError(ToolError):
    """No sandbox can be had, or it broke. Never the fault of the code that was to run in it."""


class CodeVerdict(StrEnum):
    OK = "OK"
    """Ran to its end with exit code 0. For a test: not yet compared."""
    AC = "AC"
    """Accepted: the output is what was expected."""
    WA = "WA"
    """Wrong answer."""
    TLE = "TLE"
    """Time limit, wall or CPU."""
    MLE = "MLE"
    """Memory limit."""
    OLE = "OLE"
    """Output limit."""
    RE = "RE"
    """Runtime error: an exception nobody caught, an exit code other than 0, a signal."""
    CE = "CE"
    """It is not Python."""
    SANDBOX_ERROR = "SANDBOX_ERROR"
    """The sandbox's fault. Says nothing about the code and must never count against it."""


MB: Final = 1 << 20


def writable(text: str) -> str:
    """Text that can be encoded as UTF-8: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode()


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """For all processes of a run together, except `open_files`."""

    wall_s: float = 10.0
    cpu_s: float = 10.0
    memory_mb: int = 1024
    disk_mb: int = 64
    """Everything it writes to /work, /tmp and /dev/shm."""
    processes: int = 64
    """Threads count too."""
    open_files: int = 256
    output_bytes: int = 4 * MB
    """Of each stream. A run that writes more is ended."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise SandboxError(f"the limit {name} is {getattr(self, name)!r}; it must be above 0")


@dataclass(frozen=True, slots=True)
class ProgramResult:
    verdict: CodeVerdict
    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int | None = None
    """None if it did not exit by itself; `signal` then tells."""
    signal: int | None = None
    wall_s: float = 0.0
    cpu_s: float = 0.0
    memory_mb: float = 0.0
    """Peak of all processes, as far as it was seen."""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What was asked for with `collect`."""
    value: JsonValue = None
    """What the function returned, for a function call."""
    returned: bool = False
    """Whether the function returned at all."""
    note: str = ""
    """What a person should know: which limit was passed, why the sandbox broke."""

    @property
    def ok(self) -> bool:
        return self.verdict is CodeVerdict.OK

    @property
    def text(self) -> str:
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        return self.stderr.decode("utf-8", "replace")


class Program(Protocol):
    """A program that is compiled once and run for many tests, each from a fresh start."""

    @property
    def compile_error(self) -> ProgramResult | None:
        """Set if it is not Python; the tests then all have this result."""

    async def run(self, stdin: bytes | str = b"") -> ProgramResult: ...

    async def call(self, function: str, arguments: Sequence[object]) -> ProgramResult:
        """Call a function of it, or a method of its class `Solution`, and get what it returned as plain data.

        The arguments are what JSON or a Python literal can say.
        """

    async def holds(self, assertions: str) -> ProgramResult:
        """Run assertions behind the program; `returned` if all of them were reached.

        They share a process with the program, so a program made to deceive them can. What a program is to be judged by
        should be values that are compared outside, wherever it can be put that way.
        """

    async def close(self) -> None: ...


class Sandbox(Protocol):
    @property
    def about(self) -> str:
        """Which isolation is in force, in a line for people."""

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
        """Run `code` as a script in a place of its own. Never raises for what the code does.

        `files` are put into its working folder first; of the files named in `collect`, those that it leaves there come
        back in the result.
        """

    async def program(self, code: str, *, prelude: str = "", limits: ProgramLimits | None = None) -> Program:
        """For many tests of one program; `limits` hold for each test."""

    async def close(self) -> None: ...
