"""Runs model-written code: `open_sandbox` finds the strongest isolation that this machine allows."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Final

from coa.sandbox.base import CodeVerdict, Program, ProgramLimits, ProgramResult, Sandbox, SandboxError
from coa.sandbox.cold import ColdSandbox
from coa.sandbox.interpreter import find_interpreter
from coa.sandbox.remote import RemoteSandbox
from coa.sandbox.walls import COMMANDS
from coa.sandbox.warm import WarmSandbox

__all__ = ["CodeVerdict", "Program", "ProgramLimits", "ProgramResult", "Sandbox", "SandboxError", "open_sandbox"]

log = logging.getLogger(__name__)

KINDS: Final = ("auto", "zygote", *COMMANDS)


async def open_sandbox(
    kind: str | None = None,
    *,
    python: str | None = None,
    workers: int | None = None,
    limits: ProgramLimits | None = None,
    unsafe: bool = False,
    token: str | None = None,
) -> Sandbox:
    """The sandbox of that kind, ready to run.

    `kind` is `auto` (the default, unless COA_SANDBOX names another), which takes the first that works of zygote and the
    commands found on PATH; or the name of one of them; or URLs of sandbox servers, separated by commas. Where nothing
    isolates, it raises, unless `unsafe` is set, which is for machines that are discarded afterwards.
    """
    limits = limits or ProgramLimits()
    kind = kind or os.environ.get("COA_SANDBOX") or "auto"
    if kind.startswith(("http://", "https://")):
        token = token if token is not None else os.environ.get("COA_SANDBOX_TOKEN")
        return RemoteSandbox([part.strip() for part in kind.split(",")], token=token, limits=limits)
    if kind not in KINDS:
        raise SandboxError(f"there is no sandbox {kind!r}", hint=f"take one of {', '.join(KINDS)}, or a server's URL")
    if kind == "unsafe" and not unsafe:
        raise SandboxError(
            "running code without isolation has to be asked for twice", hint="add --unsafe if that is what you want"
        )
    interpreter = find_interpreter(python)
    reasons: list[str] = []
    hint = None
    found = [name for name in COMMANDS if name != "unsafe" and shutil.which(name)]
    candidates: Sequence[str] = ("zygote", *found) if kind == "auto" else (kind,)
    for candidate in candidates:
        warm = candidate == "zygote"
        sandbox = (
            WarmSandbox(interpreter, workers, limits) if warm else ColdSandbox(candidate, interpreter, workers, limits)
        )
        try:
            await sandbox.start()
            return sandbox
        except SandboxError as error:
            await sandbox.close()
            reasons.append(f"{candidate}: {error.message}")
            hint = error.hint if kind == candidate else None  # only for a kind that was asked for by name
            log.debug("no sandbox of kind %s: %s", candidate, error)
    if unsafe and kind == "auto":
        log.warning("running code WITHOUT isolation, because --unsafe was given (%s)", "; ".join(reasons))
        return ColdSandbox("unsafe", interpreter, workers, limits)
    raise SandboxError(f"no isolation for code works here ({'; '.join(reasons)})", hint=hint or _hint())


def _hint() -> str:
    """How to remove what usually prevents isolation."""
    try:
        with open("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") as file:
            if file.read().strip() == "1":
                return "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0, or install bubblewrap"
    except OSError:
        pass
    if sys.platform != "linux":
        return "run `coa sandbox serve` on a Linux machine and set COA_SANDBOX to its URL"
    return (
        "allow user namespaces (sudo sysctl user.max_user_namespaces=10000), install bubblewrap, "
        "or set COA_SANDBOX to the URL of a machine that runs `coa sandbox serve`"
    )
