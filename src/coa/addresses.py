"""Addresses of servers, which may hold a user and a password that must not be shown, and those of the viewer."""

from __future__ import annotations

import base64
import ipaddress
import re
from hashlib import blake2b
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

_WITH_PASSWORD: Final = re.compile(r"""(?i)\b(https?://)[^\s/?#"'<>]*@""")


def public(url: str) -> str:
    """The address without the user and password that it may hold; for settings, names and messages."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def without_passwords(text: str) -> str:
    """A text, such as settings or a command, without the users and passwords in its addresses."""
    return _WITH_PASSWORD.sub(r"\1", text) if "@" in text else text


def basic_auth(url: str) -> tuple[str, tuple[str, ...]]:
    """The `Authorization` header for the user and password in an address, and what of it must not be shown.

    Both are empty if the address holds none.
    """
    given = urlsplit(url).netloc.rpartition("@")[0]
    if not given:
        return "", ()
    user, _, password = (unquote(part) for part in given.partition(":"))
    encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
    short = len(password) < 4  # hiding it would only garble messages
    return f"Basic {encoded}", (given, f"{user}:{password}", encoded, "" if short else password)


def is_host(url: str) -> bool:
    """Whether it names a host, with a valid port if it names one."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def is_private(url: str) -> bool:
    """Whether nobody else can read what is sent there: it is encrypted, or stays on this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


# ---- the viewer

VIEWER_PORT: Final = 8090
"""Where `coa view` listens unless it is given another port. Reports link to it."""


def folder_id(folder: Path) -> str:
    """The id of a run folder in the viewer, at `#/folder/ID`."""
    named = str(folder.resolve()).encode("utf-8", "surrogateescape")
    return blake2b(named, digest_size=6).hexdigest()
