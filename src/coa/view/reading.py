"""What the pages of one index ask for, as JSON: the functions behind every address of the API, without HTTP.

The server calls them in threads, each with its own connection; a bundle calls them once for everything.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict

from coa.errors import CoaError, ConfigError
from coa.trajectory.profile import Profile
from coa.version import __version__
from coa.view.filters import whole_number, words_of
from coa.view.folders import FamilyRow, folder_view, rl_step
from coa.view.hits import hits_in
from coa.view.index import connect
from coa.view.live import LiveRuns
from coa.view.overlay import TokensView
from coa.view.queries import FolderRow, Place, Queries, Row
from coa.view.records import RawView, RecordView, record_raw, record_texts, record_tokens, record_view
from coa.web.hues import hue_of

_HIT_BYTES: Final = 16 << 20
"""Size of the records of one page in which the words of a search are marked; what is beyond is listed without."""
_COMPARED: Final = 8
_MOST_TASKS: Final = 200


class Missing(CoaError):
    """There is nothing with this id."""


class RunsView(TypedDict):
    total: int
    offset: int
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class _Cached:
    revision: tuple[int, int]
    view: dict[str, Any]


class Reader:
    """Reads one index. Safe to use from several threads."""

    def __init__(self, index: Path, roots: Sequence[str], *, tokenizer: str | None = None) -> None:
        self._index, self._roots, self._tokenizer = index, list(roots), tokenizer
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._overview: _Cached | None = None
        self._live = LiveRuns()
        self.is_closing = False
        """Whether the server is about to stop: what follows the index ends then."""

    def close(self) -> None:
        with self._lock:
            for connection in self._connections:
                connection.close()

    @property
    def _queries(self) -> Queries:
        found: Queries | None = getattr(self._local, "queries", None)
        if found is None:
            connection = connect(self._index)
            with self._lock:
                self._connections.append(connection)
            found = self._local.queries = Queries(connection)
        return found

    # ---- everything

    def revision(self) -> tuple[int, int]:
        """Changes when the index does, and when a running chain goes on."""
        queries = self._queries
        return queries.state("revision"), self._live.look(queries.folder_paths())

    def _looked(self) -> LiveRuns:
        """The running chains as they are now."""
        self._live.look(self._queries.folder_paths())
        return self._live

    def progress(self) -> dict[str, object]:
        return self._queries.progress()

    def overview(self) -> dict[str, Any]:
        """Folders, counts for the filters, and how far indexing is."""
        revision, queries = self.revision(), self._queries
        if self._overview is None or self._overview.revision != revision:
            self._overview = _Cached(revision, self._made_overview(queries, revision))
        return {**self._overview.view, "progress": queries.progress()}

    def _made_overview(self, queries: Queries, revision: tuple[int, int]) -> dict[str, Any]:
        live = self._live.folders()
        folders = [{**folder, "live": folder["id"] in live} for folder in queries.folders()]
        outcomes = queries.counts("outcome")
        if running := len(self._live.rows({})):
            outcomes["running"] = running
        return {
            "version": __version__,
            "bundle": False,
            "roots": self._roots,
            "revision": sum(revision),
            "scanned": queries.state("scanned"),
            "folders": folders,
            "problems_count": queries.problem_count(),
            "facets": {
                "outcomes": outcomes,
                "stops": queries.counts("stop"),
                "agents": _agents(queries),
                "benchmarks": queries.counts("benchmark"),
                "families": queries.counts("family"),
                "step": queries.steps(),
            },
        }

    def runs(self, query: Mapping[str, str]) -> RunsView:
        page = self._queries.runs(query)
        rows, offset = page.rows, whole_number(query, "offset", 0)
        if words := words_of(query.get("q", "")):
            self._mark(rows, words, query.get("in"))
        live = self._looked().rows(query) if offset == 0 else []
        return RunsView(total=page.total, offset=offset, rows=[*live, *rows])

    def _mark(self, rows: Sequence[Row], words: Sequence[str], scope: str | None) -> None:
        left = _HIT_BYTES
        for row in rows:
            place = self._queries.place(row["id"])
            if place is None or (left := left - place.length) < 0:
                continue
            try:
                row["hits"] = [dict(hit) for hit in hits_in(record_texts(place), words, scope)]
            except (CoaError, ValueError):
                continue  # the file changed since it was indexed

    def problems(self) -> dict[str, Any]:
        return {"problems": self._queries.problems()}

    def findings(self, query: Mapping[str, str]) -> dict[str, Any]:
        return self._queries.findings(query.get("scanner"), whole_number(query, "offset", 0))

    # ---- one run

    def run(self, uid: str) -> RecordView:
        if (live := self._looked().record(uid)) is not None:
            return live
        if (ended := self._live.ended(uid)) is not None:
            uid = self._queries.newest(*ended) or uid
        place = self._place(uid)
        return record_view(place, self._queries, self.shown(place))

    def tokens(self, uid: str) -> TokensView:
        return record_tokens(self._place(uid), self._queries, self._tokenizer)

    def raw(self, uid: str) -> RawView:
        return record_raw(self._place(uid), self._queries)

    def texts(self, uid: str) -> Mapping[str, Any]:
        """The record as plain JSON."""
        return record_texts(self._place(uid))

    def shown(self, place: Place) -> str:
        row = self._queries.row(place.uid)
        assert row is not None
        relative = place.source.path.relative_to(place.folder) if place.source.path != place.folder else Path()
        return str(Path(row["path"]) / relative)

    def _place(self, uid: str) -> Place:
        place = self._queries.place(uid)
        if place is None:
            raise Missing("there is no such run; its file may have been moved or deleted")
        return place

    # ---- folders

    def folder(self, uid: str) -> dict[str, Any]:
        attempts = (FamilyRow(*attempt) for attempt in self._queries.attempts(self._folder_uid(uid)))
        return {**folder_view(self._folder(uid), attempts), "folder": self._folder_row(uid)}

    def step(self, uid: str, step: int) -> dict[str, Any]:
        found = rl_step(self._folder(uid), step)
        if found is None:
            raise Missing(f"the run has no groups of step {step}")
        return {**found, "folder": self._folder_row(uid)}

    def rl_steps(self, uid: str) -> list[int]:
        """The steps whose groups the folder has."""
        return sorted({step for step, _, _ in self._queries.attempts(uid)})

    def _folder(self, uid: str) -> Path:
        path = self._queries.folder_path(self._folder_uid(uid))
        if path is None:
            raise Missing("there is no such folder; it may have been moved or deleted")
        return path

    def _folder_uid(self, named: str) -> str:
        """The id of a folder that is named by its id, or, as reports do, by its name if only one has it."""
        alike = [uid for uid, (_, path) in self._queries.folder_paths().items() if path.name == named]
        if len(alike) > 1:
            raise Missing(f"several folders are called {named!r}; choose one in the list of folders")
        return alike[0] if alike else named

    def _folder_row(self, uid: str) -> FolderRow | None:
        uid = self._folder_uid(uid)
        return next((folder for folder in self.overview()["folders"] if folder["id"] == uid), None)

    def compare(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Tasks that several folders have in common, with the runs of each."""
        ids = [uid for uid in query.get("folders", "").split(",") if uid]
        if not 2 <= len(ids) <= _COMPARED:
            raise ConfigError(f"choose from 2 to {_COMPARED} folders to compare")
        folders = [self._folder_row(uid) for uid in ids]
        if None in folders:
            raise Missing("there is no such folder; it may have been moved or deleted")
        limit = min(whole_number(query, "limit", 50), _MOST_TASKS)
        found = self._queries.compared(ids, query.get("only", ""), whole_number(query, "offset", 0), limit)
        return {"folders": folders, **found}


def _agents(queries: Queries) -> dict[str, dict[str, object]]:
    """Tags with the title and hue that the profiles of the runs give them."""
    known: dict[str, tuple[str, str]] = {}
    for text in queries.definitions():
        try:
            profile = Profile.model_validate_json(text)
        except ValueError:
            continue
        known |= {tag: (agent.title, hue_of(agent.color)) for tag, agent in profile.agents.items()}
    return {
        tag: {"title": known.get(tag, (tag, "gray"))[0], "hue": known.get(tag, (tag, "gray"))[1], "runs": runs}
        for tag, runs in queries.agents().items()
    }


__all__ = ["Missing", "Reader", "RunsView"]
