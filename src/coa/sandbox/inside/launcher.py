"""Builds the walls that all runs of one warm interpreter share, then becomes that interpreter.

Inside are a fresh root with the read-only Python runtime and nothing else of this machine, an empty network, separate
process numbers and an unprivileged user. It works as root and as a plain user. The two differ only in when the user
namespace is entered: root first mounts what a plain user could not reach (a runtime under a closed home), then gives
up its rights.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
from typing import Any

from . import syscalls
from .tiny_init import write_init

ROOT = "/tmp"  # only where the new root is assembled, in a mount namespace that nobody else sees
NOBODY = 65534
DEVICES = ("null", "full", "random", "urandom")
"""Not /dev/zero: a shared mapping of it is memory that belongs to no process, so that nobody could count it."""
STACK_BYTES = 64 << 20
"""Room for deep recursion. The address space keeps it free only if it is requested before exec."""

_APART = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNET
_APART |= syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWCGROUP


def main(descriptor: int) -> None:
    """`descriptor` is the socket to the supervisor. First comes the plan, then a message for the interpreter."""
    channel = socket.socket(fileno=descriptor)
    plan = json.loads(channel.recv(1 << 20))
    try:
        _launch(plan, channel)
    except OSError as error:
        channel.send(json.dumps({"event": "failed", "reason": str(error)}).encode())
        sys.exit(1)


def _launch(plan: dict[str, Any], channel: socket.socket) -> None:
    if os.geteuid() == 0:
        syscalls.unshare(_APART)
        _go_on_in_child(channel)
        build_root(plan)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # or /proc/self would belong to root, and the maps with it
        # A second PID namespace: the interpreter may only return to a namespace that its user owns.
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID)
        map_user(0, NOBODY, NOBODY)
        _go_on_in_child(channel)
        _mount_proc("/proc")
    else:
        uid, gid = os.geteuid(), os.getegid()
        syscalls.unshare(syscalls.CLONE_NEWUSER | _APART)
        map_user(0, uid, gid)
        _go_on_in_child(channel)
        build_root(plan)
    # The kernel counts descriptors that are underway in sockets for each user, and holds them against this limit: runs
    # that send each other many must not keep the interpreter from sending any.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
    start = f"import sys; sys.path[0] = {plan['home']!r}; from inside.zygote import main; main({channel.fileno()})"
    channel.set_inheritable(True)
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 9)
    os.execve(plan["python"], [plan["python"], "-S", "-c", start], plan["environment"])


def _go_on_in_child(channel: socket.socket) -> None:
    """A new PID namespace holds only for children. The parent waits, and neither outlives the other."""
    parent = os.getppid()
    child = os.fork()
    if child:
        syscalls.die_with_parent(parent)
        channel.close()
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def map_user(inside: int, uid: int, gid: int, process: str = "/proc/self") -> None:
    """In the user namespace just entered, `uid` and `gid` appear as `inside`, and no other user exists."""
    for name, line in (("setgroups", "deny"), ("uid_map", f"{inside} {uid} 1"), ("gid_map", f"{inside} {gid} 1")):
        with open(f"{process}/{name}", "w") as file:
            file.write(line)


def build_root(plan: dict[str, Any]) -> None:
    """The new /: binds and files of the plan, four devices, a new /proc, and empty places for each run's mounts."""
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    # Everything to bind is opened first, because the new root may cover it.
    binds = [*plan["binds"], *((f"/dev/{name}", f"/dev/{name}") for name in DEVICES)]
    sources = [(os.open(source, os.O_PATH), target) for source, target in binds]
    syscalls.mount("tmpfs", ROOT, "tmpfs", syscalls.MS_NOSUID, "size=16m,mode=0755")
    for source, target in sources:
        _bind(source, target)
    for target, path in plan["symlinks"]:
        os.makedirs(os.path.dirname(ROOT + path), exist_ok=True)
        os.symlink(target, ROOT + path)
    for path, text in plan["files"].items():
        os.makedirs(os.path.dirname(ROOT + path), exist_ok=True)
        with open(ROOT + path, "w") as file:
            file.write(text)
    for path in ("/proc", "/cell", *plan["writable"]):
        os.makedirs(ROOT + path, exist_ok=True)
    for path in plan["hidden"]:
        syscalls.mount("tmpfs", ROOT + path, "tmpfs", syscalls.MS_RDONLY, "size=4k,mode=0755")
    write_init(ROOT + plan["init"])
    syscalls.make_read_only(ROOT)
    _mount_proc(ROOT + "/proc")
    syscalls.pivot_root(ROOT)
    syscalls.set_host_name(b"sandbox")


def _mount_proc(place: str) -> None:
    syscalls.mount("proc", place, "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)


def _bind(source: int, target: str) -> None:
    place = ROOT + target
    link = f"/proc/self/fd/{source}"
    if os.path.isdir(link):
        os.makedirs(place, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "a"):
            pass
    syscalls.mount(link, place, flags=syscalls.MS_BIND | syscalls.MS_REC)
    os.close(source)
