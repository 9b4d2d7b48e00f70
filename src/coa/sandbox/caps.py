"""The most that clients of a sandbox server may ask for, as its operator sets it.

What is asked for above a cap is refused, not cut down: a run that is ended at a limit which its caller did not set
would count as too slow, though nobody knows. What a caller did not ask for is never above a cap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from coa.sandbox.base import MB, ProgramLimits, SandboxError


class AboveCap(SandboxError):
    """`status`: 400 for a limit, 413 for something that is too large itself."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Caps:
    """Those named as in `ProgramLimits` hold for each run. A server needs memory for as many runs as it has workers."""

    wall_s: float = 120.0
    cpu_s: float = 120.0
    memory_mb: int = 4096
    disk_mb: int = 1024
    processes: int = 256
    open_files: int = 4096
    output_bytes: int = 64 * MB
    code_bytes: int = MB
    """Of the program, its prelude and assertions, and its command-line arguments together."""
    stdin_bytes: int = 16 * MB
    files_bytes: int = 32 * MB
    waiting: int = 1000
    """Requests at once. A test is a request, so it is the most tests at once too."""
    programs: int = 32
    """Programs that are kept compiled for further tests."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise SandboxError(f"the cap {field.name} is {getattr(self, field.name)!r}; it must be above 0")

    @property
    def body_bytes(self) -> int:
        """What a request within all of them can take as JSON: text escaped, bytes as base64."""
        return 6 * self.code_bytes + 4 * (self.stdin_bytes + self.files_bytes) // 3 + MB

    def limits(self, asked: Mapping[str, float]) -> ProgramLimits:
        """`asked`: only what the caller named."""
        for name, value in asked.items():
            most = getattr(self, name)
            if not value <= most:
                raise AboveCap(f"{name} {_plain(value)} is above this server's cap of {_plain(most)}", 400)
        default = ProgramLimits()
        unasked = {
            field.name: min(getattr(default, field.name), getattr(self, field.name)) for field in fields(ProgramLimits)
        }
        return ProgramLimits(**{**unasked, **asked})

    def check_sizes(self, *, code: int, stdin: int, files: int) -> None:
        for name, size, most in (
            ("code", code, self.code_bytes),
            ("stdin", stdin, self.stdin_bytes),
            ("files", files, self.files_bytes),
        ):
            if size > most:
                raise AboveCap(f"{name} of {size} bytes is above this server's cap of {most}", 413)


def _plain(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
