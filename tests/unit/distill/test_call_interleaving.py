"""Several runs recorded at once are the runs that they are on their own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from support.call_records import CallRecords, Json, outline
from support.call_teams import (
    agents_as_tools,
    continued_responses,
    messages,
    one_agent,
    pipeline,
    responses,
    transfers,
)

TEAMS: tuple[Callable[[CallRecords], CallRecords], ...] = (
    one_agent, responses, continued_responses, messages, agents_as_tools, transfers, pipeline,
)  # fmt: skip


def marked(lines: list[Json], number: int) -> list[Json]:
    """The same run with ids of its own, as another process would have got them from its server."""
    ids = {"r1", "r2", "m1", "m2", "a", "f", "rs", "m3", "t0", "t1", "t2", "s1", "s-twin", "s-tower", "s-sum"}

    def changed(value: object) -> object:
        if isinstance(value, dict):
            return {key: changed(item) for key, item in value.items()}
        if isinstance(value, list):
            return [changed(item) for item in value]
        return f"{value}/{number}" if isinstance(value, str) and value in ids else value

    return [{**line, "id": f"{line['id']}/{number}", "body": changed(line["body"])} for line in lines]


def told(lines: list[Json], folder: Path) -> list[list[str]]:
    records = CallRecords()
    records.lines = lines
    return sorted(outline(run.root) for run in records.runs(folder))


@settings(max_examples=60, deadline=None)
@given(chosen=st.lists(st.sampled_from(TEAMS), min_size=2, max_size=5), data=st.data())
def test_runs_in_any_order_that_keeps_causality_are_the_same_runs(
    chosen: list[Callable[[CallRecords], CallRecords]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = [marked(make(CallRecords()).lines, number) for number, make in enumerate(chosen)]
        apart = sorted(one for lines in runs for one in told(lines, folder))
        order = data.draw(st.permutations([number for number, lines in enumerate(runs) for _ in lines]))
        following = [iter(lines) for lines in runs]
        mixed = [next(following[number]) for number in order]
        assert told(mixed, folder) == apart
