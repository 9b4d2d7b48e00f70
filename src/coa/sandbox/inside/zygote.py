"""A warm interpreter that forks once per run, and watches each run from outside: wall time, CPU time, memory.

The loop in `serve` waits for three things: an order from the supervisor (run, or kill), the end of a process, and the
next moment to look at what the runs use. A run is two processes in a new PID namespace: a tiny init, and a fork of this
interpreter that runs the code. When that fork ends, its init is killed, and the kernel ends everything else in there.

One process is always forked and isolated ahead of its run, with the limits of the last run: if the next run has the
same limits, it starts at once. Each run has a network namespace to itself, so that its sockets can be counted and their
names are seen by nobody else. To create one takes long, so an empty one is used again.

This process never looks at what it is asked to run. Code, input and results travel in descriptors that only the forked
process reads, so that nothing of one run is in the memory of the next.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from . import cell, syscalls, tiny_init
from .usage import PAGE, Holdings, memory_of, open_sockets, socket_bytes, usage

TICK_S = 0.02
MSG_CMSG_CLOEXEC = 0x40000000
Forked = tuple[dict[str, Any], int, int]
"""What a forked process needs: the limits to apply to itself, the socket to wait at, and its network namespace."""
WALL_LIMITS = ("memory_bytes", "disk_bytes", "processes")
"""The limits that are part of the walls. A process ahead suits only runs that have the same; the others come later."""


class Network:
    """A network namespace without any network, in which only the sockets of one run are."""

    def __init__(self) -> None:
        """This process is in it afterwards."""
        syscalls.unshare(syscalls.CLONE_NEWNET)
        self.handle = os.open("/proc/self/ns/net", os.O_RDONLY)
        self._sockstat = os.open("/proc/self/net/sockstat", os.O_RDONLY)

    def sockets(self) -> int:
        return open_sockets(os.pread(self._sockstat, 4096, 0))

    def close(self) -> None:
        os.close(self.handle)
        os.close(self._sockstat)


@dataclass
class Ahead:
    """A process behind its walls that waits for a run."""

    limits: dict[str, Any]
    init: int
    process: int
    to: socket.socket
    network: Network


@dataclass
class Watched:
    """A run as seen from outside."""

    number: int
    init: int
    process: int
    network: Network
    limits: dict[str, Any]
    started: float
    init_handle: int
    process_handle: int
    reason: str = ""
    """Why it was killed, if it was."""
    status: int | None = None
    cpu_s: float = 0.0
    test_cpu_s: float = 0.0
    """Of the test that runs now, if this is a cell for tests: all processes but the one that forks the tests."""
    peak_bytes: int = 0
    ended: float = 0.0

    def __post_init__(self) -> None:
        self.holdings = Holdings((self.init, self.process))


def main(descriptor: int) -> None:
    channel = socket.socket(fileno=descriptor)
    channel.set_inheritable(False)
    setup = json.loads(channel.recv(1 << 20))
    sys.path = [path for path in sys.path[1:] if path] + setup["site"]
    cell.add_site_builtins()
    loaded = [name for name in setup["preload"] if _load(name)]
    with open("/proc/self/statm") as file:
        own_bytes, own_resident_bytes = (int(pages) * PAGE for pages in file.read().split()[:2])
    locks = cell.Locks.here(tuple(setup["writable"]), own_bytes, own_resident_bytes)
    threading.stack_size(16 << 20)  # or each thread would reserve as much as the main one may grow to
    gc.collect()
    gc.freeze()
    facts = {"python": sys.version.split()[0], "loaded": loaded, "resident_bytes": own_resident_bytes}
    walls = {"landlock": locks.landlock, "seccomp": bool(locks.seccomp)}
    channel.send(json.dumps({"event": "ready", **facts, **walls}).encode())
    forked = _RunWatch(channel, setup["init"], locks).serve()
    if forked is None:
        os._exit(0)
    cell.stand_by(*forked, locks)  # in a forked process; does not return


def _load(name: str) -> bool:
    """Import what runs will probably import, and what those modules import only when first used."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        return False
    if name == "numpy":
        for part in ("random", "linalg", "fft", "polynomial"):
            importlib.import_module(f"numpy.{part}")
        module.random.seed()
    if name == "sympy":
        x = module.Symbol("x")
        module.integrate(module.sin(x) * module.exp(x), x)
        module.solve(x**2 - 2, x)
        module.simplify(module.cos(x) ** 2 + module.sin(x) ** 2)
        module.series(module.exp(x), x, 0, 3)
        module.factorint(91)
        str(module.Matrix([[1, 2], [3, 4]]).inv())
    return True


