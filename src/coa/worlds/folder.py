"""A world on disk: `world.json`, the pages as HTML, the tasks of each split, and the search index."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import orjson
from pydantic import TypeAdapter, ValidationError

from coa.errors import WorldError
from coa.folder import cache_place, lock_file, replacing
from coa.progress import Progress, Silent, part
from coa.tools.index import build as build_index
from coa.tools.index.documents import IndexedDocument
from coa.trajectory import Task
from coa.trajectory.formats.tasks import from_task
from coa.worlds.atlas.entities import CITY, PAPER, Sizes, Split
from coa.worlds.atlas.world import Atlas

NAME: Final = "world.json"
INDEX: Final = "index"
PAGES: Final = "pages"
TASKS: Final = "tasks"
START: Final = "index.html"


@dataclass(frozen=True, slots=True)
class Built:
    """What `world.json` says."""

    world: str
    seed: int
    sizes: Sizes
    hash: str
    pages: int

    def atlas(self) -> Atlas:
        """The world in memory, with the ways to its answers."""
        return Atlas(self.seed, self.sizes)


def world_hash(name: str) -> str:
    """Name and hash of a world, for the record of a run: they do not depend on its folder."""
    found = read(locate(name))
    return f"{found.world} {found.hash}"


def sample_task(name: str, seed: int | None = None) -> Task:
    """One of the world's held-out tasks."""
    return random.Random(seed).choice(read(locate(name)).atlas().tasks(Split.TEST))


def known_answer(name: str, question: str) -> tuple[str, ...]:
    """The right answers to a question that is one of the world's tasks; empty for any other."""
    atlas = read(locate(name)).atlas()
    tasks = (task for split in Split for task in atlas.tasks(split))
    return next((task.answer for task in tasks if task.question == question.strip()), ())


def names_in(name: str, question: str) -> list[str]:
    """The pages of the world that a text names."""
    text = question.casefold()
    pages = read(locate(name)).atlas().pages.values()
    return [page.name for page in pages if re.search(rf"\b{re.escape(page.name.casefold())}\b", text)]


def build(atlas: Atlas, out: str | Path, *, force: bool = False, progress: Progress | None = None) -> Built:
    """Write a world, completely or not at all."""
    with lock_file(out):
        return _build(atlas, Path(out), force, progress or Silent())


def _build(atlas: Atlas, out: Path, force: bool, progress: Progress) -> Built:
    if out.exists():
        if not out.is_dir() or (not (out / NAME).is_file() and any(out.iterdir())):
            raise WorldError(f"{out} exists and is not a world", hint="choose another --out")
        if not force:
            if (out / NAME).is_file() and read(out).hash == atlas.hash:
                return read(out)
            raise WorldError(f"{out} holds another world", hint="add --force to replace it, or choose another --out")
    with replacing(out) as folder:
        _write(atlas, folder, progress)
    return read(out)


def _write(atlas: Atlas, folder: Path, progress: Progress) -> None:
    with part(progress, "pages written", len(atlas.html)):
        for number, (address, text) in enumerate(atlas.html.items(), start=1):
            progress.update(number)
            path = folder / PAGES / (f"{address}.html" if address else START)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    (folder / TASKS).mkdir()
    for split in Split:
        rows = b"".join(orjson.dumps(from_task(task)) + b"\n" for task in atlas.tasks(split))
        (folder / TASKS / f"{split}.jsonl").write_bytes(rows)
    build_index(_documents(atlas), folder / INDEX, language="none", memory_bytes=64 << 20, progress=progress)
    about = asdict(Built(atlas.name, atlas.seed, atlas.sizes, atlas.hash, len(atlas.pages)))
    (folder / NAME).write_bytes(orjson.dumps(about, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _documents(atlas: Atlas) -> Iterator[IndexedDocument]:
    """A page is found by its name and its kind. No fact is in the index, so no snippet can give one away."""
    for page in atlas.pages.values():
        if page.indexed:
            # A newspaper is about a city, so a search for the city finds it second.
            kind = f"{CITY} {page.kind}" if page.kind == PAPER else page.kind
            yield IndexedDocument(page.address, page.name, kind, page.address)


def read(folder: str | Path) -> Built:
    path = Path(folder) / NAME
    try:
        return TypeAdapter(Built).validate_python(orjson.loads(path.read_bytes()))
    except OSError as error:
        raise WorldError(f"there is no world in {folder}", hint=f"coa world build --out {folder}") from error
    except (orjson.JSONDecodeError, ValidationError) as error:
        raise WorldError(f"{path} does not describe a world", hint="build it again with --force") from error


def check_world(name: str | None) -> None:
    """Refuse a world that `locate` would refuse; one that has a name need not be built yet."""
    if name is not None:
        _found(name)


def _found(name_or_folder: str | Path) -> Path | Atlas:
    """The folder of a world, or the world of that name."""
    text = str(name_or_folder)
    name, colon, seed = text.partition(":")
    if name != Atlas.name or (not colon and Path(text).is_dir()):
        if not Path(text).is_dir():
            hint = "use atlas, atlas:SEED, or a folder of coa world build"
            raise WorldError(f"there is no world {text!r}", hint=hint)
        read(text)
        return Path(text)
    if colon and not seed.isdecimal():
        raise WorldError(f"{text!r} has no seed", hint="write for instance atlas:7")
    return Atlas(int(seed)) if colon else Atlas()


def locate(name_or_folder: str | Path) -> Path:
    """A world's folder: the one given, or that of a world by name (`atlas`, `atlas:SEED`), built if necessary."""
    atlas = _found(name_or_folder)
    if isinstance(atlas, Path):
        return atlas
    folder = cache_place("worlds", f"{atlas.name}-{atlas.seed}-{atlas.hash[:12]}")
    if not (folder / NAME).is_file():
        with lock_file(folder, wait=True):  # several processes may want it for the first time; one of them builds it
            _build(atlas, folder, False, Silent())
    return folder
