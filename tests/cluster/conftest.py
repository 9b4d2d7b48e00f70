"""Tests on Ray, and of the verl engine. They need an environment of their own: `make test-verl`."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("verl") is None or find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]
