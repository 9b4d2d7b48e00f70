"""Runs Python as the user nobody, with this interpreter and this source tree, even where both lie in a closed home.

In a mount namespace of its own, folders that only their owner may enter are covered by empty open ones, and what is
needed of them is bound back to its place.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STAGE = "/mnt"


def can_become_nobody() -> bool:
    return os.geteuid() == 0


def as_nobody(*arguments: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """`python arguments...` with coa, its dependencies and `support` importable."""
    needed = {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), ROOT}
    closed = {shut for path in needed if (shut := _closed_ancestor(path))}
    lines = [f"mount -t tmpfs -o mode=755 none {STAGE}"]
    hidden = [path for path in sorted(needed) if any(path.is_relative_to(shut) for shut in closed)]
    for number, path in enumerate(hidden):
        lines += [f"mkdir {STAGE}/{number}", f"mount --rbind {shlex.quote(str(path))} {STAGE}/{number}"]
    lines += [f"mount -t tmpfs -o mode=755 none {shlex.quote(str(shut))}" for shut in sorted(closed)]
    for number, path in enumerate(hidden):
        lines += [f"mkdir -p {shlex.quote(str(path))}", f"mount --rbind {STAGE}/{number} {shlex.quote(str(path))}"]
    command = " ".join(map(shlex.quote, (sys.executable, "-B", *arguments)))
    lines.append(
        "exec setpriv --reuid 65534 --regid 65534 --clear-groups "
        f"env -i PATH={shlex.quote(os.environ['PATH'])} HOME=/nonexistent "
        f"PYTHONPATH={ROOT}/src:{ROOT}/tests {command}"
    )
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-ec", "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd="/",
    )


def _closed_ancestor(path: Path) -> Path | None:
    """The topmost folder on the way that others may not enter."""
    for folder in [*reversed(path.parents), path]:
        if not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    return None
