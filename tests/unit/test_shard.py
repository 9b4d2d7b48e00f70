"""A shard is a part of the tasks that every machine computes alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from coa.shard import Shard, in_shard
from coa.trajectory import Task


class Holder(BaseModel):
    shard: Shard | None = None


@given(st.text(), st.integers(1, 50))
def test_every_task_is_in_exactly_one_shard(task: str, count: int) -> None:
    assert sum(Shard(index, count).holds(task) for index in range(1, count + 1)) == 1


def test_the_shard_of_a_task_never_changes() -> None:
    # Worked out with sha256sum; another rule would tear apart what other machines have done already.
    assert [n for n in range(1, 8) if Shard(n, 7).holds("t1")] == [5]
    assert [next(n for n in (1, 2, 3) if Shard(n, 3).holds(f"t{k}")) for k in range(8)] == [3, 2, 2, 3, 3, 3, 3, 2]


def test_a_large_set_is_divided_evenly() -> None:
    tasks = [Task(id=f"task-{n}", question="?") for n in range(8_000)]
    sizes = [len(in_shard(tasks, Shard(n, 8))) for n in range(1, 9)]
    assert sum(sizes) == 8_000 and min(sizes) > 900 and max(sizes) < 1_100
    assert in_shard(tasks, None) == tasks


def test_it_is_written_as_it_is_read() -> None:
    held = Holder.model_validate({"shard": "2/8"})
    assert held.shard == Shard(2, 8) and str(held.shard) == "2/8"
    assert held.model_dump() == {"shard": "2/8"} and Holder.model_validate_json(held.model_dump_json()) == held
    assert Holder(shard=Shard(2, 8)) == held


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0/4", "there is no shard 0/4: they go from 1/4 to 4/4"),
        ("5/4", "there is no shard 5/4: they go from 1/4 to 4/4"),
        ("1/0", "there is no shard 1/0: there are none"),
        ("x", "'x' is not a shard; write 2/8 for the second of eight"),
        ("-1/4", "'-1/4' is not a shard"),
        ("1/4/2", "'1/4/2' is not a shard"),
        (2, "2 is not a shard"),
    ],
)
def test_a_wrong_shard_is_explained(text: object, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Holder.model_validate({"shard": text})
    assert said in str(caught.value)
