"""The code agent: a program runs in the sandbox, what it prints is the observation."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from coa.tools.base import Observation, Part, ToolContext, cut
from coa.tools.registry import Environment
from coa.tools.sandbox import Limits, Result, Sandbox, SandboxError, Verdict, open_sandbox
from coa.trajectory import Form, Shape

MOST_CHARACTERS: Final = 8000
QUEUE_S: Final = 120.0
"""How long a program may wait for its turn, on top of its own time."""


class CodeTool:
    """Opens its sandbox with the first program, so that building the tool costs nothing."""

    about = "runs a Python program in a sandbox and gets what it prints."
    shape = Shape(form=Form.CODE, stdin=True)
    uses: tuple[Part, ...] = ()

    def __init__(
        self, kind: str | None = None, *, limits: Limits | None = None, unsafe: bool = False, token: str | None = None
    ) -> None:
        self.limits = limits or Limits()
        self.timeout_s = self.limits.wall_s + QUEUE_S
        self.settings: JsonValue = {"wall_s": self.limits.wall_s, "memory_mb": self.limits.memory_mb}
        self._kind, self._unsafe, self._token = kind, unsafe, token
        self._sandbox: Sandbox | None = None
        self._opening = asyncio.Lock()

    async def call(self, arguments: Mapping[str, JsonValue], context: ToolContext) -> Observation:
        sandbox = await self._open()
        stdin = arguments.get("stdin")
        result = await sandbox.run(str(arguments["code"]), stdin=str(stdin) if stdin is not None else b"")
        if result.verdict is Verdict.SANDBOX_ERROR:
            # Not the program's fault, and not for the model to mend.
            raise SandboxError(f"the sandbox failed: {result.note}")
        return Observation(told(result), ok=result.ok, meta={"verdict": result.verdict.value, "wall_s": result.wall_s})

    async def close(self) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()
            self._sandbox = None

    async def _open(self) -> Sandbox:
        async with self._opening:
            if self._sandbox is None:
                self._sandbox = await open_sandbox(
                    self._kind, limits=self.limits, unsafe=self._unsafe, token=self._token
                )
            return self._sandbox


def told(result: Result, most: int = MOST_CHARACTERS) -> str:
    """For the model: what was printed, what went wrong, and what a limit did."""
    parts = [cut(result.text.rstrip("\n"), most)] if result.stdout.strip() else []
    if result.stderr.strip():
        # The last lines of a traceback say what happened.
        parts.append(cut(result.error_text.rstrip("\n"), most // 2))
    explained = result.verdict in (Verdict.CE, Verdict.RE) and result.stderr.strip()
    if not result.ok and not explained:
        parts.append(f"error: {result.note}")
    return "\n".join(parts) or "(the program printed nothing)"


def open_code(setting: str | None, environment: Environment) -> CodeTool:
    """`code`, or `code=KIND` with a kind of sandbox, addresses of sandbox servers, or `unsafe`."""
    kind = setting or environment.get("COA_SANDBOX")
    return CodeTool(kind, unsafe=kind == "unsafe", token=environment.get("COA_SANDBOX_TOKEN"))
