"""Caps: the most that clients of a sandbox server may ask for, as its operator sets it.

A request above a cap is refused, not reduced: a run that is ended at a limit which its caller did not set would count
as too slow, and nobody would know. Limits that a caller does not name are never above a cap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from coa.sandbox.base import MB, ProgramLimits, SandboxError


class AboveCap(SandboxError):
    """`status` is 400 for a limit, 413 for a body that is too large, and 408 for one that takes too long."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Caps:
    """Those named as in `ProgramLimits` hold for each run. A server needs memory for one run per worker."""

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
    connections: int = 1100
    """Open connections, more than `waiting` so that a full server can still say so."""
    header_s: float = 10.0
    """Until the first request of a connection has arrived, without its body."""
    body_s: float = 120.0
    """Until the body of a request has arrived."""
    idle_s: float = 120.0
    """Between the requests of a connection, and for its client to read an answer."""
    held_bytes: int = 1024 * MB
    """Of the bodies of all requests that run or wait."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise SandboxError(f"the cap {field.name} is {getattr(self, field.name)!r}; it must be above 0")

    @property
    def body_bytes(self) -> int:
        """The largest JSON of a request within all caps: text escaped, bytes as base64."""
        return 6 * self.code_bytes + 4 * (self.stdin_bytes + self.files_bytes) // 3 + MB

    def limits(self, asked: Mapping[str, float]) -> ProgramLimits:
        """`asked` has only the limits that the caller named."""
        for name, value in asked.items():
            most = getattr(self, name)
            if not value <= most:
                raise AboveCap(f"{name} {_plain(value)} is above this server's cap of {_plain(most)}", 400)
        unasked = {name: min(value, getattr(self, name)) for name, value in asdict(ProgramLimits()).items()}
        return ProgramLimits(**{**unasked, **asked})

    def check_sizes(self, *, code: int, stdin: int, files: int) -> None:
        for name, size in (("code", code), ("stdin", stdin), ("files", files)):
            if size > (most := getattr(self, f"{name}_bytes")):
                raise AboveCap(f"{name} of {size} bytes is above this server's cap of {most}", 413)


def _plain(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
