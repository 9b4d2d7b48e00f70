"""Files of trajectories: JSONL, to append to during a run, and Parquet, to keep. Both are read as a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from coa.errors import StoreError, nothing_at
from coa.trajectory.store.jsonl import JsonlWriter, Lines, parsed, read_jsonl, rewrite, set_aside
from coa.trajectory.store.parquet import ParquetWriter, from_row, is_trajectory_parquet, read_parquet
from coa.trajectory.types import Trajectory

NAMES = ("trajectories.jsonl", "trajectories.parquet")
"""Names of the trajectory file in a run folder."""

OWN_FILES = frozenset({"config.json", "demo.json", "report.json", "metrics.jsonl", "findings.jsonl"})
"""Files that commands write beside trajectories and traces."""


def is_twin(file: Path) -> bool:
    """Whether the run folder has the same trajectories as JSONL, so that this file can be ignored."""
    return file.name == NAMES[1] and (file.parent / NAMES[0]).is_file()


def find(path: str | Path) -> Path:
    """The trajectory file at a path: the file itself, or the one inside a run folder."""
    path = Path(path)
    if path.is_dir():
        for name in NAMES:
            if (path / name).is_file():
                return path / name
        raise StoreError(
            f"the folder {path} holds neither {NAMES[0]} nor {NAMES[1]}", hint="give the folder of a run, or a file"
        )
    if not path.is_file():
        raise nothing_at(path, "file")
    return path


def to_append(out: str | Path) -> Path:
    """The file that runs are appended to: a .jsonl file itself, or the one inside a run folder."""
    out = Path(out)
    if out.suffix == ".parquet":
        raise StoreError(f"{out}: runs are appended to .jsonl", hint="coa export makes Parquet of it afterwards")
    return out if out.suffix == ".jsonl" else out / NAMES[0]


def read(path: str | Path) -> Iterator[Trajectory]:
    """Iterate over the trajectories of a JSONL or Parquet file or of a run folder.

    Raises:
        StoreError: The path does not exist, or a record cannot be read.
    """
    path = find(path)
    return read_parquet(path) if path.suffix == ".parquet" else read_jsonl(path)


def writer(path: str | Path) -> JsonlWriter | ParquetWriter:
    """Open a file to write trajectories one by one, in a `with` block.

    JSONL is appended to, Parquet is replaced at the end.
    """
    path = Path(path)
    if path.suffix not in (".jsonl", ".parquet"):
        raise StoreError(f"{path}: trajectories can be written to .jsonl or .parquet")
    return ParquetWriter(path) if path.suffix == ".parquet" else JsonlWriter(path)


def write(path: str | Path, trajectories: Iterable[Trajectory]) -> int:
    """Write trajectories to a file, and return their number. JSONL is appended to, Parquet is replaced.

    Raises:
        StoreError: The file cannot be written.
    """
    count = 0
    with writer(path) as out:
        for trajectory in trajectories:
            out.write(trajectory)
            count += 1
    return count


__all__ = [
    "NAMES", "OWN_FILES", "JsonlWriter", "Lines", "ParquetWriter", "find", "from_row", "is_trajectory_parquet",
    "is_twin", "parsed", "read", "rewrite", "set_aside", "to_append", "write",
    "writer",
]  # fmt: skip
