"""AFM's SFT rows (`instruction`, `input`, `output`): no team, but one model's trajectory already.

They need no conversion. `trajectory/formats/alpaca.py` reads their tags, and they go to the filters beside the
trajectories that were converted from teams.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from coa.distill.importers.trace_format import TraceFormat
from coa.trajectory.formats.alpaca import from_alpaca, is_alpaca
from coa.trajectory.types import FrozenDict, Trajectory


def is_afm(row: object) -> bool:
    return isinstance(row, Mapping) and is_alpaca(row)


def from_afm(row: Mapping[str, Any], file: str = "", place: str = "") -> Trajectory:
    trajectory = from_alpaca(row)
    # Without folders: those are of this machine, and data sets are shared.
    source = {"format": FORMAT.name, "file": PurePath(file).name, "place": place}
    return trajectory.model_copy(update={"meta": FrozenDict({**trajectory.meta, "source": source})})


FORMAT: Final = TraceFormat("afm", "AFM rows", is_afm, read=from_afm)
