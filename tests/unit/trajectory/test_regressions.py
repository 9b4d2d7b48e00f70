"""Bugs that were found once; each test failed before its fix."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from coa.errors import ProfileError, SchemaVersionError, StoreError
from coa.trajectory import (
    Author,
    Drop,
    JsonlWriter,
    ParquetWriter,
    Task,
    Tokens,
    Trajectory,
    attribute,
    fit,
    load_profile,
    observation,
    parse,
    read,
    to_sample,
    write,
)
from coa.trajectory.formats.alpaca import from_alpaca, to_alpaca
from coa.trajectory.formats.detect import read_trajectories
from coa.trajectory.formats.rows import read_rows, write_rows
from coa.trajectory.formats.tasks import from_task, read_tasks, to_task
from coa.trajectory.profile import ScoreVerdict
from coa.trajectory.shapes import last_boxed
from support.builders import WEB, make_trajectory, web_run
from support.tokenizers import tokenizer


@pytest.mark.parametrize(
    "text",
    [
        "<web_search>q<observation>PAGE</observation>\n<answer>a</answer>",
        "<web_search>q <observation>PAGE</observation> ok, so\n<answer>a</answer>",
        "<think>so<observation>PAGE</observation><answer>a</answer>",
        "<think>I <plan>p</plan><observation>PAGE</observation>\n<answer>a</answer>",
        "<code>```py\nprint(1) <observation>PAGE</observation>\n<answer>a</answer>",
    ],
)
def test_an_observation_after_an_unclosed_step_is_never_the_models(text: str) -> None:
    steps = parse(text, load_profile("all"))
    pages = [step for step in steps if "PAGE" in step.text]
    assert [(step.agent, step.author) for step in pages] == [("observation", Author.ENVIRONMENT)]


def test_a_writer_mends_what_a_killed_neighbour_left(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with JsonlWriter(path) as ours:
        ours.write(web_run(sample=0))
        with path.open("ab") as neighbour:
            neighbour.write(b'{"schema_version":1,"task":{"id":"to')
        ours.write(web_run(sample=1))
    assert [t.sample for t in read(path)] == [0, 1]


def test_an_interrupt_in_the_middle_of_a_write_leaves_whole_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.jsonl"
    real = os.write
    with JsonlWriter(path) as out:
        out.write(web_run())

        def interrupted(fd: int, data: bytes) -> int:
            real(fd, bytes(data)[:10])
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            out.write(web_run(sample=1))
    monkeypatch.undo()
    assert list(read(path)) == [web_run()]


@pytest.mark.parametrize("over", [1, 20, 100, 300])
def test_a_page_full_of_tags_is_cut_to_fit(over: int) -> None:
    """Neutralised it has more tokens than as it stands in the step."""
    tok = tokenizer("smollm2")
    run = make_trajectory(("web_search", "q"), ("observation", "<answer>x</answer> " * 200), ("answer", "a"))
    limit = len(to_sample(run, tok, WEB)) - over
    fitted = fit(run, tok, WEB, max_tokens=limit)
    assert not isinstance(fitted, Drop) and len(fitted[1]) <= limit


def test_parquet_keeps_the_columns_of_later_rows(tmp_path: Path) -> None:
    rows = [{"id": "1"}, *({"id": "x"} for _ in range(300)), {"id": "2", "answer": ["a"], "n": 1.5}]
    path = tmp_path / "rows.parquet"
    write_rows(path, (json.dumps(row).encode() for row in rows))
    assert list(read_rows(path))[-1] == {"id": "2", "answer": ["a"], "n": 1.5}


def test_the_outermost_of_many_boxes() -> None:
    deep = "\\boxed{" * 20_000 + "}" * 20_000
    assert last_boxed(deep) == deep[len("\\boxed{") : -1]


def test_a_frozen_mapping_cannot_be_changed_in_place() -> None:
    meta = make_trajectory().meta
    with pytest.raises(TypeError, match="frozen"):
        meta |= {"x": 1}  # type: ignore[operator]
    with pytest.raises(TypeError, match="frozen"):
        WEB.agents.clear()  # type: ignore[attr-defined]
    assert not make_trajectory().meta


@pytest.mark.parametrize(("instruction", "question"), [("X", ""), ("", "Q"), ("X", "Q")])
def test_alpaca_rows_with_an_empty_field_come_back_as_they_were(instruction: str, question: str) -> None:
    row = {"instruction": instruction, "input": question, "output": "<answer>a</answer>"}
    assert to_alpaca(from_alpaca(row, WEB), WEB) == row


def test_lone_surrogates_are_cleaned_on_the_way_in(tmp_path: Path) -> None:
    run = make_trajectory().model_copy(update={"steps": (observation("a\ud800b"),)})
    write(tmp_path / "t.jsonl", [run])
    assert next(iter(read(tmp_path / "t.jsonl"))).steps[0].text == "a?b"


def test_parquet_bounds_its_groups_by_what_ids_weigh(tmp_path: Path) -> None:
    long = make_trajectory(("think", "x"))
    step = long.steps[0].model_copy(update={"tokens": Tokens(ids=tuple(range(20_000)), logprobs=(0.5,) * 20_000)})
    write(tmp_path / "t.parquet", (long.model_copy(update={"steps": (step,), "sample": n}) for n in range(60)))
    with pq.ParquetFile(tmp_path / "t.parquet") as file:
        assert file.metadata.num_row_groups >= 2


def test_parquet_takes_large_integers_and_may_be_closed_twice(tmp_path: Path) -> None:
    run = make_trajectory(meta={"n": 2**70})
    with ParquetWriter(tmp_path / "t.parquet") as out:
        out.write(run)
        out.close()
    assert list(read(tmp_path / "t.parquet")) == [run]


def test_a_newer_parquet_record_is_refused_by_its_version(tmp_path: Path) -> None:
    write(tmp_path / "t.parquet", [web_run()])
    table = pq.read_table(tmp_path / "t.parquet")
    newer = table.drop_columns(["failure"]).set_column(0, "schema_version", [[3]])
    pq.write_table(newer, tmp_path / "t.parquet")
    with pytest.raises(SchemaVersionError, match="version 3"):
        list(read(tmp_path / "t.parquet"))


@pytest.mark.parametrize(
    "row",
    [
        {"question": "q", "meta": 5},
        {"prompt": [{"content": "no role"}], "reward_model": {"ground_truth": "1"}},
        {"prompt": 7, "reward_model": {"ground_truth": "1"}},
        {"prompt": "q", "reward_model": {"ground_truth": "1"}, "extra_info": "no object"},
        {"prompt": "q", "reward_model": {"ground_truth": {"stdin": 3, "expected_output": 4}}},
    ],
)
def test_rows_of_odd_shapes_are_named_and_nothing_breaks(row: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(StoreError, match="row 1 is not a task"):
        list(read_tasks(path))


def test_rows_that_are_only_unusual_are_read(tmp_path: Path) -> None:
    info = json.dumps({"index": 3})
    assert to_task({"prompt": "How?", "reward_model": {"ground_truth": "1"}, "extra_info": info}).id == "task-3"
    tests = to_task({"prompt": "q", "reward_model": {"ground_truth": {"stdin": "5", "expected_output": "6"}}}).tests
    assert tests is not None and tests.cases[0].stdin == "5"
    task = Task(id="1", question="q", meta={"kept": None})
    assert to_task(from_task(task)) == task
    (tmp_path / "bom.jsonl").write_bytes(b'\xef\xbb\xbf{"id": "1", "question": "q"}\n')
    assert [t.id for t in read_tasks(tmp_path / "bom.jsonl")] == ["1"]
    (tmp_path / "ids.jsonl").write_text("".join(json.dumps({"id": i, "question": i}) + "\n" for i in ("1", "1", "1#2")))
    assert len({t.id for t in read_tasks(tmp_path / "ids.jsonl")}) == 3


def test_a_bad_trajectory_in_a_json_list_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([json.loads(web_run().to_json()), {"schema_version": 1, "task": 5}]))
    with pytest.raises(StoreError, match="row 2 is not a trajectory"):
        list(read_trajectories(path))


@pytest.mark.parametrize("text", ["Score (1-4): 4", "score: 4", "**Score**: 4/4", "score = 2 ... score: 4"])
def test_scores_are_read_however_they_are_written(text: str) -> None:
    assert ScoreVerdict(passed=("a",), failed=("b",)).holds(text) is True


def test_a_score_beside_its_scale_can_be_low() -> None:
    assert ScoreVerdict(passed=("a",), failed=("b",)).holds("Score (1-4): 2") is False


@pytest.mark.parametrize("change", ['passed = []\nfailed = ["plan"]', 'passed = ["answer"]\nfailed = []'])
def test_a_verdict_that_leads_nowhere_is_refused(change: str, tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(f'extends = "web"\n[agents.double_check.verdict]\nread = "score"\n{change}\n')
    with pytest.raises(ProfileError, match="at least 1 item"):
        load_profile(path)


def test_a_way_that_no_verdict_opens_is_no_way(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'extends = "web"\n[agents.extra]\ntitle = "E"\nkind = "role"\ndoes = "x."\nnext = ["answer"]\n'
        '[agents.double_check]\nnext = ["answer", "plan", "extra"]\n'
    )
    with pytest.raises(ProfileError, match=r"\['extra'\] can never act"):
        load_profile(path)


def test_a_profile_without_a_name_is_called_after_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('extends = "web"\n')
    assert load_profile(path).name == "mine"


def test_a_token_belongs_to_the_step_in_which_it_begins() -> None:
    tok = tokenizer("smollm2")
    ids = tok.encode(["a><b"])[0]
    assert tok.split(ids) == ["a", "><", "b"]
    first, second = attribute(tok, ids, None, ["a>", "<b"])
    assert (first.ids, second.ids) == (tuple(ids[:2]), tuple(ids[2:]))
    first, second = attribute(tok, ids, None, ["a", "><b"])
    assert (first.ids, second.ids) == (tuple(ids[:1]), tuple(ids[1:]))


def test_trajectories_are_equal_after_every_repair() -> None:
    run = from_alpaca({"instruction": "i", "input": "q", "output": "<think>a<observation>b</observation>c"}, WEB)
    assert Trajectory.from_json(run.to_json()) == run
