"""Shapes of others: read as they come, written so that their programs take them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coa.errors import StoreError
from coa.trajectory import Author, CodeTests, Stop, Task, TestCase, check, render
from coa.trajectory.formats.alpaca import from_alpaca, guess_profile, to_alpaca
from coa.trajectory.formats.atif_export import to_atif
from coa.trajectory.formats.detect import Content, detect, read_trajectories
from coa.trajectory.formats.messages import to_messages, to_sharegpt, to_verl
from coa.trajectory.formats.rows import read_rows, write_rows
from coa.trajectory.formats.tasks import from_task, read_tasks, to_task
from support.builders import WEB, make_trajectory, web_run

INSTRUCTIONS = "Use the functions below.\n1. 'think': reason.\nTask:\n"


def rl_row(
    truth: object, *, index: object = "0", content: str = INSTRUCTIONS + "How many?", **info: object
) -> dict[str, Any]:
    return {
        "data_source": "aime",
        "prompt": [{"role": "user", "content": content}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"index": index, "need_tools_kwargs": True, "tools_kwargs": {"code": {"x": "y"}}, **info},
    }


@pytest.mark.parametrize(
    "truth", ["204", {"target": ["204"]}, '{"target": ["204"]}', {"answer": 204}, '{"ground_truth": "204"}'], ids=str
)
def test_every_spelling_of_the_ground_truth_is_the_same_answer(truth: object) -> None:
    task = to_task(rl_row(truth))
    assert task.answer == ("204",)
    assert task.question == "How many?"
    assert task.id == "aime-0"
    assert task.prompt is not None and task.prompt[0].content.startswith("Use the functions")


def test_code_tests_are_read_from_both_kinds_of_ground_truth() -> None:
    cases = to_task(rl_row(json.dumps({"stdin": ["1\n"], "expected_output": ["2\n"], "question_id": "a"})))
    assert cases.tests == CodeTests(cases=(TestCase(stdin="1\n", expected="2\n"),)) and cases.answer == ()
    functional = to_task(rl_row(json.dumps({"functional": "assert f(1) == 2", "question_id": "b"})))
    assert functional.tests == CodeTests(functional="assert f(1) == 2")


def test_a_latex_answer_that_begins_with_a_brace_stays_text() -> None:
    assert to_task(rl_row("{1, 2}")).answer == ("{1, 2}",)


@pytest.mark.parametrize("index", [None, ""])
def test_rows_without_an_index_do_not_share_one(index: object, tmp_path: Path) -> None:
    path = tmp_path / "rl.parquet"
    rows = [rl_row("1", index=index, content=INSTRUCTIONS + f"What is {n}?") for n in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    first = [task.id for task in read_tasks(path)]
    assert len(set(first)) == 3
    assert [task.id for task in read_tasks(path)] == first


def test_two_rows_under_one_id_stay_two_tasks(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"id": 1, "question": "a"}\n{"id": 1, "question": "b"}\n')
    assert [task.id for task in read_tasks(path)] == ["1", "1#2"]


BENCHMARK_ROWS = {
    "gaia": (
        {"id": 3, "task_id": "c61d", "question": "Q", "answer": "egalitarian", "Level": 2, "Annotator_Metadata": {}},
        ("3", ("egalitarian",), {"Level": 2}),
    ),
    "webwalker": ({"question": "Q", "answer": "A", "root_url": "https://x.example", "info": {"hop": "single"}}, None),
    "hle": ({"id": "h1", "question": "Q", "answer": "A", "answer_type": "exactMatch", "rationale": "r"}, None),
    "nq": ({"question": "Q", "answer": ["Olivia", "MFSK"], "data_source": "nq"}, None),
    "own": ({"id": "1", "question": "Q", "answer": "A", "profile": "web", "files": ["a.csv"], "meta": {"k": 1}}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", BENCHMARK_ROWS)
@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_benchmark_rows_become_tasks(name: str, ending: str, tmp_path: Path) -> None:
    row, expected = BENCHMARK_ROWS[name]
    path = tmp_path / f"rows.{ending}"
    path.write_text(json.dumps([row]) if ending == "json" else json.dumps(row) + "\n")
    (task,) = read_tasks(path)
    assert task.question == "Q" and task.answer
    if expected:
        identity, answer, meta = expected
        assert task.id == identity and task.answer == answer and meta.items() <= task.meta.items()
    assert to_task(from_task(task)) == task


def test_a_row_that_is_no_task_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"id": 1, "question": "a"}\n{"id": 2}\n')
    with pytest.raises(StoreError, match="row 2 is not a task: it has no question"):
        list(read_tasks(path))


SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"


@pytest.mark.parametrize(
    ("name", "count"),
    [("aime24.parquet", 30), ("math500.parquet", 500), ("livecodebench_v5.parquet", 167), ("nq.jsonl", 3610)],
)
def test_the_published_files_are_read_whole(name: str, count: int) -> None:
    if not (SHARED / name).is_file():
        pytest.skip(f"{name} is not here; put the published file into {SHARED}")
    tasks = list(read_tasks(SHARED / name))
    assert len(tasks) == len({task.id for task in tasks}) == count
    assert all(task.question and (task.answer or task.tests) for task in tasks)
    assert not any("'observation'" in task.question for task in tasks), "the instructions are no part of the question"
    if name.startswith("livecodebench"):
        assert sum(bool(task.tests and task.tests.cases) for task in tasks) == 105
        assert sum(bool(task.tests and task.tests.functional) for task in tasks) == 62


AFM_ROW = {
    "instruction": "Answer with tools.",
    "input": "Who was it?",
    "output": "<think>hm</think>\n<plan>p</plan>\n<think>s</think>\n<web_search>q</web_search>\n\n<observation>r"
    "</observation>\n\n<think>x</think>\n<suggested_answer>Ada</suggested_answer>\n<think>y</think>\n<double_check>"
    "Score: 4</double_check>\n<think>z</think>\n<answer>Ada</answer>",
}


def test_an_afm_row_survives_the_round_trip_to_the_character() -> None:
    trajectory = from_alpaca(AFM_ROW)
    assert trajectory.profile == "web" and trajectory.stop is Stop.ANSWERED and trajectory.answer == "Ada"
    assert check(trajectory.steps, WEB) == ()
    assert to_alpaca(trajectory, WEB) == AFM_ROW


@pytest.mark.parametrize(
    ("text", "profile"),
    [
        ("<wiki_search>", "mhqa"),
        ("<web_search><code>", "all"),
        ("<crawl_page>", "web"),
        ("<suggested_answer>", "web"),
        ("<visual_inspector>", "all"),
        ("<wiki_search>x</wiki_search>\n<observation>a page with <code>f()</code></observation>", "mhqa"),
        ("<think>t</think><answer>Ada</answer>", "math"),
        ("<code>```py```</code><answer>\\boxed{1}</answer>", "math"),
        ("<code>```py```</code><answer>```py\n1```</answer>", "code"),
    ],
)
def test_the_tags_tell_the_profile(text: str, profile: str) -> None:
    assert guess_profile(text).name == profile


def test_an_unfinished_row_is_not_called_answered() -> None:
    assert from_alpaca(AFM_ROW | {"output": "<think>a</think>"}, WEB).stop is Stop.UNANSWERED


def test_messages_put_observations_into_a_role_that_is_not_trained() -> None:
    messages = to_messages(web_run(), WEB)["messages"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert "".join(m["content"] for m in messages[2:]) == render(web_run().steps, WEB)
    assert all("<observation>" not in m["content"] for m in messages if m["role"] == "assistant")


def test_sharegpt_alternates_gpt_and_observation() -> None:
    row = to_sharegpt(web_run(), WEB)
    assert [turn["from"] for turn in row["conversations"]] == ["human", "gpt", "observation", "gpt"]
    assert row["system"] == WEB.system_prompt


def test_verl_rows_hold_what_its_sft_and_rl_read() -> None:
    row = to_verl(web_run(), WEB)
    assert row["reward_model"] == {"style": "rule", "ground_truth": "Ada"}
    assert row["extra_info"]["index"] == "t1" and row["agent_name"] == "coa"
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert to_task(row).answer == ("Ada",)
    tests = CodeTests(cases=(TestCase(stdin="1", expected="2"),))
    coded = web_run().model_copy(update={"task": Task(id="c", question="q", tests=tests)})
    assert to_task(to_verl(coded, WEB)).tests == tests
    several = web_run().model_copy(update={"task": Task(id="c", question="q", answer=["a", "b"])})
    assert to_task(to_verl(several, WEB)).answer == ("a", "b")


def test_atif_obeys_the_rules_of_the_format() -> None:
    run = make_trajectory(
        ("observation", "a hint"), ("think", "t"), ("plan", "p"), ("web_search", "q"), ("observation", "r"),
        ("crawl_page", "u | v"), ("observation", "s"), ("observation", "hint"), ("answer", "Ada"),
    )  # fmt: skip
    document = to_atif(run, WEB)
    assert document["schema_version"] == "ATIF-v1.8"
    steps = document["steps"]
    assert [step["step_id"] for step in steps] == list(range(1, len(steps) + 1))
    assert [step["source"] for step in steps] == ["system", "user", "system", "agent", "agent", "agent"]
    for step in steps:
        if step["source"] != "agent":
            assert not {"tool_calls", "reasoning_content", "metrics"} & set(step)
        calls = {call["tool_call_id"] for call in step.get("tool_calls", [])}
        for result in step.get("observation", {"results": []})["results"]:
            assert result.get("source_call_id") is None or result["source_call_id"] in calls
    assert steps[3]["reasoning_content"] == "t" and steps[3]["message"] == "<plan>p</plan>"
    assert steps[4]["tool_calls"][0]["arguments"] == {"items": ["u", "v"]}
    assert [result["content"] for result in steps[4]["observation"]["results"]] == ["s", "hint"]
    assert steps[5]["message"] == "Ada"
    json.dumps(document)


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
def test_rows_are_written_and_read_in_every_container(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{ending}"
    rows = [{"question": f"q{n}", "answer": ["a"] * (n % 3)} for n in range(600)]
    assert write_rows(path, (json.dumps(row).encode() for row in rows)) == 600
    assert list(read_rows(path)) == rows


def test_files_are_recognised_by_what_they_hold(tmp_path: Path) -> None:
    def file(name: str, *rows: object) -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    assert detect(file("a.jsonl", json.loads(web_run().to_json()))) is Content.TRAJECTORIES
    assert detect(file("b.jsonl", AFM_ROW)) is Content.ALPACA
    assert detect(file("c.jsonl", {"question": "q"})) is Content.TASKS
    with pytest.raises(StoreError, match="holds neither"):
        detect(file("d.jsonl", {"colour": "red"}))
    with pytest.raises(StoreError, match="empty"):
        detect(file("e.jsonl"))
    with pytest.raises(StoreError, match="holds tasks"):
        list(read_trajectories(tmp_path / "c.jsonl"))
    (trajectory,) = read_trajectories(tmp_path / "b.jsonl")
    assert [s.author for s in trajectory.steps].count(Author.ENVIRONMENT) == 1
