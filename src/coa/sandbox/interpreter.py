"""Which Python runs inside the sandbox, and which parts of this machine it needs to see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from coa.sandbox.base import SandboxError

HOME: Final = "/.coa"
"""Where this package's `inside` folder is mounted in the sandbox."""
INIT: Final = f"{HOME}/init"
WORK: Final = "/work"

_ASK: Final = """
import json, os, sys
facts = {"base": sys.base_prefix, "exec": sys.base_exec_prefix, "version": list(sys.version_info[:2])}
facts["path"] = [path for path in sys.path if path and os.path.isdir(path)]
facts["python"] = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
print(json.dumps(facts))
"""
_SYSTEM: Final = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/nix/store", "/gnu/store")
_ETC: Final = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime")
_PASSWD: Final = "runner:x:1000:1000:runner:/work:/bin/sh\n"
_ENVIRONMENT: Final = {
    "HOME": WORK, "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1",
    "PYTHONHASHSEED": "0",  # so that the same program prints the same
    # Threads of numerical libraries would be started before the fork, and lost in it.
    "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
}  # fmt: skip


@dataclass(frozen=True)
class Interpreter:
    """The runtime inside, as paths: what is mounted where, read-only."""

    python: str
    version: tuple[int, int]
    site: tuple[str, ...]
    """Library folders, by their paths inside."""
    binds: tuple[tuple[str, str], ...]
    symlinks: tuple[tuple[str, str], ...]
    hidden: tuple[str, ...]
    writable: tuple[str, ...]
    environment: dict[str, str]

    @property
    def files(self) -> dict[str, str]:
        """Small files that programs expect to find."""
        return {
            "/etc/passwd": _PASSWD,
            "/etc/group": "runner:x:1000:\n",
            "/etc/hosts": "127.0.0.1 localhost\n",
            "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        }

    def plan(self) -> dict[str, Any]:
        """For the launcher."""
        return {**asdict(self), "files": self.files, "home": HOME, "init": INIT}


@lru_cache(maxsize=8)
def find_interpreter(python: str | None = None) -> Interpreter:
    """`python` is the interpreter whose version and packages model-written code gets. Default: coa's."""
    facts = _ask(python or os.environ.get("COA_SANDBOX_PYTHON") or sys.executable)
    base = {os.path.realpath(facts["base"]), os.path.realpath(facts["exec"])}
    binds: list[tuple[str, str]] = [(str(Path(__file__).parent / "inside"), f"{HOME}/inside")]
    symlinks = [("/proc/self/fd", "/dev/fd")]
    symlinks += [(f"/proc/self/fd/{n}", f"/dev/{name}") for n, name in enumerate(("stdin", "stdout", "stderr"))]
    for path in _SYSTEM:
        if os.path.islink(path):
            symlinks.append((os.readlink(path), path))
        elif os.path.isdir(path):
            binds.append((path, path))
    binds += [(path, path) for path in _ETC if os.path.exists(path)]
    # The runtime keeps its path, which is compiled into it. Libraries get a new path, because theirs may lie in a
    # folder that is empty in each run.
    binds += [(path, path) for path in sorted(base) if not _below(path, _SYSTEM)]
    site: list[str] = []
    hidden: list[str] = []
    for number, path in enumerate(path for path in map(os.path.realpath, facts["path"]) if _is_library(path)):
        if _below(path, (*base, "/usr")):
            site.append(path)
        else:
            site.append(f"{HOME}/site/{number}")
            binds.append((path, site[-1]))
        if os.path.isdir(f"{path}/coa"):  # a run must not find the answers of worlds and benchmarks in the package
            hidden.append(f"{site[-1]}/coa")
    writable = [place for place in (WORK, "/tmp", "/dev/shm") if not any(_below(path, (place,)) for path in base)]
    environment = {**_ENVIRONMENT, "TMPDIR": "/tmp" if "/tmp" in writable else WORK}
    version = (facts["version"][0], facts["version"][1])
    mounts = tuple(binds), tuple(symlinks), tuple(hidden), tuple(writable)
    return Interpreter(facts["python"], version, tuple(site), *mounts, environment)


def _ask(python: str) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [python, "-c", _ASK], capture_output=True, timeout=60, check=True, env={"PATH": os.defpath}
        )
        facts: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise SandboxError(
            f"the interpreter for the sandbox, {python}, does not work: {error}",
            hint="set COA_SANDBOX_PYTHON to a Python 3.11 or newer, or unset it",
        ) from error
    if tuple(facts["version"]) < (3, 11):
        raise SandboxError(f"the interpreter for the sandbox, {python}, is older than Python 3.11")
    return facts


def _below(path: str, places: tuple[str, ...]) -> bool:
    return any(path == place or path.startswith(place.rstrip("/") + "/") for place in places)


def _is_library(path: str) -> bool:
    """Whether it is a folder of installed packages, and not the source tree that an editable install points to."""
    return os.path.basename(path) in ("site-packages", "dist-packages")
