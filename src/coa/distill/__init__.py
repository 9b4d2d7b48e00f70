"""From the traces of any multi-agent team to trajectories worth training on.

    from coa.distill import DistillConfig, TeachConfig, distill, teach

    teach(TeachConfig(team="team.py:build", model="http://localhost:8000"), "tasks.jsonl", "traces/")
    report = distill(DistillConfig(profile="nano"), ["traces/"], "data/")

`record` opens a gateway that records any team; `Recorder` records one run of a smolagents team; `read_traces` reads
what other systems left. Names are imported on first use, so that a process loads no more than it needs, and only
`Recorder` needs `smolagents`.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from coa.stage import Stage

if TYPE_CHECKING:
    from coa.distill.config import DistillConfig
    from coa.distill.cost import CostReport, measure_cost
    from coa.distill.distillation import distill
    from coa.distill.dry_run import DistillPlan, plan
    from coa.distill.explanation import Explanation, explain
    from coa.distill.gateway.config import RecordConfig
    from coa.distill.gateway.stage import Gateway, record
    from coa.distill.importers.detect import read_traces
    from coa.distill.profile_from_traces import ProfileProposal, profile_from_traces
    from coa.distill.recorder import Recorder
    from coa.distill.report import DistillReport
    from coa.distill.teaching.results import TeachReport
    from coa.distill.teaching.stage import TeachConfig, teach
    from coa.distill.team_run import TeamRun

_HOMES = {
    "CostReport": "cost", "DistillConfig": "config", "DistillPlan": "dry_run", "DistillReport": "report",
    "Explanation": "explanation", "Gateway": "gateway.stage", "ProfileProposal": "profile_from_traces",
    "RecordConfig": "gateway.config", "Recorder": "recorder", "TeachConfig": "teaching.stage",
    "TeachReport": "teaching.results", "TeamRun": "team_run", "distill": "distillation", "explain": "explanation",
    "measure_cost": "cost", "plan": "dry_run", "profile_from_traces": "profile_from_traces",
    "read_traces": "importers.detect", "record": "gateway.stage", "teach": "teaching.stage",
}  # fmt: skip
__all__ = [
    "CostReport", "DistillConfig", "DistillPlan", "DistillReport", "Explanation", "Gateway", "ProfileProposal",
    "RecordConfig", "Recorder", "TeachConfig", "TeachReport", "TeamRun", "distill", "explain", "measure_cost", "plan",
    "profile_from_traces", "read_traces", "record", "teach",
]  # fmt: skip

sys.modules[__name__].__class__ = Stage


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'coa.distill' has no attribute {name!r}")
    value: object = getattr(import_module(f"coa.distill.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
