"""A run that is killed and started again ends with the very weights of one that was left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from coa.errors import FolderError, TrainingError
from coa.models.local.model import load_weights
from coa.progress import PrintProgress
from coa.rl.config import RlConfig
from coa.rl.engines.local import train
from coa.runtime.live import FOLDER, LiveRun, read_live
from coa.trajectory import Sample, load_profile, read, to_sample
from support.keys import Keyed, before_rl, key_tasks, settings

STARTED = """
import random, sys, time
from pathlib import Path
from coa.rl.config import RlConfig
from coa.rl.engines.local import train
from support.keys import Keyed
# How long the tool takes must not matter.
tool = Keyed(lambda query: time.sleep(random.random() * 0.004))
train(RlConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]), tools={"web_search": tool})
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("base")
    made = settings(before_rl(folder, steps=80), key_tasks(folder / "tasks.jsonl"))
    # More is drawn than is used, so that there is a surplus to be kept.
    return {**made, "max_steps": 4, "train_batch_size": 3, "gen_batch_size": 5, "num_mini_batches": 2, "save_steps": 1}


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


@pytest.mark.parametrize(
    "extra", [{}, {"lora": {"rank": 4, "dropout": 0.1}, "task_sampling": "difficulty"}], ids=["full", "lora"]
)
def test_killed_and_resumed_equals_uninterrupted_bit_for_bit(
    base: dict[str, object], extra: dict[str, object], tmp_path: Path
) -> None:
    config = RlConfig.model_validate({**base, **extra})
    train(config, tmp_path / "whole", tools={"web_search": Keyed()})

    run = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-c", STARTED, config.model_dump_json(), str(run)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])},
    )
    while not (run / "checkpoint-2" / "complete").is_file():
        assert process.poll() is None, "it ended by itself"
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    (run / "checkpoint-999").mkdir()  # as a kill in the middle of saving leaves one
    assert not (run / "model").exists()

    said: list[str] = []
    train(config, run, tools={"web_search": Keyed()}, progress=PrintProgress(said.append))
    assert any("going on after step" in line for line in said) and not (run / "checkpoint-999").exists()
    whole, resumed = weights(tmp_path / "whole"), weights(run)
    assert whole.keys() == resumed.keys() and all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_finished_run_is_not_run_again_and_another_config_is_refused(base: dict[str, object], tmp_path: Path) -> None:
    config = RlConfig.model_validate({**base, "max_steps": 1})
    tools = {"web_search": Keyed()}
    train(config, tmp_path / "run", tools=tools)
    said: list[str] = []
    assert train(config, tmp_path / "run", tools=tools, progress=PrintProgress(said.append)).finished
    assert said == [f"finished already: {tmp_path / 'run' / 'model'}"]
    with pytest.raises(TrainingError, match=r"reward\.judge=URL"):
        train(RlConfig.model_validate({**base, "reward": {"scorer": "judge"}}), tmp_path / "judged", tools=tools)
    with pytest.raises(FolderError, match=r"lr was 0\.\d+ and is now 0\.5"):
        train(config.model_copy(update={"lr": 0.5}), tmp_path / "run", tools=tools)


def test_a_guard_that_stopped_a_run_may_be_set_otherwise_to_go_on(base: dict[str, object], tmp_path: Path) -> None:
    config = RlConfig.model_validate({**base, "max_steps": 2, "guards": {"max_logprob_diff": 1e-30}})
    tools = {"web_search": Keyed()}
    with pytest.raises(TrainingError, match=r"raise guards\.max_logprob_diff"):
        train(config, tmp_path / "run", tools=tools)
    raised = config.model_copy(update={"guards": config.guards.model_copy(update={"max_logprob_diff": 0.05})})
    assert train(raised, tmp_path / "run", tools=tools).finished


def test_ctrl_c_saves_and_the_same_call_goes_on(base: dict[str, object], tmp_path: Path) -> None:
    config = RlConfig.model_validate({**base, "max_steps": 3, "save_steps": 100})
    tools = {"web_search": Keyed()}

    def interrupt(line: str) -> None:
        if line.startswith("step 1/"):
            os.kill(os.getpid(), signal.SIGINT)

    stopped = train(config, tmp_path / "run", tools=tools, progress=PrintProgress(interrupt))
    assert not stopped.finished and stopped.steps < 3
    assert train(config, tmp_path / "run", tools=tools).finished
    train(config, tmp_path / "whole", tools=tools)
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "run")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_running_attempts_are_seen_from_outside(base: dict[str, object], tmp_path: Path) -> None:
    seen: list[LiveRun] = []
    tool = Keyed(lambda query: seen.extend(read_live(tmp_path / "run")))
    train(RlConfig.model_validate({**base, "max_steps": 1}), tmp_path / "run", tools={"web_search": tool})
    assert any(run.steps and run.steps[-1].agent == "web_search" for run in seen)
    assert {run.sample for run in seen} >= {0, 1} and not (tmp_path / "run" / FOLDER).exists()


def logprobs(folder: Path, weights: Path, sample: Sample) -> torch.Tensor:
    model, _ = load_weights(str(folder))
    saved = load_file(weights / "weights.safetensors")
    model.load_state_dict(saved, strict=False)
    ids = torch.tensor([sample.ids])
    targets = torch.tensor([sample.labels.get(at, token) for at, token in enumerate(sample.ids)])[1:]
    with torch.no_grad():
        found = model(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(1, targets[:, None])[:, 0]
    return found[torch.tensor(sample.mask)[1:]]


def test_attempts_made_ahead_are_of_the_weights_before_the_step_in_which_they_are_made(
    base: dict[str, object], tmp_path: Path
) -> None:
    """Step 3 learns from what the weights after step 1 wrote, stopped and gone on or not."""
    config = RlConfig.model_validate(
        {
            **base,
            "one_step_off_policy": True,
            "importance_sampling_cap": 2.0,
            "save_total_limit": 9,
            "train_batch_size": 4,
            "gen_batch_size": 4,
            "lr": 3e-3,
        }
    )
    tools = {"web_search": Keyed()}
    run = tmp_path / "run"
    assert train(config, run, tools=tools).finished
    _, tokenizer = load_weights(str(base["model"]))
    sampled = [t for t in read(run / "groups" / "step-0003.jsonl") if t.meta["rl"]["step"] == 2]  # type: ignore[index, call-overload]
    assert len(sampled) == 32, "all were made during step 2"
    profile = load_profile(str(base["profile"]))
    gaps = []
    for at in (1, 2):
        found = []
        for trajectory in sampled[:8]:
            sample = to_sample(trajectory, tokenizer, profile, ends=True)
            assert sample.logprobs is not None
            then = torch.tensor([p for p, written in zip(sample.logprobs, sample.mask, strict=True) if written])
            found.append((logprobs(Path(str(base["model"])), run / f"checkpoint-{at}", sample) - then).abs().max())
        gaps.append(float(max(found)))
    assert gaps[0] < 1e-4 and gaps[1] > 1e-3, gaps

    def interrupt(line: str) -> None:
        if line.startswith("step 2/"):
            os.kill(os.getpid(), signal.SIGINT)

    stopped = train(config, tmp_path / "stopped", tools=tools, progress=PrintProgress(interrupt))
    assert not stopped.finished and stopped.steps < 4
    assert train(config, tmp_path / "stopped", tools=tools).finished
    rows = [json.loads(line)["step"] for line in (tmp_path / "stopped" / "metrics.jsonl").read_text().splitlines()]
    assert rows == [1, 2, 3, 4]
