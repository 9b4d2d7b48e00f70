"""The sandbox over HTTP: the requests and answers that server and client exchange.

Bytes travel as base64, so that binary output arrives unchanged. The shape of SandboxFusion's `/run_code` is here too,
so that projects written for it can use our server.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict
from typing import Final, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from coa.sandbox import base
from coa.sandbox.base import CodeVerdict, ProgramLimits, ProgramResult, Script, WireBytes


class WireLimits(BaseModel, extra="forbid"):
    """As `ProgramLimits`. The server chooses what a request leaves out."""

    wall_s: float = Field(10.0, gt=0)
    cpu_s: float = Field(10.0, gt=0)
    memory_mb: int = Field(1024, gt=0)
    disk_mb: int = Field(64, gt=0)
    processes: int = Field(64, gt=0)
    open_files: int = Field(256, gt=0)
    output_bytes: int = Field(4 << 20, gt=0)

    def asked(self) -> dict[str, float]:
        return self.model_dump(exclude_unset=True)


class RunRequest(BaseModel, extra="forbid"):
    code: str
    stdin: WireBytes = b""
    arguments: tuple[str, ...] = ()
    files: Mapping[str, WireBytes] = {}
    collect: tuple[str, ...] = ()
    limits: WireLimits = WireLimits()
    prelude: str = ""
    function: str | None = None
    """Call this function of the program with the arguments in `stdin`, instead of running it as a script."""
    assertions: str | None = None
    """Run these behind the program."""
    test: bool = False
    """Keep the program compiled for further tests. A call or an assertion always does."""

    @classmethod
    def of(cls, script: Script, limits: ProgramLimits, *, test: bool = False) -> RunRequest:
        try:
            wire = WireLimits(**asdict(limits))
        except ValidationError as error:
            first = error.errors()[0]
            raise base.SandboxError(
                f"sandbox servers do not take the limit {first['loc'][0]}: {first['msg']}"
            ) from error
        arguments, collect = tuple(map(base.writable, script.arguments)), tuple(script.collect)
        files = {name: base.to_bytes(content) for name, content in script.files.items()}
        same = {"stdin": script.stdin, "prelude": script.prelude, "limits": wire, "test": test}
        return cls(code=base.writable(script.code), arguments=arguments, files=files, collect=collect, **same)

    def sizes(self) -> dict[str, int]:
        """In bytes, as `Caps` counts them."""
        text = (self.code, self.prelude, self.assertions or "", self.function or "", *self.arguments)
        code = sum(len(part.encode("utf-8", "surrogatepass")) for part in text)
        files = sum(len(name) + len(content) for name, content in self.files.items()) + sum(map(len, self.collect))
        return {"code": code, "stdin": len(self.stdin), "files": files}


RUN_ANSWER: Final = TypeAdapter(ProgramResult)
"""The answer to a `RunRequest` is the `ProgramResult` as it is, its bytes as base64."""


class FusionRequest(BaseModel, extra="ignore"):
    """SandboxFusion's request. Fields that we have no use for are ignored."""

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
        """The request in our shape."""
        limits: dict[str, float] = {}
        if "run_timeout" in self.model_fields_set:
            limits = {"wall_s": self.run_timeout, "cpu_s": self.run_timeout}
        if self.memory_limit_MB > 0:
            limits["memory_mb"] = self.memory_limit_MB
        stdin = (self.stdin or "").encode("utf-8", "surrogatepass")
        files = {name: content for name, content in self.files.items() if content is not None}
        asked = {"code": self.code, "stdin": stdin, "files": files, "collect": self.fetch_files, "limits": limits}
        return RunRequest.model_validate(asked)


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
