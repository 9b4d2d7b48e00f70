"""Which of several folders are shards of one evaluation, and so add up to one run.

The `config.json` of a shard says which part of the tasks it holds and with which settings they were run. So readers
that take several folders (`coa compare`, `coa cost`, `coa eval merge`) find out which of them belong together.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import orjson

from coa.errors import EvaluationError
from coa.folder import CONFIG, read_config
from coa.report import plural
from coa.shard import Shard

_SIZE: Final = ("limit", "samples", "ks")
"""Settings that decide how much of a benchmark is covered: folders that differ only in these are still shards of one
evaluation, but cannot be added up."""
_OWN: Final = ("shard", "versions", "notices")
"""What a shard has for itself."""


@dataclass(frozen=True, slots=True)
class Side:
    """One run to read: a file, a folder, or the folders of some shards."""

    name: str
    paths: tuple[Path, ...]
    shards: tuple[Shard, ...] = ()
    """The shard of each folder; empty for a run that is not divided."""

    @property
    def missing(self) -> list[Shard]:
        """Shards of the same run that are not here."""
        count = self.shards[0].count if self.shards else 0
        return [shard for index in range(1, count + 1) if (shard := Shard(index, count)) not in self.shards]

    def missing_note(self) -> str:
        """Says which shards are missing; empty if none is."""
        if not (missing := self.missing):
            return ""
        named = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        return f"{plural(len(missing), 'shard is', 'shards are')} missing: {named}"


def sides_of(paths: Sequence[str | Path]) -> list[Side]:
    """The runs that these files and folders are, shards added up, in the order in which they were given."""
    groups: dict[bytes, list[tuple[Path, Shard | None]]] = {}
    for path in (part for given in paths for part in parts_of(Path(given))):
        shard = shard_of(path)
        key = orjson.dumps([identity(config) for config in _configs(path)]) if shard else os.fsencode(path)
        groups.setdefault(key, []).append((path, shard))
    return [_side(group) for group in groups.values()]


def shard_of(path: Path) -> Shard | None:
    """The shard that a folder of one or more evaluations holds; None for whole ones and other things."""
    found = {_shard(config) for config in _configs(path)}
    return found.pop() if len(found) == 1 else None


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the shards of one evaluation have in common, by name in alphabetical order."""
    benchmark = config.get("benchmark")
    known = {name: benchmark.get(name) for name in ("name", "sha256")} if isinstance(benchmark, Mapping) else benchmark
    same = {name: config[name] for name in sorted(config) if name not in (*_OWN, *_SIZE)}
    return {**same, "benchmark": known}


def parts_of(path: Path) -> Iterator[Path]:
    """A folder that holds the folders of shards stands for these."""
    inside = sorted(child for child in path.iterdir() if child.is_dir()) if path.is_dir() else []
    shards = [child for child in inside if shard_of(child) is not None]
    if not (path / CONFIG).is_file() and len({shard_of(child) for child in shards}) > 1:
        yield from shards
    else:
        yield path


def _configs(path: Path) -> list[dict[str, Any]]:
    """Of the evaluation in a folder, or of those of several benchmarks inside it."""
    if not path.is_dir():
        return []
    own = read_config(path)
    found = [own] if own is not None else [read_config(child) for child in sorted(path.iterdir()) if child.is_dir()]
    return [config for config in found if config is not None and config.get("stage") == "eval"]


def _shard(config: Mapping[str, Any]) -> Shard | None:
    known = config.get("shard")
    return Shard.parse(known["part"]) if isinstance(known, Mapping) else None


def _side(group: Sequence[tuple[Path, Shard | None]]) -> Side:
    paths, shards = tuple(path for path, _ in group), tuple(shard for _, shard in group if shard is not None)
    for at, shard in enumerate(shards):
        if shard.count != shards[0].count:
            raise EvaluationError(
                f"{paths[at]} is the shard {shard} and {paths[0]} the shard {shards[0]} of the same evaluation",
                hint="take shards of one division",
            )
        if (first := shards.index(shard)) < at:
            raise EvaluationError(
                f"{paths[first]} and {paths[at]} are both the shard {shard} of the same evaluation",
                hint="leave one of them out; to compare two evaluations with equal settings, join the shards of each "
                "first: coa eval merge",
            )
        _refuse_other_size(paths[0], paths[at])
    return Side(_name(paths), paths, shards)


def _refuse_other_size(first: Path, other: Path) -> None:
    for one, two in zip(_configs(first), _configs(other), strict=True):  # they are of the same benchmarks
        if different := [name for name in _SIZE if one.get(name) != two.get(name)]:
            name = different[0]
            raise EvaluationError(
                f"{first} and {other} are shards of one evaluation, but {name} is {one.get(name)} in one and "
                f"{two.get(name)} in the other",
                hint=f"run the smaller one again with the same {name}",
            )


def _name(paths: Sequence[Path]) -> str:
    """What the names of the folders have in common, such as `gaia` for gaia-1 and gaia-2."""
    names = [path.resolve().stem if path.is_file() else path.resolve().name for path in paths]
    if len(set(names)) == 1:
        return names[0]
    parents = {path.resolve().parent.name for path in paths}
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    common = "".join(letters[0] for letters in same).rstrip("-_.")
    return common or (parents.pop() if len(parents) == 1 else names[0])
