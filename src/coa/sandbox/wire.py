"""The sandbox over HTTP: what a request and an answer look like, for the server and its client.

Bytes travel as base64, so that binary output arrives as it was. Also the shape of SandboxFusion's `/run_code`, so that
projects written for it can use ours, and we theirs.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, PlainSerializer, PlainValidator

from coa.sandbox.base import CodeVerdict, ProgramResult


def _decode(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise ValueError("bytes travel as base64 text")
    return base64.b64decode(value, validate=True)


Bytes = Annotated[bytes, PlainValidator(_decode), PlainSerializer(lambda value: base64.b64encode(value).decode())]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid")


class WireLimits(_Message):
    """As `ProgramLimits`. What is left out is the server's to choose."""

    wall_s: float = Field(10.0, gt=0)
    cpu_s: float = Field(10.0, gt=0)
    memory_mb: int = Field(1024, gt=0)
    disk_mb: int = Field(64, gt=0)
    processes: int = Field(64, gt=0)
    open_files: int = Field(256, gt=0)
    output_bytes: int = Field(4 << 20, gt=0)

    def asked(self) -> dict[str, float]:
        return self.model_dump(exclude_unset=True)


class RunRequest(_Message):
    code: str
    stdin: Bytes = b""
    arguments: tuple[str, ...] = ()
    files: Mapping[str, Bytes] = {}
    collect: tuple[str, ...] = ()
    limits: WireLimits = WireLimits()
    prelude: str = ""
    function: str | None = None
    """Call this function of the program with the arguments in `stdin`, instead of running it as a script."""
    assertions: str | None = None
    """Run these behind the program."""
    test: bool = False
    """A test of a program, which is kept compiled for the next one. A call or an assertion always is."""

    def sizes(self) -> dict[str, int]:
        """In bytes, as `Caps` has them."""
        text = (self.code, self.prelude, self.assertions or "", self.function or "", *self.arguments)
        files = sum(len(name) + len(content) for name, content in self.files.items())
        return {
            "code": sum(len(part.encode("utf-8", "surrogatepass")) for part in text),
            "stdin": len(self.stdin),
            "files": files + sum(map(len, self.collect)),
        }


class RunAnswer(_Message):
    verdict: CodeVerdict
    stdout: Bytes = b""
    stderr: Bytes = b""
    exit_code: int | None = None
    signal: int | None = None
    wall_s: float = 0.0
    cpu_s: float = 0.0
    memory_mb: float = 0.0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    files: Mapping[str, Bytes] = {}
    value: JsonValue = None
    returned: bool = False
    note: str = ""

    @classmethod
    def of(cls, result: ProgramResult) -> RunAnswer:
        return cls(**{name: getattr(result, name) for name in cls.model_fields})

    def result(self) -> ProgramResult:
        return ProgramResult(**{name: getattr(self, name) for name in type(self).model_fields})


class FusionRequest(BaseModel):
    """SandboxFusion's request; what we have no use for is let through unread."""

    model_config = ConfigDict(extra="ignore")
    code: str
    language: str = "python"
    stdin: str | None = None
    compile_timeout: float = 10
    run_timeout: float = Field(10, gt=0)
    memory_limit_MB: int = -1
    files: Mapping[str, str | None] = {}
    """Content in base64."""
    fetch_files: tuple[str, ...] = ()

    def run_request(self) -> RunRequest:
        """The same in our shape."""
        limits: dict[str, float] = {}
        if "run_timeout" in self.model_fields_set:
            limits = {"wall_s": self.run_timeout, "cpu_s": self.run_timeout}
        if self.memory_limit_MB > 0:
            limits["memory_mb"] = self.memory_limit_MB
        return RunRequest.model_validate(
            {
                "code": self.code,
                "stdin": (self.stdin or "").encode("utf-8", "surrogatepass"),
                "files": {name: content for name, content in self.files.items() if content is not None},
                "collect": self.fetch_files,
                "limits": limits,
            }
        )


class FusionRun(BaseModel):
    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class FusionAnswer(BaseModel):
    status: Literal["Success", "Failed", "SandboxError"]
    message: str = ""
    compile_result: FusionRun | None = None
    run_result: FusionRun | None = None
    executor_pod_name: str | None = None
    files: Mapping[str, str] = {}

    @classmethod
    def of(cls, result: ProgramResult) -> FusionAnswer:
        if result.verdict is CodeVerdict.SANDBOX_ERROR:
            return cls(status="SandboxError", message=result.note)
        run = FusionRun(
            status="TimeLimitExceeded" if result.verdict is CodeVerdict.TLE else "Finished",
            execution_time=result.wall_s,
            return_code=result.exit_code if result.exit_code is not None else -(result.signal or 9),
            stdout=result.text,
            stderr=result.error_text,
        )
        files = {name: base64.b64encode(data).decode() for name, data in result.files.items()}
        return cls(status="Success" if result.ok else "Failed", message=result.note, run_result=run, files=files)
