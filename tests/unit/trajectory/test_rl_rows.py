"""AFM's RL sets as they are published: what is wrong with their rows is repaired, and no two rows become one task."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coa.errors import StoreError
from coa.trajectory import CodeTests, Task, TestCase
from coa.trajectory.formats.tasks import read_tasks, tasks_of, to_task

TRUTHS: dict[str, tuple[object, tuple[str, ...]]] = {
    "string": ("Paris", ("Paris",)),
    "object": ({"target": ["Paris", "Paname"]}, ("Paris", "Paname")),
    "object with gaps": ({"target": None, "answer": "Paris"}, ("Paris",)),
    "object as json": ('{"target": ["Paris", "Paname"]}', ("Paris", "Paname")),
    "object as python": ("{'target': ['Paris'], 'style': None}", ("Paris",)),
    "list": (["Paris", "Paname"], ("Paris", "Paname")),
    "list as json": ('["Paris", "Paname"]', ("Paris", "Paname")),
    "number": ("204", ("204",)),
    "set in a formula": ("{1, 2}", ("{1, 2}",)),
    "interval": ("[1, 2]", ("[1, 2]",)),
    "open brace": ("{ unfinished", ("{ unfinished",)),
}


def row(truth: object, number: int = 0, **others: Any) -> dict[str, Any]:
    return {
        "data_source": "web",
        "prompt": [{"role": "user", "content": f"Question: What is {number}?"}],
        "ability": "qa",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": "train"},
        **others,
    }


def parquet(folder: Path, rows: list[dict[str, Any]], name: str = "rl.parquet") -> list[Task]:
    pq.write_table(pa.Table.from_pylist(rows), folder / name)
    return list(read_tasks(folder / name))


@pytest.mark.parametrize("spelling", TRUTHS)
def test_every_spelling_of_the_truth_is_read_from_parquet(spelling: str, tmp_path: Path) -> None:
    truth, answer = TRUTHS[spelling]
    tasks = parquet(tmp_path, [row(truth, number) for number in range(3)])
    assert [task.answer for task in tasks] == [answer] * 3
    assert [task.question for task in tasks] == [f"What is {number}?" for number in range(3)]


INDEXES: dict[str, list[object]] = {
    "absent": [None, None, None],
    "empty": ["", "", ""],
    "nan": [math.nan, math.nan, math.nan],
    "the same for all": [0, 0, 0],
    "gaps, so floats": [0.0, math.nan, 2.0],
}


@pytest.mark.parametrize("kind", INDEXES)
def test_rows_get_ids_of_their_own_whatever_their_index(kind: str, tmp_path: Path) -> None:
    """One id is one group in RL: rows that shared it would be compared with each other."""
    rows = [row("a", number, extra_info={"index": index}) for number, index in enumerate(INDEXES[kind])]
    tasks = parquet(tmp_path, rows)
    assert len({task.id for task in tasks}) == 3
    assert [task.id for task in read_tasks(tmp_path / "rl.parquet")] == [task.id for task in tasks]


def test_an_index_is_the_same_as_integer_float_and_text() -> None:
    ids = {to_task(row("a", extra_info={"index": index})).id for index in (7, 7.0, "7")}
    assert ids == {"web-7"}


def test_without_an_index_the_id_does_not_depend_on_the_place() -> None:
    """Only equal rows need a number, so that a shuffled or shortened file gives the same tasks their old ids."""
    rows = [row("a", number) for number in range(4)]
    forwards = {task.question: task.id for task in tasks_of(rows)}
    assert {task.question: task.id for task in tasks_of(rows[::-1])} == forwards


def test_no_extra_info_at_all(tmp_path: Path) -> None:
    tasks = parquet(tmp_path, [row("a", number, extra_info=None) for number in range(2)])
    assert len({task.id for task in tasks}) == 2 and tasks[1].question == "What is 1?"


def test_whole_fields_spelled_as_json() -> None:
    plain = row({"target": ["x"]}, 3, extra_info={"index": 5, "question": "What is 3?"})
    spelled = {key: json.dumps(value) if isinstance(value, dict | list) else value for key, value in plain.items()}
    assert to_task(spelled) == to_task(plain)


def test_an_answer_beside_the_truth_stands_in_for_it() -> None:
    assert to_task(row(None, extra_info={"answer": "x"})).answer == ("x",)
    assert to_task(row("", extra_info={"answer": {"target": ["x"]}})).answer == ("x",)
    assert to_task(row({"style": "rule"}, golden_answers=["x", "y"])).answer == ("x", "y")
    with pytest.raises(ValueError, match="none of the known fields"):
        to_task(row({"style": "rule"}))


def test_a_question_of_its_own_is_taken_before_the_prompt() -> None:
    prompt = [{"role": "user", "content": "Rules. Question: in the middle of a line"}]
    assert to_task(row("a", prompt=prompt, question="Who?")).question == "Who?"


@pytest.mark.parametrize("spell", [lambda truth: truth, json.dumps, repr], ids=["object", "json", "python"])
def test_tests_of_programs_in_every_spelling(spell: Any, tmp_path: Path) -> None:
    truth = {"stdin": ["1\n"], "expected_output": ["2\n"], "question_id": "q"}
    (task,) = parquet(tmp_path, [row(spell(truth))])
    assert task.tests == CodeTests(cases=(TestCase(stdin="1\n", expected="2\n"),)) and task.answer == ()


def test_a_folder_of_parts_is_one_set(tmp_path: Path) -> None:
    for part in range(2):
        parquet(tmp_path, [row("a", part, extra_info={"index": 0})], f"part-{part}.parquet")
    assert [task.id for task in read_tasks(tmp_path)] == ["web-0", "web-0#2"]
    with pytest.raises(StoreError, match="there is no file or folder"):
        list(read_tasks(tmp_path / "absent.parquet"))
