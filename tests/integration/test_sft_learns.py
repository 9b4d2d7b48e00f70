"""Training for real, on a model and a world small enough for seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coa.errors import TrainingError
from coa.progress import PrintProgress
from coa.sft.config import SftConfig
from coa.sft.train import train
from coa.trajectory import read, write
from support.words import Dictionary, copying, word_model


def test_a_model_from_scratch_learns_the_grammar_and_to_copy_through_a_tool(tmp_path: Path) -> None:
    write(tmp_path / "data.jsonl", copying(600))
    held_out = copying(12, seed=1)
    questions = {t.steps[0].text: t for t in held_out}  # the tool says one thing to a word
    tasks = [t.task.model_copy(update={"prompt": t.prompt}) for t in questions.values()]
    (tmp_path / "tasks.jsonl").write_text("\n".join(task.model_dump_json(exclude_defaults=True) for task in tasks))
    config = SftConfig(
        model=str(word_model(tmp_path / "random")),
        data=(str(tmp_path / "data.jsonl"),),
        lr=6e-3,
        epochs=10,
        batch_size=32,
        max_length=64,
        micro_batch_tokens=1024,
        weight_decay=0.0,
        eval_tasks=str(tmp_path / "tasks.jsonl"),
        num_eval_tasks=len(tasks),
        eval_steps=10_000,
        profile="nano",
        report_to=(),
    )
    said: list[str] = []
    result = train(
        config,
        tmp_path / "run",
        tools={"web_search": Dictionary(list(questions.values()))},
        progress=PrintProgress(said.append),
    )
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    success = [(row["step"], row["success"], row["answered"]) for row in rows if "success" in row]
    assert success[0][:2] == (0, 0.0)
    assert success[-1][1] >= 0.9 and success[-1][2] == 1.0, success
    assert result.finished and "success" in result.figures
    assert said[0].startswith("data: up to 64 tokens: 600 samples") and "dropped: none" in said[0]

    last = list(read(tmp_path / "run" / "agent" / f"step-{result.steps}"))
    assert {tuple(step.agent for step in t.steps) for t in last} == {("web_search", "observation", "answer")}


def test_tasks_to_evaluate_on_are_told_from_the_training_data_by_their_questions(tmp_path: Path) -> None:
    data = copying(8)
    write(tmp_path / "data.jsonl", data)
    config = SftConfig(
        model=str(word_model(tmp_path / "random")),
        data=(str(tmp_path / "data.jsonl"),),
        eval_tasks=str(tmp_path / "tasks.jsonl"),
        num_eval_tasks=1,
        max_steps=1,
        batch_size=8,
        max_length=64,
        profile="nano",
        report_to=(),
    )
    same = data[0].task.model_copy(update={"id": "of another set"})
    (tmp_path / "tasks.jsonl").write_text(same.model_dump_json(exclude_defaults=True))
    with pytest.raises(TrainingError, match=r"also trained on, e\.g\. '.* in copy-0-0'"):
        train(config, tmp_path / "refused")
    other = data[0].task.model_copy(update={"question": "w1 in another set", "prompt": data[0].prompt})
    (tmp_path / "tasks.jsonl").write_text(other.model_dump_json(exclude_defaults=True))
    tools = {"web_search": Dictionary(data)}
    assert train(config, tmp_path / "run", tools=tools).finished


def test_the_first_line_and_the_card_tell_what_was_wrong_with_the_data(tmp_path: Path) -> None:
    row = {"instruction": "w1", "input": "w2", "output": "<web_search>w1</web_search><answer>w3</answer>"}
    rows = [row, row | {"output": "<web_search>w1<answer>w3</answer>"}, {"instruction": "w1", "input": "w2"}]
    (tmp_path / "afm.json").write_text(json.dumps(rows))
    said: list[str] = []
    config = SftConfig(
        model=str(word_model(tmp_path / "random")),
        data=(str(tmp_path / "afm.json"),),
        max_steps=1,
        batch_size=2,
        length_schedule=({"max_length": 32, "epochs": 1}, {"max_length": 64, "epochs": 1}),
        report_to=(),
    )
    result = train(config, tmp_path / "run", progress=PrintProgress(said.append))
    told = "1 row left out: no output 1; 1 repaired when read: missing close 1, nested call 1"
    assert said[0].endswith(f"; {told}") and said[0].count("left out") == 1
    assert told in (result.folder / "README.md").read_text()
