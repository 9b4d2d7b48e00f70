"""The wheel as a user gets it, and environments that have it and nothing of this repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from support.documents import ROOT

NAME = "chain-of-agents"


def build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy: a build leaves files beside its sources."""
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder / "dist")]
    _checked([sys.executable, "-m", "pip", "wheel", *options, str(source)])
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def empty_environment(folder: Path, *, pip: bool = False) -> Path:
    """The Python of a new environment with nothing in it."""
    _checked([sys.executable, "-m", "venv", *([] if pip else ["--without-pip"]), str(folder)])
    return folder / "bin" / "python"


def install_offline(wheel: Path, python: Path, extras: Iterable[str] = ()) -> None:
    """Install the wheel, and links to what it requires with these extras, which is taken from this environment."""
    _checked(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "-q", str(wheel)]
    )
    (packages,) = (python.parents[1] / "lib").glob("python3*/site-packages")
    for name in _required(NAME, frozenset(extras)):
        for file in distribution(name).files or ():
            top = file.parts[0]
            place = packages / top
            if top not in ("..", "__pycache__") and not place.exists():
                place.symlink_to(Path(str(file.locate())).parents[len(file.parts) - 1] / top)


def _required(name: str, extras: frozenset[str]) -> set[str]:
    """The packages here that a package requires, and what they require."""
    found: set[str] = set()
    waiting = [(name, extras)]
    seen = set()
    while waiting:
        of, wanted = asked = waiting.pop()
        if asked in seen:
            continue
        seen.add(asked)
        try:
            requirements = distribution(of).requires or []
        except PackageNotFoundError:
            continue
        if of != name:
            found.add(_plain(of))
        for requirement in map(Requirement, requirements):
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in (wanted or {""})):
                waiting.append((requirement.name, frozenset(requirement.extras)))
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def environment(home: Path, **more: str) -> dict[str, str]:
    """What the shell of a new user has: nothing of this repository, no cache, but this machine's settings of pip."""
    kept = {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "SSL_CERT_"))}
    return {**kept, "HOME": str(home), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "COLUMNS": "120", **more}


def run(python: Path, *arguments: str, home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `coa` of an environment as a new user, in this user's home."""
    home.mkdir(exist_ok=True)
    return subprocess.run(
        [str(python.with_name("coa")), *arguments],
        cwd=home, env=environment(home, **more), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=1800,
    )  # fmt: skip


def _checked(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
