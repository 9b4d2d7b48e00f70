"""`python -m support.attack_driver [back-end]`: every attack on a real sandbox, and what came of each as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from coa.sandbox import ProgramLimits, open_sandbox
from support.attacks import ATTACKS

LIMITS = ProgramLimits(wall_s=5, cpu_s=3, memory_mb=1024, disk_mb=64, processes=64, output_bytes=1 << 20)
HARMLESS = (
    "read a world-readable file of the host",
    "read a file only its owner may read",
    "read the environment",
    "read the environment of other processes",
    "see processes of the host",
    "connect to a server on the host's loopback",
    "connect to an abstract socket of the host",
    "connect to a socket file of the host",
    "find a way outside",
    "have or regain capabilities",
    "watch what the host does with its files",
    "read what the kernel says about the machine",
)
"""Attacks that only look, so that they can be tried without a sandbox to see that they work."""


@dataclass(frozen=True)
class Outside:
    """What there is to be got at."""

    folder: Path
    bystander: subprocess.Popen[bytes]
    names: dict[str, object]

    def fill(self, code: str) -> str:
        for key, value in self.names.items():
            code = code.replace(f"{{{key}!r}}", repr(value)).replace(f"{{{key}}}", str(value))
        return code


@contextmanager
def prepared() -> Iterator[Outside]:
    """Files, listening sockets, a process and a secret of the host."""
    secret = "coa-" + secrets.token_hex(16)
    with ExitStack() as stack:
        os.environ["COA_ATTACK_SECRET"] = secret
        stack.callback(os.environ.pop, "COA_ATTACK_SECRET")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        for name, mode in (("readable", 0o644), ("private", 0o600)):
            (folder / name).write_text(secret)
            (folder / name).chmod(mode)
        bystander = subprocess.Popen(["sleep", "600"])
        stack.callback(bystander.wait)
        stack.callback(bystander.kill)
        abstract = f"coa-attack-{os.getpid()}"
        addresses = (
            (socket.AF_INET, ("127.0.0.1", 0)),
            (socket.AF_UNIX, "\0" + abstract),
            (socket.AF_UNIX, str(folder / "socket")),
        )
        servers = []
        for family, address in addresses:
            server = stack.enter_context(socket.socket(family))
            server.bind(address)
            server.listen()
            servers.append(server)
        names = {
            "readable": str(folder / "readable"),
            "private": str(folder / "private"),
            "folder": str(folder),
            "secret": secret,
            # In two parts, or the attack would find its own source.
            "first_half": secret[:10],
            "second_half": secret[10:],
            "host_pid": bystander.pid,
            "port": servers[0].getsockname()[1],
            "abstract": abstract,
            "socket_file": str(folder / "socket"),
        }
        yield Outside(folder, bystander, names)


async def attack_all(kind: str) -> list[dict[str, object]]:
    reports: list[dict[str, object]] = []
    with prepared() as outside:
        sandbox = await open_sandbox(kind, limits=LIMITS)
        try:
            for attack in ATTACKS:
                if attack.only_x86_64 and platform.machine() != "x86_64":
                    continue
                began = time.monotonic()
                limits = LIMITS
                if attack.memory_mb is not None:  # they are ended as soon as they hold too much
                    limits = replace(LIMITS, memory_mb=attack.memory_mb, wall_s=60, cpu_s=60)
                result = await sandbox.run(outside.fill(attack.code), limits=limits)
                reports.append(
                    {
                        "attack": attack.name,
                        "verdict": result.verdict.value,
                        "escaped": "ESCAPED" in result.text,
                        "said": (result.text + result.error_text)[-300:],
                        "note": result.note,
                        "seconds": time.monotonic() - began,
                        "bystander_lives": outside.bystander.poll() is None,
                        "files": sorted(os.listdir(outside.folder)),
                    }
                )
        finally:
            await sandbox.close()
    return reports


if __name__ == "__main__":
    print(json.dumps(asyncio.run(attack_all(sys.argv[1] if len(sys.argv) > 1 else "auto"))))
