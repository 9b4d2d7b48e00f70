"""Run folders as the viewer shows them: evaluations, comparisons, distillations, training runs, samplings, the demo.

Nothing that a folder holds raises an error: what cannot be read is among the view's `problems`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from coa.view.folders.comparison import comparison_view
from coa.view.folders.demo import demo_view
from coa.view.folders.distillation import distillation_view
from coa.view.folders.evaluation import evaluation_view
from coa.view.folders.families import FamilyRow
from coa.view.folders.parts import FolderView
from coa.view.folders.plain import plain_view
from coa.view.folders.rl_groups import StepView, rl_step
from coa.view.folders.sampling import sampling_view
from coa.view.folders.training import rl_view, sft_view
from coa.view.run_folders import kind_of

_KINDS = {
    "eval": evaluation_view,
    "compare": comparison_view,
    "distill": distillation_view,
    "sample": sampling_view,
    "sft": sft_view,
    "training": sft_view,
    "rl": rl_view,
    "demo": demo_view,
}


def folder_view(path: Path, rows: Iterable[FamilyRow] | None = None) -> FolderView:
    """What is known about a run folder. `rows` are the attempts of an RL run, where an index has them already."""
    kind = _kind(path)
    if kind == "rl":
        return rl_view(path, rows)
    return _KINDS[kind](path) if kind in _KINDS else plain_view(path, kind)


def _kind(path: Path) -> str:
    try:
        return kind_of(path, set(os.listdir(path))) or ""
    except OSError:
        return ""


__all__ = ["FamilyRow", "FolderView", "StepView", "folder_view", "rl_step"]
