"""Definitions of profiles, by their hash: how a trajectory finds the profile it was made with.

A trajectory names its profile (`profile`) and says which version of it (`profile_hash`). The definition itself is the
profile as JSON text, and its hash is taken over exactly that text. It travels in `profile_definition`, beside the first
record of a JSONL file that needs it and in a column of Parquet. Validating such a record takes the text out and
remembers it here, so whoever reads a record, by whatever reader, knows its profile from then on. Equal definitions have
equal hashes, so it does not matter how often or from how many files one is read.

This is text only. `profile.profile_of` makes a `Profile` of it when one is asked for.
"""

from __future__ import annotations

import hashlib

_texts: dict[str, str] = {}


def remember(text: str) -> str:
    """Keep the definition of a profile for this process; returns its hash."""
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    _texts.setdefault(key, text)
    return key


def definition(key: str | None) -> str | None:
    """The text with this hash, where something that was read or made in this process brought it."""
    return None if key is None else _texts.get(key)