class _RunWatch:
    def __init__(self, channel: socket.socket, init: str, locks: cell.Locks) -> None:
        self.channel, self.init, self.locks = channel, init, locks
        self.own_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
        self.own_network = Network()  # one that this process may return to, unlike the launcher's
        self.socket_bytes = socket_bytes()
        self.networks: list[Network] = []
        self.runs: dict[int, Watched] = {}
        self.ahead: Ahead | None = None
        self.selector = selectors.DefaultSelector()
        self.selector.register(channel, selectors.EVENT_READ)

    def serve(self) -> Forked | None:
        """Start a run for every order. Returns in each forked process; returns None when the supervisor is gone."""
        next_look = 0.0
        while True:
            watching = bool(self.runs)
            for key, _ in self.selector.select(max(next_look - time.monotonic(), 0) if watching else None):
                forked = None
                if key.fileobj is self.channel:
                    data, handles, _, _ = socket.recv_fds(self.channel, 1 << 16, 8, MSG_CMSG_CLOEXEC)
                    if not data:
                        return None
                    message = json.loads(data)
                    if message["do"] == "run":
                        forked = self._start(message, handles)
                    elif message["number"] in self.runs:
                        self._kill(self.runs[message["number"]], message["reason"])
                elif (limits := self._ended(key.data, int(key.fd))) is not None and self.ahead is None:
                    with contextlib.suppress(OSError):  # the next order tries again, and reports the error
                        forked = self._fork(limits)
                if forked is not None:
                    return forked
            if watching and time.monotonic() >= next_look:
                self._look()
            elif watching:
                continue
            next_look = time.monotonic() + TICK_S

    def _fork(self, limits: dict[str, Any]) -> Forked | None:
        """Fork one process ahead of its run."""
        init = -1
        network = self._empty_network()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            syscalls.unshare(syscalls.CLONE_NEWPID)  # for the next children: first init, then the run
            init = os.posix_spawn(self.init, tiny_init.arguments(), {})
            process = os.fork()
        except OSError:
            theirs.close()
            ours.close()
            network.close()
            syscalls.setns(self.own_namespace, syscalls.CLONE_NEWPID)
            if init > 0:
                _end(init)
            raise
        if process == 0:
            # Closed here, or the garbage collector would later close whatever has their numbers by then.
            self.selector.close()
            self.channel.close()
            ours.close()
            return limits, theirs.detach(), network.handle
        syscalls.setns(self.own_namespace, syscalls.CLONE_NEWPID)
        theirs.close()
        self.ahead = Ahead(limits, init, process, ours, network)
        return None

    def _empty_network(self) -> Network:
        if self.networks:
            return self.networks.pop()
        try:
            return Network()
        finally:
            syscalls.setns(self.own_network.handle, syscalls.CLONE_NEWNET)

    def _keep_network(self, network: Network) -> None:
        """For the next run, if nothing of the last one is left in it."""
        if network.sockets():
            network.close()
        else:
            self.networks.append(network)

    def _start(self, message: dict[str, Any], handles: list[int]) -> Forked | None:
        limits = message["limits"]
        try:
            if self.ahead is not None and any(limits[name] != self.ahead.limits[name] for name in WALL_LIMITS):
                self._drop()
            if self.ahead is None and (forked := self._fork(limits)) is not None:
                return forked
            assert self.ahead is not None
            own = json.dumps({name: limits[name] for name in ("cpu_s", "open_files")}).encode()
            try:
                socket.send_fds(self.ahead.to, [own], handles)
            except OSError:  # it died while it waited
                self._drop()
                if (forked := self._fork(limits)) is not None:
                    return forked
                socket.send_fds(self.ahead.to, [own], handles)
        except OSError as error:
            self._report({"event": "done", "number": message["number"], "error": str(error)})
            return None
        finally:
            for handle in handles:
                os.close(handle)
        ahead, self.ahead = self.ahead, None
        ahead.to.close()
        pidfds = os.pidfd_open(ahead.init), os.pidfd_open(ahead.process)
        run = Watched(message["number"], ahead.init, ahead.process, ahead.network, limits, time.monotonic(), *pidfds)
        self.runs[run.number] = run
        self.selector.register(run.process_handle, selectors.EVENT_READ, run)
        return None

    def _drop(self) -> None:
        """End the process ahead: it has other limits than the next run, or is dead."""
        assert self.ahead is not None
        ahead, self.ahead = self.ahead, None
        ahead.to.close()
        _end(ahead.init, ahead.process)
        self._keep_network(ahead.network)

    def _ended(self, run: Watched, handle: int) -> dict[str, Any] | None:
        """First the process that ran the code ends, then its init, with which everything else in there dies.

        Returns the run's limits when the run is over.
        """
        self.selector.unregister(handle)
        os.close(handle)
        if handle == run.process_handle:
            _, run.status, spent = os.wait4(run.process, 0)
            run.ended = time.monotonic()
            run.cpu_s = max(run.cpu_s, spent.ru_utime + spent.ru_stime)
            run.peak_bytes = max(run.peak_bytes, spent.ru_maxrss * 1024 - self.locks.own_resident_bytes)
            signal.pidfd_send_signal(run.init_handle, signal.SIGKILL)
            self.selector.register(run.init_handle, selectors.EVENT_READ, run)
            return None
        os.waitpid(run.init, 0)
        self._keep_network(run.network)
        del self.runs[run.number]
        same = ("number", "status", "reason", "cpu_s", "test_cpu_s", "peak_bytes")
        end = {name: getattr(run, name) for name in same}
        self._report({"event": "done", **end, "wall_s": run.ended - run.started})
        return run.limits

    def _kill(self, run: Watched, reason: str) -> None:
        run.reason = run.reason or reason
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(run.init_handle, signal.SIGKILL)

    def _look(self) -> None:
        now = time.monotonic()
        used = usage({pid: run.number for run in self.runs.values() for pid in (run.init, run.process)})
        for run in self.runs.values():
            limits, of_run = run.limits, used[run.number]
            run.cpu_s = max(run.cpu_s, of_run.cpu_s)
            if not run.reason:  # of a run that is being killed, only some processes are left
                own = (run.init, run.process)
                run.test_cpu_s = sum(spent for pid, spent in of_run.cpu.items() if pid not in own)
            of_run.held_bytes += run.network.sockets() * self.socket_bytes + run.holdings.bytes_of(of_run)
            memory = memory_of(of_run, limits["memory_bytes"], self.locks.own_resident_bytes)
            run.peak_bytes = max(run.peak_bytes, memory)
            if memory > limits["memory_bytes"]:
                self._kill(run, "memory")
            elif 0 < limits["cpu_s"] < run.cpu_s or 0 < limits["test_cpu_s"] < run.test_cpu_s:  # 0 is no limit
                self._kill(run, "cpu")
            elif now - run.started > limits["wall_s"]:
                self._kill(run, "wall")

    def _report(self, message: dict[str, Any]) -> None:
        try:
            self.channel.send(json.dumps(message).encode())
        except OSError:
            os._exit(1)  # the supervisor is gone; everything inside dies with this process


def _end(init: int, process: int | None = None) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(init, signal.SIGKILL)
    if process is not None:
        os.waitpid(process, 0)  # first: an init is gone only when every process below it is
    os.waitpid(init, 0)
