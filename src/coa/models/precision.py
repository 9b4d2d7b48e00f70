"""Whether to compute in bf16. Imports no torch, because plans are made without it."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Final

from coa.choices import Precision

log = logging.getLogger(__name__)
_UNITS: Final = frozenset({"avx512_bf16", "amx_bf16"})
_CPUINFO: Final = Path("/proc/cpuinfo")


@cache
def cpu_has_bf16(cpuinfo: Path = _CPUINFO) -> bool:
    """Whether the CPU has units that multiply in bf16: AVX-512 BF16 or AMX."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith("flags")), "")
    return not _UNITS.isdisjoint(flags.split())


def computes_in_bf16(precision: Precision, *, gpu: bool | None) -> bool:
    """By the setting, or with `auto` if the device has units for it. `gpu` says whether the GPU does; None without a
    GPU."""
    if precision is Precision.AUTO:
        return cpu_has_bf16() if gpu is None else gpu
    if precision is Precision.BF16 and gpu is None and not cpu_has_bf16():
        _warn_of_slowness()
    return precision is Precision.BF16


def gpu_for_plans() -> bool | None:
    """For `computes_in_bf16` without torch: whether there is an NVIDIA device, which is taken to have units for
    bf16."""
    return True if Path("/dev/nvidia0").exists() else None


@cache
def _warn_of_slowness() -> None:
    log.warning(
        "precision=bf16: this CPU has no units for bf16 (AVX-512 BF16 or AMX), so it will be many times slower than "
        "fp32"
    )
