"""Train one language model to act like many agents, and run it.

    from coa import Step, Task, Trajectory, load_profile, parse, render

Names are imported on first use, so that the command line starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from coa.errors import CoaError
    from coa.models.tokenizer import TextTokenizer, load_tokenizer
    from coa.runtime import run, run_many
    from coa.trajectory import (
        Agent,
        Author,
        CodeTests,
        Failure,
        Kind,
        Ledger,
        Message,
        Parser,
        Profile,
        Repair,
        Sample,
        Score,
        Shape,
        Step,
        Stop,
        Task,
        TestCase,
        Tokens,
        Trajectory,
        Usage,
        check,
        load_profile,
        observation,
        parse,
        read,
        render,
        to_sample,
        to_samples,
        write,
        writer,
    )
    from coa.trajectory.formats.tasks import read_tasks

_HOMES = {
    "CoaError": "coa.errors",
    "TextTokenizer": "coa.models.tokenizer",
    "load_tokenizer": "coa.models.tokenizer",
    "read_tasks": "coa.trajectory.formats.tasks",
    "run": "coa.runtime",
    "run_many": "coa.runtime",
}
__all__ = [
    "Agent",
    "Author",
    "CoaError",
    "CodeTests",
    "Failure",
    "Kind",
    "Ledger",
    "Message",
    "Parser",
    "Profile",
    "Repair",
    "Sample",
    "Score",
    "Shape",
    "Step",
    "Stop",
    "Task",
    "TestCase",
    "TextTokenizer",
    "Tokens",
    "Trajectory",
    "Usage",
    "check",
    "load_profile",
    "load_tokenizer",
    "observation",
    "parse",
    "read",
    "read_tasks",
    "render",
    "run",
    "run_many",
    "to_sample",
    "to_samples",
    "write",
    "writer",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'coa' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES.get(name, "coa.trajectory")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
