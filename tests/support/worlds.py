"""A small atlas on disk, for tests."""

from __future__ import annotations

from pathlib import Path

from coa.worlds.atlas import Atlas, Sizes
from coa.worlds.folder import build

SMALL = Sizes(cities=40, people=60, firms=20, train=40, rl=20, test=40)


def small_world(out: Path, seed: int = 7) -> Path:
    build(Atlas(seed, SMALL), out)
    return out
