"""Parquet with typed columns for what people query (agents, texts, scores, usage), and JSON text for free-form data.

It is written in row groups of bounded size to a file beside the target, which replaces the target when complete.
pyarrow is imported with the first file, because it takes longer to import than most commands need for their work.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from coa.errors import StoreError, refused
from coa.folder import beside, put
from coa.trajectory.definitions import definition
from coa.trajectory.types import READABLE_VERSIONS, Step, Trajectory

if TYPE_CHECKING:
    import pyarrow as pa

_GROUP_BYTES: Final = 32 << 20
_GROUP_ROWS: Final = 1_000
_BATCH: Final = 64
_DAMAGED: Final = "the file is damaged or was not completely written: download or make it again"

_COUNTS: Final = ("prompt_tokens", "completion_tokens", "cached_tokens", "model_calls", "tool_calls")
_TEXTS: Final = ("profile", "profile_hash", "profile_definition", "question", "answer", "stop", "failure")


@cache
def schema() -> pa.Schema:
    """`question` and `answer` repeat parts of `task` and `steps` for queries; they are not read back.

    Every row has the definition of its profile, so that any selection or union of rows keeps it. Parquet stores equal
    texts of a row group once.
    """
    import pyarrow as pa

    usage = pa.struct([*((name, pa.int64()) for name in _COUNTS), ("seconds", pa.float64()), ("cost", pa.float64())])
    step = pa.struct(
        [
            *((name, pa.string()) for name in ("agent", "author", "text", "surface")),
            ("given", pa.int32()),
            ("ids", pa.list_(pa.int32())),
            ("logprobs", pa.list_(pa.float64())),
            ("repairs", pa.list_(pa.struct([("kind", pa.string()), ("detail", pa.string())]))),
            ("usage", usage),
            ("meta", pa.string()),
        ]
    )
    return pa.schema(
        [
            ("schema_version", pa.int32()),
            ("task_id", pa.string()),
            ("sample", pa.int32()),
            *((name, pa.string()) for name in _TEXTS),
            ("scores", pa.list_(pa.struct([("name", pa.string()), ("value", pa.float64()), ("reason", pa.string())]))),
            ("usage", usage),
            ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
            ("tokenizer", pa.string()),
            ("steps", pa.list_(step)),
            ("task", pa.string()),
            ("meta", pa.string()),
        ]
    )


class ParquetWriter:
    def __init__(self, path: str | Path, *, group_rows: int = _GROUP_ROWS) -> None:
        import pyarrow.parquet as pq

        self.path = Path(path)
        self._group_rows = group_rows
        self._temporary = beside(self.path)
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0
        self._closed = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._temporary, schema(), compression="zstd")
        except OSError as error:
            raise refused(f"write {self.path}", error) from error

    def write(self, record: Trajectory) -> None:
        self._rows.append(_to_row(record))
        self._bytes += sum(_weight(step) for step in record.steps) + 512
        if self._bytes >= _GROUP_BYTES or len(self._rows) >= self._group_rows:
            self._flush()

    def close(self) -> None:
        """Finish the file and move it to its place."""
        if not self._closed:
            self._closed = True
            self._flush()
            self._writer.close()
            put(self._temporary, self.path)

    def _flush(self) -> None:
        import pyarrow as pa

        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=schema()))
        self._rows, self._bytes = [], 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._closed = True
            self._writer.close()
            self._temporary.unlink(missing_ok=True)


def _weight(step: Step) -> int:
    """Approximate memory of a step as a row, in bytes."""
    tokens = 72 * len(step.tokens.ids) if step.tokens else 0
    return len(step.text) + len(step.surface or "") + tokens + 256


def read_parquet(path: str | Path) -> Iterator[Trajectory]:
    for number, row in enumerate(parquet_rows(path), start=1):
        try:
            yield from_row(row)
        except (KeyError, TypeError, ValueError) as error:  # pydantic's and json's errors are ValueErrors
            raise StoreError(f"{path}, row {number} is not a trajectory: {error}") from error


def parquet_rows(path: str | Path) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file, a batch at a time."""
    import pyarrow as pa

    with _parquet_file(path) as file:
        for group in range(file.num_row_groups):
            batches = file.iter_batches(batch_size=_BATCH, row_groups=[group])
            while True:
                try:
                    batch = next(batches, None)
                    rows = None if batch is None else batch.to_pylist()
                except (pa.ArrowException, OSError) as error:
                    place = f"row group {group + 1} of {file.num_row_groups}"
                    raise StoreError(f"{path}, {place} is damaged: {error}", hint=_DAMAGED) from error
                if rows is None:
                    break
                yield from rows


def is_trajectory_parquet(path: Path) -> bool:
    with _parquet_file(path) as file:
        return {"schema_version", "steps", "task"} <= set(file.schema_arrow.names)


def _parquet_file(path: str | Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise StoreError(f"{path} is not a Parquet file: {error}", hint=_DAMAGED) from error


def _to_row(trajectory: Trajectory) -> dict[str, Any]:
    data = trajectory.model_dump(mode="json", exclude={"task"})
    task = trajectory.task.model_dump(mode="json", exclude_defaults=True)  # as in JSONL
    for step in data["steps"]:
        tokens = step.pop("tokens") or {}
        step["ids"], step["logprobs"] = tokens.get("ids"), tokens.get("logprobs")
        step["meta"] = _json(step["meta"])
    return {
        **data,
        "profile_definition": definition(trajectory.profile_hash),
        "task_id": task["id"],
        "question": task["question"],
        "answer": trajectory.answer,
        "failure": data["failure"] and _json(data["failure"]),
        "scores": [{"name": name, **score} for name, score in data["scores"].items()],
        "task": _json(task),
        "meta": _json(data["meta"]),
    }


def from_row(row: dict[str, Any]) -> Trajectory:
    """The trajectory of a row of `schema()`. The row is modified."""
    return Trajectory.model_validate(as_record(row))


def as_record(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `schema()` in the form that a line of JSONL has, not validated. The row is modified."""
    if row["schema_version"] not in READABLE_VERSIONS:
        return {"schema_version": row["schema_version"]}  # which no reader accepts
    for step in row["steps"]:
        ids, logprobs = step.pop("ids"), step.pop("logprobs")
        step["tokens"] = None if ids is None else {"ids": ids, "logprobs": logprobs}
        step["meta"] = json.loads(step["meta"])
    row["task"] = json.loads(row["task"])
    row["meta"] = json.loads(row["meta"])
    row["failure"] = row["failure"] and json.loads(row["failure"])
    row["scores"] = {score.pop("name"): score for score in row["scores"]}
    for repeated in ("task_id", "question", "answer"):
        del row[repeated]
    return row


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)  # unlike orjson, json accepts integers of any size
