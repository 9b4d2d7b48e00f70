"""Which addresses may be fetched. Pages, redirects and models name them, so none is trusted.

What counts is the address that a name resolves to: a public name that leads to the private network is judged by the
address of the connection. The connection itself is made by `fetch`, to exactly that address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from yarl import URL

Address = IPv4Address | IPv6Address

PORTS: Final = frozenset({80, 443})
_LONGEST_URL: Final = 4_000

# Listed one by one: what `ipaddress` calls global changed between patch releases of one Python version.
_CLOSED_V4: Final = tuple(
    ip_network(net)
    for net in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
        "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
        "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        "168.63.129.16/32",  # a public number, but inside Azure it is the machine's own configuration service
    )
)  # fmt: skip
_OPEN_V6: Final = ip_network("2000::/3")
_CLOSED_V6: Final = tuple(ip_network(net) for net in ("2001::/23", "2001:db8::/32", "3fff::/20"))
_NAT64: Final = ip_network("64:ff9b::/96")
_NEVER: Final = tuple(
    ip_network(net)
    for net in ("0.0.0.0/8", "100.64.0.0/10", "168.63.129.16/32", "169.254.0.0/16", "224.0.0.0/3", "fe80::/10",
                "fd00:ec2::/32", "ff00::/8", "::/128")
)  # fmt: skip
"""Closed even to a host on the allow-list: a name there may lead to this machine, not to a cloud's metadata."""
_NUMERIC: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_METADATA_NAMES: Final = frozenset({"metadata", "metadata.google.internal", "metadata.goog", "instance-data"})


class Refused(Exception):
    """The address is not one that may be fetched. The message is written for the model to read."""


@dataclass(frozen=True, slots=True)
class AllowList:
    """Hosts and ports in the private network that may be fetched, such as `127.0.0.1:8080` or `world.test:8080`."""

    entries: frozenset[tuple[str, int]] = frozenset()

    @classmethod
    def parse(cls, items: Iterable[str]) -> AllowList:
        return cls(frozenset(_entry(item) for item in items if item.strip()))

    def __contains__(self, place: tuple[str, int]) -> bool:
        return place in self.entries


def _entry(item: str) -> tuple[str, int]:
    with suppress(ValueError):
        url = URL(f"http://{item.strip()}")
        bare = url.path in ("", "/") and not url.query_string and url.user is None
        if url.host and url.explicit_port is not None and bare:
            return url.host.lower().rstrip("."), url.explicit_port
    raise ValueError(f"{item!r} is not of the form host:port")


def check_url(text: str, allowed: AllowList) -> URL:
    """The address as it will be requested. Raises `Refused` with the reason if it may not be."""
    if len(text) > _LONGEST_URL:
        raise Refused(f"the address is longer than {_LONGEST_URL} characters")
    if re.search(r"[\x00-\x20\x7f]", text):
        raise Refused("the address contains blanks or control characters")
    try:
        url = URL(text)
        host, port = url.host, url.port
    except (ValueError, TypeError) as error:
        raise Refused(f"it is not an address that can be read ({error})") from error
    if url.scheme not in ("http", "https"):
        raise Refused("only addresses that begin with http:// or https:// can be opened")
    if not host or port is None:
        raise Refused("the address names no host")
    if url.user is not None or url.password is not None:
        raise Refused("addresses with a user name or password are not opened")
    name = host.lower().rstrip(".")
    if (name, port) not in allowed:
        if port not in PORTS:
            raise Refused(f"port {port} is not opened, only 80 and 443")
        if name in _METADATA_NAMES or name == "localhost" or name.endswith(".localhost"):
            raise Refused(f"{name} is not a public host")
        literal = as_address(name)
        if literal is not None and not is_public(literal):
            raise Refused(f"{name} is not a public address")
        if literal is None and _NUMERIC.fullmatch(name.rpartition(".")[2]):
            raise Refused(f"{name} spells an address in an unusual way")  # 127.1, 2130706433, 0x7f.1
    return url.with_fragment(None)


def check_addresses(host: str, port: int, addresses: Iterable[Address], allowed: AllowList) -> None:
    """Every address is checked, since the connection may go to any of them."""
    opened = (host.lower().rstrip("."), port) in allowed
    for address in addresses:
        if not (may_be_opened(address) if opened else is_public(address)):
            raise Refused(f"{host} does not lead to a public address")


def as_address(text: str) -> Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in net for net in _CLOSED_V4)
    if address.scope_id is not None:
        return False
    inner = _inner(address)
    if inner is not None:
        return is_public(inner)
    return address in _OPEN_V6 and not any(address in net for net in _CLOSED_V6)


def may_be_opened(address: Address) -> bool:
    """Whether the allow-list can open it."""
    inner = _inner(address) if isinstance(address, IPv6Address) else None
    return (inner is None or may_be_opened(inner)) and not any(address in net for net in _NEVER)


def _inner(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that this IPv6 address contains. Teredo is not here: its whole range is closed."""
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour
