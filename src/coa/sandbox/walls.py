"""The programs that put up walls around a fresh interpreter: how each is started, and what it cannot do."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from coa.sandbox.base import MB, ProgramLimits
from coa.sandbox.inside.cell import covered_files
from coa.sandbox.interpreter import HOME, WORK, Interpreter

_DEVICES: Final = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
_MOST_FILES: Final = 16 << 10


@dataclass(frozen=True)
class Start:
    """What to wall in: the interpreter, a folder for files that the walls need, and the descriptors that go in."""

    interpreter: Interpreter
    folder: Path
    limits: ProgramLimits
    handles: tuple[int, int, int, int]

    def arguments(self, home: str = HOME) -> list[str]:
        script = f"import sys; sys.path[0] = {home!r}; from inside.cold import main; main{self.handles}"
        return [self.interpreter.python, "-S", "-c", script]

    @property
    def share_bytes(self) -> int:
        """A part of the disk limit for each writable place, because each is a separate file system."""
        return self.limits.disk_mb * MB // len(self.interpreter.writable)


@dataclass(frozen=True)
class Toll:
    """What the processes of the walls themselves add to the usage that is seen from outside."""

    processes: int = 4
    memory_mb: int = 0
    seconds: float = 0.0
    """Of CPU and of wall time, before the code starts."""


@dataclass(frozen=True)
class Walls:
    """How to start an interpreter behind the walls, and the paths that it has there."""

    command: Sequence[str]
    site: Sequence[str]
    writable: Sequence[str]
    work: str = WORK
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of the walls' program. Code inside could read it through /proc, whatever that program clears, so it is empty."""
    toll: Toll = Toll()
    log: Path | None = None
    """The file to which the walls' program reports errors, if not standard error."""


