"""Runs that are going on in other processes: rows on top of the list, and pages that grow."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple, cast

import orjson

from coa.runtime.live import LiveRun, live_state, live_trajectory, read_live
from coa.view.queries import ROW_NAMES, Row
from coa.view.readers import Opened
from coa.view.records import RecordView, trajectory_view
from coa.view.rows import indexed_row

_AGE_S: Final = 0.3
"""Time for which nobody looks again: every open page asks twice a second."""
_HELD_S: Final = 3.0
"""Time after which an unchanged feed is read again: its writer may have been killed."""
_OTHER_FILTERS: Final = ("sort", "offset", "limit")
RUNNING: Final = "running"

_REMEMBERED: Final = 1000
_State = tuple[tuple[str, int, int], ...]


class EndedRun(NamedTuple):
    folder: str
    task: str
    sample: int


class LiveRuns:
    """The running chains of the folders that the viewer shows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looked = -_AGE_S
        self._changes = 0
        self._states: dict[str, _State] = {}
        self._runs: dict[str, dict[str, tuple[LiveRun, Row]]] = {}
        """Of each folder, by the id of the run."""
        self._read: dict[str, float] = {}
        self._ended: dict[str, EndedRun] = {}

    def look(self, folders: Mapping[str, tuple[str, Path]]) -> int:
        """Look for running chains in these folders (by id: how each is shown, and where it is).

        The number that it returns changes whenever one went on.
        """
        with self._lock:
            now = time.monotonic()
            if now - self._looked < _AGE_S:
                return self._changes
            self._looked = now
            for uid, (shown, path) in folders.items():
                state = live_state(path)
                if state == self._states.get(uid, ()) and (not state or now - self._read[uid] < _HELD_S):
                    continue
                found = {_id(run): (run, _row(run, uid, shown)) for run in read_live(path)}
                self._changes += state != self._states.get(uid, ()) or set(found) != set(self._runs[uid])
                for ended in set(self._runs.get(uid, ())) - set(found):
                    run = self._runs[uid][ended][0]
                    self._ended[ended] = EndedRun(uid, run.task.id, run.sample)
                self._states[uid], self._read[uid], self._runs[uid] = state, now, found
            while len(self._ended) > _REMEMBERED:
                del self._ended[next(iter(self._ended))]
            return self._changes

    def folders(self) -> set[str]:
        return {uid for uid, runs in self._runs.items() if runs}

    def rows(self, query: Mapping[str, str]) -> list[Row]:
        """Those that the filters of the list let pass. Most filters are about runs that are over."""
        asked = {name: value for name, value in query.items() if name not in _OTHER_FILTERS}
        folder, outcome = asked.pop("folder", None), asked.pop("outcome", RUNNING)
        if asked or RUNNING not in outcome.split(","):
            return []
        found = [row for uid, runs in self._runs.items() if folder in (None, uid) for _, row in runs.values()]
        return sorted(found, key=lambda row: (row["path"], row["task"], row["sample"]))

    def ended(self, uid: str) -> EndedRun | None:
        """Where a run that was running a while ago is now."""
        return self._ended.get(uid)

    def record(self, uid: str) -> RecordView | None:
        for runs in self._runs.values():
            if uid in runs:
                run, row = runs[uid]
                return trajectory_view(row, Opened(live_trajectory(run)), running=True)
        return None


def _id(run: LiveRun) -> str:
    return f"live-{blake2b(run.key.encode(), digest_size=8).hexdigest()}"


def _row(run: LiveRun, folder: str, shown: str) -> Row:
    values, texts, _ = indexed_row(orjson.loads(live_trajectory(run).to_json()))
    row = {
        **values._asdict(), **texts._asdict(), "id": _id(run), "folder": folder, "path": shown, "kind": "live",
        "outcome": RUNNING, "stop": "", "step": None, "group": None, "agents": list(texts.agents),
        "seconds": max(time.time() - run.began, 0.0),
    }  # fmt: skip
    return cast(Row, {name: row[name] for name in ROW_NAMES})
