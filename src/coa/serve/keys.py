"""The keys that clients send as `Authorization: Bearer KEY`.

Keys come from an environment variable (`alice:KEY1,KEY2`) or from a file of hashed keys that `add_key` writes. A key is
a long random string, so nobody can guess it from its hash; one salted BLAKE2b is therefore enough, and costs a
microsecond where a password hash would cost a tenth of a second with every request. The file is read again when it
changes: to revoke a key, delete its line.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from coa.errors import ConfigError, StoreError
from coa.folder import lock_file, replacing
from coa.serve.caller import Caller
from coa.serve.config import KEYS_ENV, ServeConfig

log = logging.getLogger(__name__)
MIN_LENGTH: Final = 16
"""Of a key that a person chose. Those of `add_key` have 256 random bits."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LINE: Final = re.compile(r"(\S+)\s+blake2b:([0-9a-f]{32}):([0-9a-f]{64})")
_NAMES: Final = "use up to 64 letters, digits and . _ -"
_NEW_KEY: Final = "make one: coa serve --add-key NAME --keys-file FILE"
_NEVER_READ: Final = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class HashedKey:
    name: str
    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, name: str, key: str) -> HashedKey:
        salt = secrets.token_bytes(16)
        return cls(name, salt, _digest(key, salt))

    def fits(self, key: str) -> bool:
        return hmac.compare_digest(self.digest, _digest(key, self.salt))

    def line(self) -> str:
        return f"{self.name} blake2b:{self.salt.hex()}:{self.digest.hex()}\n"


class Keys:
    """All keys that a server accepts. Without any, everybody may call it, as the caller with the empty name."""

    def __init__(self, given: str = "", file: Path | None = None, *, source: str = KEYS_ENV) -> None:
        """`given` is the value of the environment variable `source`."""
        self._given = _parse_given(given, source)
        self._file = file
        self._version = _NEVER_READ
        self._filed: Sequence[HashedKey] = ()
        self._recent: dict[bytes, Caller] = {}
        self._secret = secrets.token_bytes(32)
        if file is not None:
            self._version = _version(file)
            self._filed, problems = _read(file)
            if problems:
                raise StoreError(problems[0], hint=f"delete the line, and {_NEW_KEY.replace('FILE', str(file))}")
            if twice := {key.name for key in self._given} & {key.name for key in self._filed}:
                raise ConfigError(
                    f"the key {min(twice)!r} is both in {source} and in {file}", hint="rename one of them"
                )

    @classmethod
    def of(cls, config: ServeConfig) -> Keys:
        """The keys of the environment and of the file that the settings name."""
        return cls(os.environ.get(config.keys_env, ""), config.keys_file, source=config.keys_env)

    @property
    def required(self) -> bool:
        """Whether a request needs a key. A file of keys, even an empty one, closes the server to everybody else."""
        return bool(self._given) or self._file is not None

    def check(self, authorization: str | None) -> Caller | None:
        """Who sends a request with this `Authorization` header; None if it must be refused."""
        if not self.required:
            return Caller("")
        scheme, _, key = (authorization or "").partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not key or not key.isascii():
            return None
        if self._file is not None:
            self._reread(self._file)
        # Keys that fitted are remembered under a hash that only this process can compute, so that a server with a
        # thousand keys does not try them all with every request.
        seen = blake2b(key.encode(), key=self._secret, digest_size=32).digest()
        if seen not in self._recent:
            found = [known.name for known in (*self._given, *self._filed) if known.fits(key)]
            if not found:
                return None
            self._recent[seen] = Caller(found[0])
        return self._recent[seen]

    def _reread(self, file: Path) -> None:
        """Read the file again if it has changed. What cannot be read admits nobody."""
        version = _version(file)
        if version == self._version:
            return
        self._version, self._filed = version, ()
        self._recent.clear()
        try:
            self._filed, problems = _read(file)
        except StoreError as error:
            problems = [error.message]
        for problem in problems:
            log.error("%s; it admits nobody", problem)


def add_key(file: str | Path, name: str) -> str:
    """Add a new key to a file of hashed keys, and return it. It is written nowhere else and cannot be shown again."""
    file = Path(file)
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot be the name of a key", hint=_NAMES)
    with lock_file(file, wait=True):
        known: Sequence[HashedKey] = ()
        text = ""
        if file.exists():
            known, problems = _read(file)
            if problems:
                raise StoreError(problems[0], hint="delete the line or choose another file")
            text = file.read_text(encoding="utf-8")
        if any(key.name == name for key in known):
            raise ConfigError(
                f"{file} already has a key named {name!r}",
                hint="choose another name, or delete its line to revoke it",
            )
        key = f"coa_{secrets.token_urlsafe(32)}"
        if text and not text.endswith("\n"):
            text += "\n"
        with replacing(file) as part:
            part.touch(mode=0o600, exist_ok=False)
            part.write_text(text + HashedKey.of(name, key).line(), encoding="utf-8")
    return key


def _parse_given(text: str, source: str) -> tuple[HashedKey, ...]:
    made: dict[str, HashedKey] = {}
    for number, entry in enumerate(filter(None, (part.strip() for part in text.split(","))), 1):
        name, colon, key = entry.rpartition(":")
        # Stored responses belong to a name. That of a key without one must not depend on its place in the list.
        name = name if colon else f"key-{blake2b(key.encode(), digest_size=6, person=b'coa.serve.name').hexdigest()}"
        what = f"key {number} in {source}"
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{what} has a name that cannot be used", hint=f"write NAME:KEY; {_NAMES}")
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError(f"{what} has characters that no header can carry", hint=_NEW_KEY)
        if len(key) < MIN_LENGTH:
            raise ConfigError(f"{what} has fewer than {MIN_LENGTH} characters and could be guessed", hint=_NEW_KEY)
        if name in made:
            raise ConfigError(f"{what} has the name or the value of an earlier one", hint="give each key its own name")
        made[name] = HashedKey.of(name, key)
    return tuple(made.values())


def _read(file: Path) -> tuple[tuple[HashedKey, ...], list[str]]:
    """The keys of a file, and what is wrong with its other lines."""
    try:
        text = file.read_text(encoding="utf-8")
        mode = file.stat().st_mode
    except FileNotFoundError:
        raise StoreError(f"there is no file of keys {file}", hint=_NEW_KEY.replace("FILE", str(file))) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise StoreError(f"cannot read the keys in {file}: {reason}", hint="check the setting keys_file") from error
    if mode & stat.S_IWOTH:
        raise StoreError(f"everybody on this machine may write {file} and add a key", hint=f"chmod 600 {file}")
    found: dict[str, HashedKey] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None or not _NAME.fullmatch(match[1]):
            problems.append(f"line {number} of {file} is not a hashed key")
        elif match[1] in found:
            problems.append(f"line {number} of {file} has the name of an earlier key, {match[1]!r}")
        else:
            found[match[1]] = HashedKey(match[1], bytes.fromhex(match[2]), bytes.fromhex(match[3]))
    return tuple(found.values()), problems


def _version(file: Path) -> tuple[int, int, int]:
    """Changes whenever the file does."""
    try:
        status = file.stat()
    except OSError:
        return _NEVER_READ
    return status.st_ino, status.st_mtime_ns, status.st_size


def _digest(key: str, salt: bytes) -> bytes:
    return blake2b(key.encode(), salt=salt, digest_size=32).digest()
