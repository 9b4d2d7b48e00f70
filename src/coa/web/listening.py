"""Where a server of ours listens: sockets, loopback addresses, and the names in `Host` headers."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

from coa.errors import ConfigError, refused

_BACKLOG: Final = 2048


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on the address; port 0 takes a free one. Raises `ConfigError` if it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle's algorithm off, which would hold events back for 40 ms.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(_BACKLOG)  # two processes may bind the same port, but only one can listen on it
    except OSError as error:
        found.close()
        raise refused(f"listen on {host}:{port}", error, ConfigError) from error
    return found


def free_port(host: str, wanted: int) -> int:
    """The port if nobody listens on it, else 0, for which the system chooses one."""
    try:
        listen(host, wanted).close()
    except ConfigError:
        return 0
    return wanted


def address(host: str, listening: socket.socket) -> str:
    """The URL at which this machine reaches a socket."""
    shown = "127.0.0.1" if host == "0.0.0.0" else "[::1]" if host == "::" else f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listening.getsockname()[1]}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(header: str) -> str:
    """The host of a `Host` header, without its port."""
    return (header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]).lower()
