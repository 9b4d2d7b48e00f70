"""The code agent: a program runs in the sandbox, and what it prints is the observation."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from pydantic import JsonValue

from coa.sandbox import CodeVerdict, ProgramLimits, ProgramResult, Sandbox, SandboxError, open_sandbox
from coa.tools.base import Observation, Part, ToolContext
from coa.tools.registry import Environment
from coa.tools.task_files import TaskFiles
from coa.trajectory import Form, Shape
from coa.trajectory.shorten import shorten

MOST_CHARACTERS: Final = 8000
MOST_FILE_BYTES: Final = 16 << 20
"""The most bytes of all the task's files together, which are put into the program's folder."""
QUEUE_S: Final = 120.0
"""How long a program may wait for its turn, on top of its time limit."""


class CodeTool:
    """Opens its sandbox with the first program, so that creating the tool costs nothing."""

    about = "runs a Python program in a sandbox and gets what it prints."
    shape = Shape(form=Form.CODE, stdin=True)
    uses = (Part.FILES,)

    def __init__(
        self,
        kind: str | None = None,
        *,
        limits: ProgramLimits | None = None,
        unsafe: bool = False,
        token: str | None = None,
        files: TaskFiles | None = None,
    ) -> None:
        self._files = files or TaskFiles()
        self.limits = limits or ProgramLimits()
        self.timeout_s = self.limits.wall_s + QUEUE_S
        self.settings: JsonValue = {"wall_s": self.limits.wall_s, "memory_mb": self.limits.memory_mb}
        self._opened_as = kind, unsafe, token
        self._sandbox: Sandbox | None = None
        self._opening = asyncio.Lock()

    async def call(self, arguments: Mapping[str, JsonValue], context: ToolContext) -> Observation:
        sandbox = await self._open()
        stdin = arguments.get("stdin")
        files, left_out = await self._files_of(context)
        given = str(stdin) if stdin is not None else b""
        result = await sandbox.run(str(arguments["code"]), stdin=given, files=files)
        if result.verdict is CodeVerdict.SANDBOX_ERROR:
            # Not the program's fault, and nothing that the model can fix.
            raise SandboxError(f"the sandbox failed: {result.note}")
        text = _output(result)
        if left_out and not result.ok:
            text += "".join(f"\nnote: {reason}" for reason in left_out)
        return Observation(text, ok=result.ok, meta={"verdict": result.verdict.value, "wall_s": result.wall_s})

    async def fingerprint(self, arguments: Mapping[str, JsonValue], context: ToolContext) -> str:
        if not context.task.files:
            return ""
        files, _ = await self._files_of(context)
        digest = blake2b(digest_size=24)
        for name, content in files.items():
            digest.update(f"{len(name)} {name} {len(content)} ".encode("utf-8", "surrogatepass"))
            digest.update(content)
        return digest.hexdigest()

    async def _files_of(self, context: ToolContext) -> tuple[dict[str, bytes], list[str]]:
        if not context.task.files:
            return {}, []
        return await asyncio.to_thread(self._files.all, context, MOST_FILE_BYTES)

    async def close(self) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()
            self._sandbox = None

    async def _open(self) -> Sandbox:
        async with self._opening:
            if self._sandbox is None:
                kind, unsafe, token = self._opened_as
                self._sandbox = await open_sandbox(kind, limits=self.limits, unsafe=unsafe, token=token)
            return self._sandbox


def _output(result: ProgramResult) -> str:
    """For the model: what was printed, what went wrong, and which limit ended the program."""
    parts = [shorten(result.text.rstrip("\n"), MOST_CHARACTERS)] if result.stdout.strip() else []
    if result.stderr.strip():
        # The last lines of a traceback say what happened.
        parts.append(shorten(result.error_text.rstrip("\n"), MOST_CHARACTERS // 2))
    explained = result.verdict in (CodeVerdict.CE, CodeVerdict.RE) and result.stderr.strip()
    if not result.ok and not explained:
        parts.append(f"error: {result.note}")
    return "\n".join(parts) or "(the program printed nothing; print what you want to know)"


def open_code(setting: str | None, environment: Environment) -> CodeTool:
    """`code`, or `code=KIND` with a kind of sandbox, URLs of sandbox servers, or `unsafe`."""
    kind = setting or environment.get("COA_SANDBOX")
    token = environment.get("COA_SANDBOX_TOKEN")
    return CodeTool(kind, unsafe=kind == "unsafe", token=token, files=TaskFiles.from_environment(environment))
