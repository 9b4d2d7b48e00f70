"""Runs model-written code: `open_sandbox` finds the strongest isolation that this machine allows."""

from coa.sandbox.base import CodeVerdict, Program, ProgramLimits, ProgramResult, Sandbox, SandboxError
from coa.sandbox.opening import open_sandbox

__all__ = ["CodeVerdict", "Program", "ProgramLimits", "ProgramResult", "Sandbox", "SandboxError", "open_sandbox"]
