"""What `coa sft --dry-run` says is what training will do, and it needs no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coa.cli import app
from coa.errors import CoaError
from coa.sft import SftConfig, plan
from coa.sft.data import load
from coa.sft.examples import to_examples
from coa.sft.updates import UpdatePlan
from coa.trajectory import Tally, load_profile, write
from support.builders import make_trajectory
from support.commands import save_tiny_model

QUESTIONS = [f"Who was it in {1800 + n}?" for n in range(12)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    runs = [
        make_trajectory(
            ("think", f"look {n}"), ("web_search", f"query {n}"), ("observation", "x " * 40 * n), ("answer", f"{n}"),
            question=question, profile="nano",
        )
        for n, question in enumerate(QUESTIONS)
    ]  # fmt: skip
    write(tmp_path / "runs.jsonl", runs)
    return tmp_path / "runs.jsonl"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_tiny_model(tmp_path / "model")
    return tmp_path / "model"


def test_the_plan_is_what_the_trainer_will_do(data: Path, model: Path) -> None:
    config = SftConfig(
        model=str(model), data=(str(data),), batch_size=4, epochs=2, max_length=450, held_out=2, seed=3,
        agent_weights={"think": 0.0},
    )  # fmt: skip
    found = plan(config)
    from coa.models.tokenizer import load_tokenizer

    loaded, tally, tok = load(config), Tally(), load_tokenizer(model)
    examples = to_examples(loaded.train, tok, config, 450, tally)
    trained = UpdatePlan([examples], config)
    (phase,) = found.phases
    assert (found.trajectories, found.held_out) == (10, 2)
    assert (phase.samples, phase.cut, phase.longest) == (len(examples), tally.cut, max(map(len, examples)))
    assert tally.cut > 0, "some of these observations do not fit"
    assert phase.trained_tokens == sum(example.labels for example in examples) < tally.trained_tokens
    assert (found.updates, found.rows_per_update) == (len(trained.updates), trained.rows_per_update)
    rows = [trained[index]["input_ids"].shape[1] for index in range(len(trained))]
    assert found.longest_row == max(rows) and found.tokens == sum(rows)
    assert found.trained_tokens == sum(len(trained[index]["where"]) for index in range(len(trained)))
    first = loaded.train[trained.updates[0].samples[0]].task
    assert found.first_prompt == tok.encode_prompt(load_profile("nano").messages(first))[0]


def test_the_number_of_weights_is_that_of_the_model(data: Path, model: Path) -> None:
    from transformers import AutoModelForCausalLM

    whole: Any = AutoModelForCausalLM.from_pretrained(str(model))
    weights = sum(weight.numel() for weight in whole.parameters())
    found = plan(SftConfig(model=str(model), data=(str(data),)))
    assert found.parameters == found.trained_parameters == weights
    frozen = plan(SftConfig(model=str(model), data=(str(data),), freeze_embeddings=True)).trained_parameters
    assert frozen == weights - whole.get_input_embeddings().weight.numel()


DRY_RUN = """
import sys
from coa.cli import main
sys.argv = ["coa", *sys.argv[1:]]
try:
    main()
finally:
    print("torch" in sys.modules, "transformers" in sys.modules, file=sys.stderr)
"""
CHECKS = """
import json, sys
from coa.errors import CoaError
from coa.sft import SftConfig, sft
for given in sys.stdin.read().splitlines():
    try:
        sft(SftConfig.model_validate(json.loads(given)), "out")
    except CoaError as error:
        print(error.message)
print("torch" in sys.modules, "transformers" in sys.modules)
"""


def test_a_dry_run_prints_settings_and_plan_and_loads_no_torch(data: Path, model: Path, tmp_path: Path) -> None:
    words = ["sft", "--model", str(model), "--data", str(data), "--out", str(tmp_path / "out"), "--dry-run"]
    done = subprocess.run([sys.executable, "-c", DRY_RUN, *words], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.endswith("False False\n"), done.stderr
    settings, end = json.JSONDecoder().raw_decode(done.stdout)
    rest = done.stdout[end:]
    assert settings["data"] == [str(data)]
    for said in (
        "12 trajectories to train on",
        "12 samples",
        "updates of",
        "memory of one process: about",
        QUESTIONS[0][:6],
    ):
        assert said in rest, rest
    assert not (tmp_path / "out").exists()


def test_for_machines_a_dry_run_is_one_object(data: Path, model: Path) -> None:
    done = CliRunner().invoke(app, ["sft", "--model", str(model), "--data", str(data), "--dry-run", "--json"])
    found = json.loads(done.stdout)
    assert found["config"]["model"] == str(model) and found["plan"]["phases"][0]["samples"] == 12
    assert sum(found["plan"]["memory"]["parts"].values()) > 0


def test_what_is_wrong_is_reported_before_torch_is_loaded(data: Path, tmp_path: Path) -> None:
    evaluated = {"data": [str(data)], "num_eval_tasks": 2}
    given = [
        {"data": ["nowhere.jsonl"]},
        {"data": [str(data)], "model": "./nothing"},
        {**evaluated, "scorer": "exakt"},
        {**evaluated, "tools": ["x=nomodule:Tool"]},
        {**evaluated, "world": "nowhere"},
        {**evaluated, "eval_tasks": "missing.jsonl"},
        {"data": [str(data)], "report_to": ["tensorbored"]},
    ]
    lines = "".join(json.dumps(row) + "\n" for row in given)
    done = subprocess.run([sys.executable, "-c", CHECKS], input=lines, capture_output=True, text=True, cwd=tmp_path)
    *said, loaded = done.stdout.splitlines()
    expected = [
        "nowhere.jsonl", "no folder ./nothing", "no scorer 'exakt'", "cannot be imported", "no world 'nowhere'",
        "missing.jsonl", "'tensorbored' is not known",
    ]  # fmt: skip
    assert len(said) == len(expected) and all(part in line for part, line in zip(expected, said, strict=True)), said
    assert loaded == "False False", "torch and transformers"
    assert not (tmp_path / "out").exists()


def test_data_without_a_trajectory_is_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(CoaError, match=r"no trajectory to train on|empty"):
        plan(SftConfig(data=(str(tmp_path / "empty.jsonl"),)))
