"""What the runtime says to the model when something is not as it should be. Short, and it names the way out.

Agents are named without angle brackets: these texts stand in observations, where tags are neutralised, and a model that
reads a neutralised tag copies it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from coa.trajectory import Slip

FORGED: Final = "error: observations are written by the tools. Call a tool and wait, or go on without one."


def slip(agent: str, found: Slip) -> str:
    return f"error: the content of {agent} could not be read: {found.message}."


def missing(agent: str, there: Iterable[str]) -> str:
    names = ", ".join(there)
    return f"error: the tool {agent} is not available here. " + (f"Available: {names}." if names else "No tool is.")


def repeated(step: int) -> str:
    return f"note: this very call was made before (step {step}); its result is above. Try something else."


def unfinished(legal: Iterable[str], result: str | None = None) -> str:
    """`result` is what the model has stated as its result, though not as its answer."""
    if result is not None:
        return f"note: there is no answer yet. If {result} is your final answer, write it between answer tags."
    names = " or ".join(legal) or "answer"
    return f"note: there is no answer yet. Go on with {names}, in its tags. The run ends with answer."


def conclude(result: str) -> str:
    return f"note: this run ends here. You have written {result}. Give the final answer now."
