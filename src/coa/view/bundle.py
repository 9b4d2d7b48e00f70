"""The viewer as a folder of plain files, for any web server: the same page, with every answer of the API in a file.

What takes a query under a server (the list, a comparison of folders) the page computes itself from `api/rows-N.json`
and `api/text-N.json`. Settings and runs are published as they are in the files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import orjson

from coa.errors import CoaError, StoreError
from coa.folder import replacing
from coa.progress import Progress, Silent, part
from coa.trajectory.types import Author
from coa.view.as_json import as_json
from coa.view.indexer import update_index
from coa.view.places import existing, index_file
from coa.view.queries import MOST_ROWS, Row
from coa.view.reading import Reader
from coa.web.pages import rendered, static_files

log = logging.getLogger(__name__)
ROWS_PER_FILE: Final = 500
_FINDINGS: Final = 5_000


def write_bundle(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    cache: str | Path | None = None,
    tokenizer: str | None = None,
    progress: Progress | None = None,
) -> int:
    """Write the viewer and its data as static files, for any web server.

    Args:
        paths: Files and folders to show.
        out: Folder to write. An earlier bundle there is replaced when the new one is complete.
        cache: Folder of the index. Default: a folder in the user's cache.
        tokenizer: Tokenizer for the text of runs that have no sampled ids.
        progress: Shows how far the work is.

    Returns:
        The number of runs in the bundle.

    Raises:
        CoaError: A path does not exist, or `out` holds something else than a bundle.
    """
    roots, out, progress = existing(paths), Path(out), progress or Silent()
    index = index_file(roots, cache)
    _refuse_other_content(out)
    with part(progress, "indexing"):
        update_index(index, roots)
    reader = Reader(index, [root.resolve().name for root in roots], tokenizer=tokenizer)
    try:
        with replacing(out) as folder:
            count = _write(reader, folder, progress)
            is_empty = not count and not reader.overview()["folders"]
    finally:
        reader.close()
    if is_empty:
        log.warning("nothing was found in %s; the bundle is empty", ", ".join(map(str, roots)))
    return count


def _refuse_other_content(out: Path) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        if orjson.loads((out / "api" / "index.json").read_bytes())["bundle"] is True:
            return
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        pass
    raise StoreError(
        f"{out} holds something that is not a bundle of the viewer", hint="choose another folder for --bundle"
    )


def _write(reader: Reader, folder: Path, progress: Progress) -> int:
    for name, body in static_files().items():
        _put(folder / "static" / name, body)
    _put(folder / "index.html", rendered("view.html", name="view", script="view.js").encode())
    overview, api = reader.overview(), folder / "api"
    total = int(overview["progress"]["runs"])
    files = 0
    with part(progress, "writing runs", total):
        rows = _all_rows(reader)
        while some := list(islice(rows, ROWS_PER_FILE)):
            _put_json(api / f"rows-{files}.json", some)
            _put_json(api / f"text-{files}.json", [_write_run(reader, api, row) for row in some])
            files += 1
            progress.update(min(files * ROWS_PER_FILE, total))
    for row in overview["folders"]:
        _write_folder(reader, api, row["id"])
    _put_json(api / "findings.json", _all_findings(reader))
    _put_json(api / "problems.json", reader.problems())
    _put_json(api / "index.json", {**overview, "bundle": True, "row_files": files})
    return total


def _all_rows(reader: Reader) -> Iterator[Row]:
    offset = 0
    while True:
        page = reader.runs({"limit": str(MOST_ROWS), "offset": str(offset)})
        rows = [row for row in page["rows"] if row["kind"] != "live"]
        yield from rows
        offset += MOST_ROWS
        if offset >= page["total"]:
            return


def _write_run(reader: Reader, api: Path, row: Row) -> list[object]:
    """The files of a run; returns what a search looks through."""
    run = row["id"]
    try:
        _put_json(api / "runs" / f"{run}.json", reader.run(run))
        _put_json(api / "runs" / run / "tokens.json", reader.tokens(run))
        _put_json(api / "runs" / run / "raw.json", reader.raw(run))
        record = reader.texts(run)
    except CoaError as error:
        log.warning("the run %s is left out: %s", row["task"], error.message)
        return [run, "\n".join((row["question"], row["expected"], row["task"])), [], []]
    steps = [[at, step["agent"], step["text"]] for at, step in enumerate(record["steps"]) if not _observed(step)]
    observed = [[at, step["agent"], step["text"]] for at, step in enumerate(record["steps"]) if _observed(step)]
    return [run, "\n".join((record["task"]["question"], row["expected"], row["task"])), steps, observed]


def _observed(step: Mapping[str, Any]) -> bool:
    return step.get("author") == Author.ENVIRONMENT


def _write_folder(reader: Reader, api: Path, folder: str) -> None:
    _put_json(api / "folders" / f"{folder}.json", reader.folder(folder))
    for step in reader.rl_steps(folder):
        _put_json(api / "folders" / folder / "steps" / f"{step}.json", reader.step(folder, step))


def _all_findings(reader: Reader) -> dict[str, Any]:
    """As many as a page can hold. The counts are of all."""
    found = reader.findings({})
    while len(found["findings"]) < min(found["total"], _FINDINGS):
        more = reader.findings({"offset": str(len(found["findings"]))})["findings"]
        if not more:
            break
        found["findings"] += more
    return found


def _put_json(path: Path, value: object) -> None:
    _put(path, as_json(value))


def _put(path: Path, body: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
