"""Train one language model to act like many agents, and run it.

    import coa
    print(coa.ask("What is 17 * 23?", model="nano").answer)

Every stage of the pipeline is a function here: `ask`, `run`, `run_many`, `record`, `teach`, `distill`, `sft`,
`sample`, `rl`, `evaluate`, `score`, `compare`, `scan`, `serve`, `view`. Stages that take files and folders block and
need no event loop of the caller's. docs/guides/python.md shows each. The names in `__all__` are stable: a release
that changes one says so in the changelog, and the old form works for one more release. Anything else may change at
any time.

Names are imported on first use, so that the command line starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from coa.version import __version__ as __version__

# fmt: off
if TYPE_CHECKING:
    from coa.compare import Comparison, compare
    from coa.config import load_config
    from coa.distill import (
        DistillConfig,
        DistillReport,
        Gateway,
        RecordConfig,
        Recorder,
        TeachConfig,
        TeachReport,
        distill,
        record,
        teach,
    )
    from coa.errors import CoaError
    from coa.evaluate import EvalConfig, Evaluation, evaluate, read_evaluation, score
    from coa.models.base import Context, Finish, Generation, Model, Sampling
    from coa.models.opening import open_model
    from coa.models.price import Price
    from coa.models.tokenizer import TextTokenizer, load_tokenizer
    from coa.progress import PrintProgress, Progress
    from coa.rl import RlConfig, rl
    from coa.runtime import AskConfig, BatchProgress, RunConfig, Setting, ask, open_setting, run, run_many
    from coa.sampling import SampleConfig, SampleReport, sample
    from coa.scan import Finding, ScanConfig, Scanner, ScanReport, scan
    from coa.scoring import Scorer, Verdict, scorer_for
    from coa.scoring.opening import JudgeConfig
    from coa.serve import AgentServer, ServeConfig, serve
    from coa.sft import SftConfig, sft
    from coa.shard import Shard
    from coa.tools import Observation, Tool, ToolContext
    from coa.tools.registry import open_tools
    from coa.training.merging import merge_checkpoint
    from coa.training.run_folder import TrainingResult
    from coa.trajectory import (
        Agent,
        Author,
        CodeTests,
        Failure,
        Form,
        Kind,
        Ledger,
        Limits,
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
        profile_of,
        read,
        render,
        to_sample,
        to_samples,
        write,
        writer,
    )
    from coa.trajectory.formats.tasks import read_tasks
    from coa.view import Viewer, view, write_bundle

_HOMES = {
    # The pipeline
    "coa.runtime": ("ask", "run", "run_many", "open_setting", "RunConfig", "AskConfig", "Setting", "BatchProgress"),
    "coa.distill": ("distill", "teach", "record", "Gateway", "RecordConfig", "Recorder", "DistillConfig",
                    "DistillReport", "TeachConfig", "TeachReport"),
    "coa.sft": ("sft", "SftConfig"),
    "coa.sampling": ("sample", "SampleConfig", "SampleReport"),
    "coa.rl": ("rl", "RlConfig"),
    "coa.evaluate": ("evaluate", "read_evaluation", "score", "EvalConfig", "Evaluation"),
    "coa.compare": ("compare", "Comparison"),
    "coa.scan": ("scan", "ScanConfig", "ScanReport", "Finding", "Scanner"),
    "coa.serve": ("serve", "ServeConfig", "AgentServer"),
    "coa.view": ("view", "Viewer", "write_bundle"),
    "coa.config": ("load_config",),
    # What is plugged into it
    "coa.models.opening": ("open_model",),
    "coa.models.base": ("Model", "Context", "Finish", "Generation", "Sampling"),
    "coa.models.price": ("Price",),
    "coa.models.tokenizer": ("TextTokenizer", "load_tokenizer"),
    "coa.tools": ("Tool", "ToolContext", "Observation"),
    "coa.tools.registry": ("open_tools",),
    "coa.scoring": ("Scorer", "Verdict", "scorer_for"),
    "coa.scoring.opening": ("JudgeConfig",),
    "coa.progress": ("PrintProgress", "Progress"),
    "coa.training.run_folder": ("TrainingResult",),
    "coa.training.merging": ("merge_checkpoint",),
    "coa.errors": ("CoaError",),
    "coa.shard": ("Shard",),
    "coa.trajectory.formats.tasks": ("read_tasks",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
"""Where names are defined that are not in `coa.trajectory`."""
_PACKAGES = ("compare", "distill", "evaluate", "rl", "scan", "serve", "sft", "view")
"""Stages that are packages too, and are called as such (coa/stage.py)."""
__all__ = [
    "Agent", "AgentServer", "AskConfig", "Author", "BatchProgress", "CoaError", "CodeTests", "Comparison", "Context",
    "DistillConfig", "DistillReport", "EvalConfig", "Evaluation", "Failure", "Finding", "Finish", "Form", "Gateway",
    "Generation", "JudgeConfig", "Kind", "Ledger", "Limits", "Message", "Model", "Observation", "Parser", "Price",
    "PrintProgress", "Profile", "Progress", "RecordConfig", "Recorder", "Repair", "RlConfig", "RunConfig", "Sample",
    "SampleConfig", "SampleReport", "Sampling", "ScanConfig", "ScanReport", "Scanner", "Score", "Scorer", "ServeConfig",
    "Setting", "SftConfig", "Shape", "Shard", "Step", "Stop", "Task", "TeachConfig", "TeachReport", "TestCase",
    "TextTokenizer", "Tokens", "Tool", "ToolContext", "TrainingResult", "Trajectory", "Usage", "Verdict", "Viewer",
    "ask", "check", "compare", "distill", "evaluate", "load_config", "load_profile", "load_tokenizer",
    "merge_checkpoint", "observation", "open_model", "open_setting", "open_tools", "parse", "profile_of", "read",
    "read_evaluation", "read_tasks", "record", "render", "rl", "run", "run_many", "sample", "scan", "score",
    "scorer_for", "serve", "sft", "teach", "to_sample", "to_samples", "view", "write", "write_bundle", "writer",
]
# fmt: on


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'coa' has no attribute {name!r}")
    module = import_module(_HOME_OF.get(name, "coa.trajectory"))
    if name in _PACKAGES:
        return module
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
