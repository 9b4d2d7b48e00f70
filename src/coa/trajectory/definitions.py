"""Definitions of profiles, by their hash: how a trajectory finds the profile it was made with.

A trajectory has the name of its profile (`profile`) and the hash of its version (`profile_hash`). The definition is the
profile as JSON text, and the hash is computed from exactly that text. Files contain it as `profile_definition`: in the
first record of a JSONL file that needs it, and in a column of Parquet. Validating such a record takes the text out and
stores it here, so after a record has been read, by any reader, its profile is known. Equal definitions have equal
hashes, so it does not matter how often or from how many files one is read.

This module stores text only. `profile.profile_of` makes a `Profile` of it on demand.
"""

from __future__ import annotations

import hashlib

_texts: dict[str, str] = {}


def remember(text: str) -> str:
    """Store the definition of a profile for this process, and return its hash."""
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    _texts.setdefault(key, text)
    return key


def definition(key: str | None) -> str | None:
    """The text with this hash, if a record or profile with it was read or made in this process."""
    return None if key is None else _texts.get(key)
