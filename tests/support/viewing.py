"""The viewer in a browser: opened over folders, indexed, and every view of it by its address."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from coa.view.server import Viewer, open_viewer
from support.browsing import Visitor

_PATIENCE_S = 120


@contextmanager
def viewed(visitor: Visitor, *roots: Path, cache: Path) -> Iterator[Viewer]:
    """A viewer with its index complete. The visitor leaves before it stops; an open page would complain about that."""
    with open_viewer(list(roots), port=0, cache=cache) as viewer:
        until = time.monotonic() + _PATIENCE_S
        while not _is_complete(viewer):
            assert time.monotonic() < until, "the index is not complete"
            time.sleep(0.1)
        try:
            yield viewer
        finally:
            visitor.leave()


def _is_complete(viewer: Viewer) -> bool:
    index = asked(viewer, "api/index.json")
    return not index["progress"].get("busy", True) and index["scanned"] >= asked(viewer, "api/runs.json")["total"]


def asked(viewer: Viewer, path: str) -> Any:
    with urlopen(f"{viewer.url}/{path}", timeout=60) as answer:
        return json.load(answer)


def views(viewer: Viewer) -> dict[str, str]:
    """The address of every view, by a name for people: of runs, one of each kind and outcome; every folder."""
    found = {"list": "#/runs", "search": "#/runs?q=ada", "folders": "#/folders", "findings": "#/findings",
             "problems": "#/problems"}  # fmt: skip
    for row in asked(viewer, "api/runs.json?limit=500")["rows"]:
        found.setdefault(f"run {row['kind']} {row['outcome']}", f"#/run/{row['id']}?step=3")
        if row["kind"] == "trajectory" and row["outcome"] == "right":
            for overlay in ("mask", "logprobs"):
                found.setdefault(overlay, f"#/run/{row['id']}?overlay={overlay}")
    folders = asked(viewer, "api/index.json")["folders"]
    for number, folder in enumerate(folders):
        found[f"folder {folder['kind']} {number}"] = f"#/folder/{folder['id']}"
        if folder["kind"] == "rl":
            found["step of RL"] = f"#/folder/{folder['id']}/step/1"
    compared = [folder["id"] for folder in folders if folder["kind"] == "eval"]
    if len(compared) >= 2:
        found["compare"] = f"#/compare?folders={','.join(compared)}"
        sides = [asked(viewer, f"api/runs.json?folder={folder}&limit=1")["rows"][0]["id"] for folder in compared[:2]]
        found["compare runs"] = f"#/compare/runs?left={sides[0]}&right={sides[1]}"
    return found