def bwrap(start: Start) -> Walls:
    """Bubblewrap."""
    interpreter = start.interpreter
    command = ["bwrap", "--unshare-user", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    command += ["--uid", "1000", "--gid", "1000", "--hostname", "sandbox"]
    for source, target in interpreter.binds:
        command += ["--ro-bind", source, target]
    for target, path in interpreter.symlinks:
        command += ["--symlink", target, path]
    for path, text in interpreter.files.items():
        (start.folder / Path(path).name).write_text(text)
        command += ["--ro-bind", str(start.folder / Path(path).name), path]
    for path in interpreter.hidden:
        command += ["--tmpfs", path]
    command += ["--proc", "/proc", "--dev", "/dev"]
    for path in (*covered_files(), "/dev/zero"):  # shared mappings of /dev/zero are memory that nobody counts
        command += ["--ro-bind", "/dev/null", path]
    for path in interpreter.writable:
        command += ["--size", str(start.share_bytes), "--tmpfs", path]
    command += ["--remount-ro", "/"]
    for name, value in interpreter.environment.items():
        command += ["--setenv", name, value]
    return Walls([*command, *start.arguments()], interpreter.site, interpreter.writable)


def nsjail(start: Start) -> Walls:
    """nsjail, with a configuration file: on its command line a colon would end a path."""
    interpreter, log = start.interpreter, start.folder / "log"
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    lines = ["mode: ONCE", 'hostname: "sandbox"', 'cwd: "/"', "time_limit: 0", f"nice_level: {nice}"]
    lines += [f"log_file: {_quoted(str(log))}", "log_level: WARNING", "disable_rl: true", "iface_no_lo: true"]
    lines += ['uidmap { inside_id: "1000" }', 'gidmap { inside_id: "1000" }']
    lines += [f"pass_fd: {handle}" for handle in start.handles]
    lines += [f"envar: {_quoted(f'{name}={value}')}" for name, value in interpreter.environment.items()]

    def mount(target: str, **options: str | bool) -> None:
        settings = {"dst": target, "nosuid": True, **options}
        lines.append("mount { " + " ".join(f"{key}: {_quoted(value)}" for key, value in settings.items()) + " }")

    def empty(path: str, size: int) -> None:
        mount(path, fstype="tmpfs", rw=size > 0, nodev=True, options=f"size={size or 4096},nr_inodes={_MOST_FILES}")

    for source, target in interpreter.binds:
        mount(target, src=source, is_bind=True, nodev=True)
    for target, path in interpreter.symlinks:
        mount(path, src=target, is_symlink=True)
    for path, text in interpreter.files.items():
        mount(path, src_content=text, nodev=True)
    for path in interpreter.hidden:
        empty(path, 0)
    mount("/proc", fstype="proc", nodev=True, noexec=True)
    for path in _DEVICES:
        mount(path, src=path, is_bind=True, rw=True)
    for path in interpreter.writable:
        empty(path, start.share_bytes)
    config = start.folder / "config"
    config.write_text("\n".join(lines))
    command = ["nsjail", "--config", str(config), "--", *start.arguments()]
    return Walls(command, interpreter.site, interpreter.writable, log=log)


def _quoted(value: str | bool) -> str:
    """In protobuf's text format."""
    return str(value).lower() if isinstance(value, bool) else json.dumps(value, ensure_ascii=False)


def runsc(start: Start) -> Walls:
    """gVisor: a kernel in user space. It gets an OCI bundle, because `runsc do` passes no descriptors on."""
    interpreter, root = start.interpreter, start.folder / "root"
    root.mkdir(mode=0o755)
    for path in (*(path for _, path in interpreter.symlinks), *interpreter.files):
        (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    for target, path in interpreter.symlinks:
        (root / path.lstrip("/")).symlink_to(target)
    for path, text in interpreter.files.items():
        (root / path.lstrip("/")).write_text(text)
    closed = ["nosuid", "nodev"]
    mounts = [_mount("/proc", "proc", [*closed, "noexec", "ro"])]
    mounts += [_mount(target, "bind", [*closed, "rbind", "ro"], source) for source, target in interpreter.binds]
    mounts += [_mount(path, "tmpfs", [*closed, "ro"]) for path in interpreter.hidden]
    share = [f"size={start.share_bytes}", "mode=0777"]
    mounts += [_mount(path, "tmpfs", [*closed, *share]) for path in interpreter.writable]
    bundle = {
        "ociVersion": "1.0.2",
        "hostname": "sandbox",
        "root": {"path": "root", "readonly": True},
        "mounts": mounts,
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]},
        "process": {
            "args": start.arguments(),
            "cwd": "/",
            "env": [f"{name}={value}" for name, value in interpreter.environment.items()],
            "user": {"uid": 1000, "gid": 1000},
            "capabilities": {},
            "noNewPrivileges": True,
        },
    }
    (start.folder / "config.json").write_text(json.dumps(bundle))
    command = ["runsc", "--root", str(start.folder / "state"), "--ignore-cgroups", "--network=none", "--overlay2=none"]
    command += [] if os.geteuid() == 0 else ["--rootless"]
    command += ["run", "--bundle", str(start.folder)]
    command += [f"--pass-fd={handle}:{handle}" for handle in start.handles]
    toll = Toll(processes=16, memory_mb=256, seconds=2)
    return Walls([*command, start.folder.name], interpreter.site, interpreter.writable, toll=toll)


def _mount(target: str, kind: str, options: Sequence[str], source: str = "none") -> dict[str, str | Sequence[str]]:
    return {"destination": target, "type": kind, "source": source, "options": options}


def unsafe(start: Start) -> Walls:
    """No walls: the code can read the files of this machine. Only on request, on machines that are discarded."""
    interpreter, folder = start.interpreter, str(start.folder)
    environment = {**interpreter.environment, "HOME": folder, "TMPDIR": folder}
    targets = {target: source for source, target in interpreter.binds}
    site = [targets.get(path, path) for path in interpreter.site]
    home = str(Path(__file__).parent)
    return Walls(start.arguments(home), site, [folder], work=folder, environment=environment)


# In the order in which they are tried: gVisor has the strongest walls and takes four times as long.
_IN_ORDER: Final[tuple[Callable[[Start], Walls], ...]] = (nsjail, bwrap, runsc, unsafe)
COMMANDS: Final = {command.__name__: command for command in _IN_ORDER}
KEEP_FOLDERS: Final = ("runsc",)
"""Walls through which the descriptor of a folder cannot be sent. There, files come out through a pipe."""
HINTS: Final = {
    "nsjail": "build it from github.com/google/nsjail and put it on PATH",
    "bwrap": "sudo apt-get install bubblewrap",
    "runsc": "install gVisor from 2024 or later (gvisor.dev/docs/user_guide/install), and put runsc on PATH",
}
