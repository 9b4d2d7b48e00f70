"""Runs model-written code: `open_sandbox` finds the strongest isolation that this machine allows."""

from coa.sandbox.base import Limits, Program, Result, Sandbox, SandboxError, Verdict
from coa.sandbox.opening import open_sandbox

__all__ = ["Limits", "Program", "Result", "Sandbox", "SandboxError", "Verdict", "open_sandbox"]
