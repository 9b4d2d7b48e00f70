"""What goes wrong: attempts that fail, tasks that are too hard, processes that are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from coa.models.local.model import load_weights
from coa.models.tokenizer import load_tokenizer
from coa.rl.engines.verl.loop import expressible
from coa.rl.engines.verl.settings import Files
from coa.runtime.on_ray import LOOPBACK_ONLY
from coa.trajectory import Trajectory, profile_of, read, to_sample
from support.verl_runs import alive, config_file, descendants, environment, metrics, rl, started, wait_until


def test_attempts_that_raise_hang_or_write_nothing_are_counted_and_become_no_row(tmp_path: Path) -> None:
    config = config_file(
        tmp_path, tool="web_search=support.unsound:knowing", max_steps=1, train_batch_size=4, num_generations=32,
        num_mini_batches=1, timeout_s=60, max_retries=0, dynamic_sampling=False,
    )  # fmt: skip
    out, log = tmp_path / "run", tmp_path / "unsound.txt"
    rl(config, out, UNSOUND_LOG=str(log))
    (row,) = metrics(out)
    made = list(read(out / "groups" / "step-0001.jsonl"))
    assert row["failed"] + len(made) == 128, "every attempt is counted"
    noted = [line.split() for line in log.read_text().splitlines()]
    broken = {(kind, seed) for kind, seed in noted if kind != "opened"}  # an attempt has one seed for all its calls
    assert {kind for kind, _ in broken} == {"raised", "crashed", "hung", "empty"}
    assert row["failed"] == len(broken), "those that broke are left out, and no others"
    opened = [process for kind, process in noted if kind == "opened"]
    assert len(opened) == len(set(opened)) < 8, "tools are opened once in a process, not for each attempt"
    # `trained_tokens` counts the rows of padding, too. It is what these attempts wrote, to the token.
    tokenizer = load_tokenizer(out / "model")
    samples = [expressible(to_sample(one, tokenizer, profile_of(one), ends=True)) for one in made]
    assert row["trained_tokens"] == sum(sample.trained for sample in samples) > 128
    assert row["grad_norm"] > 0 and row["prob_diff_max"] < 1e-5


def test_groups_without_a_difference_are_replaced_and_surplus_groups_are_thrown_away(tmp_path: Path) -> None:
    """A third of the tasks cannot be solved. The local engine would learn from surplus groups in the next steps."""
    changed = {"train_batch_size": 3, "filter_groups_metric": "score", "reward": {"require_format": False}}
    config, out = config_file(tmp_path, max_steps=4, **changed), tmp_path / "run"
    rows = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text().splitlines()]
    hard = {row["id"] for row in rows[::3]}
    given = [row | ({"answer": "unknowable"} if row["id"] in hard else {}) for row in rows]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, given)))
    rl(config, out)
    found = metrics(out)
    assert [row["groups_used"] for row in found] == [3] * 4, "each step learns from as many groups as it was asked to"
    thrown_away = 0
    for row in found:
        groups: dict[int, list[Trajectory]] = {}
        for one in read(out / "groups" / f"step-{row['step']:04}.jsonl"):
            groups.setdefault(note(one)["group"], []).append(one)
        assert all(note(one)["step"] == row["step"] for group in groups.values() for one in group)
        differing = {at for at, group in groups.items() if len({one.scores["counted"].value for one in group}) > 1}
        learnt = {at for at, group in groups.items() if note(group[0])["learnt"]}
        assert learnt <= differing and not any(groups[at][0].task.id in hard for at in learnt)
        assert row.get("groups_evicted", 0) == len(groups) - len(differing)
        assert row.get("groups_discarded", 0) == len(differing) - 3
        thrown_away += len(differing) - 3
    assert sum(row.get("groups_evicted", 0) for row in found) > 0 and thrown_away > 0


def note(trajectory: Trajectory) -> Any:
    """What the trainer has noted of an attempt."""
    return trajectory.meta["rl"]


def test_tasks_that_are_all_too_hard_end_the_run(tmp_path: Path) -> None:
    """verl would draw tasks for ever. The answer of no task can be written, so all rewards are equal."""
    config = config_file(
        tmp_path, max_steps=3, reward={"format_weight": 0.0}, filter_groups_metric="score", guards={"max_idle_steps": 2}
    )
    rows = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text().splitlines()]
    (tmp_path / "tasks.jsonl").write_text("\n".join(json.dumps({**row, "answer": "unknowable"}) for row in rows))
    said = rl(config, tmp_path / "run", code=1)
    assert "nothing to learn" in said and "use tasks that the model solves sometimes" in said


def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path: Path) -> None:
    config, out = config_file(tmp_path, max_steps=4, save_steps=100), tmp_path / "run"
    with started(config, out) as running:
        wait_until(lambda: len(metrics(out)) >= 1, timeout_s=600, running=running)
        running.send_signal(signal.SIGINT)
        running.wait(300)
        assert running.returncode == 1
    step = Files(out).latest
    assert 1 <= step < 4 and [row["step"] for row in metrics(out)] == list(range(1, step + 1))
    assert f"going on after step {step}" in rl(config, out)
    assert [row["step"] for row in metrics(out)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "victim", ["coa rl", "launch", "ray::WorkerDict", "ray::TokenActor", "ray::AgentLoopWorkerTQ", "ray::Runner"]
)
def test_a_killed_process_costs_no_more_than_the_steps_since_the_checkpoint(victim: str, tmp_path: Path) -> None:
    config, out = config_file(tmp_path, max_steps=4, save_steps=1), tmp_path / "run"
    with started(config, out) as running:
        wait_until(lambda: len(metrics(out)) >= 1, timeout_s=600, running=running)
        time.sleep(random.uniform(0, 4))
        below = descendants(running.pid)
        title = f"{sys.executable} -m coa.rl.engines.verl.launch" if victim == "launch" else victim
        ids = [running.pid] if victim == "coa rl" else [one for one, name in below.items() if name.startswith(title)]
        assert ids, (victim, below)
        os.kill(ids[0], signal.SIGKILL)
        running.wait(300)
    wait_until(lambda: not any(map(alive, below)), timeout_s=120)
    rl(config, out)
    assert [row["step"] for row in metrics(out)] == [1, 2, 3, 4]
    assert all((out / "groups" / f"step-000{step}.jsonl").is_file() for step in range(1, 5))


@pytest.mark.parametrize("after", ["starting Ray", "checking tools"])
def test_nothing_is_left_of_a_run_that_is_killed_while_it_starts(after: str, tmp_path: Path) -> None:
    """The child must not go on to train for a command that is gone: the same command would start a second trainer."""
    config, out = config_file(tmp_path, max_steps=2), tmp_path / "run"
    events = Files(out).events
    with started(config, out) as running:
        wait_until(
            lambda: events.is_file() and after in events.read_text(), timeout_s=300,
            running=running,
        )  # fmt: skip
        below = descendants(running.pid)
        assert any("coa.rl.engines.verl.launch" in title for title in below.values())
        os.kill(running.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(alive, below)), timeout_s=180)
    assert metrics(out) == []


def test_a_server_that_is_killed_for_want_of_memory_ends_the_run_and_is_named(tmp_path: Path) -> None:
    """Ray raises another error for it than for other deaths; unseen, the trainer would wait for ever."""
    code = (
        "import sys, time, ray\n"
        "from pathlib import Path\n"
        "from coa.rl.engines.verl.settings import Files\n"
        "from coa.rl.engines.verl.trainer import watch_over\n"
        "ray.init(address='local', num_cpus=1, include_dashboard=False, object_store_memory=100_000_000)\n"
        "@ray.remote\n"
        "class Hungry:\n"
        "    def eat(self):\n"
        "        held = bytearray(300_000_000)\n"
        "        time.sleep(600)\n"
        "hungry = Hungry.remote()\n"
        "eating = hungry.eat.remote()\n"
        "watch_over({'rollout server 0': hungry}, Files(Path(sys.argv[1])))\n"
        "time.sleep(600)\n"
    )
    low = {"RAY_memory_usage_threshold": "0.01", "RAY_memory_monitor_refresh_ms": "100", LOOPBACK_ONLY: "0"}
    files = Files(tmp_path)
    files.folder.mkdir()
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment(**low), capture_output=True)
    assert ended.returncode == 1, ended.stderr
    (event,) = map(json.loads, files.events.read_text().splitlines())
    assert event["message"] == (
        "the rollout server 0 has died: a machine ran out of memory, and Ray killed one of its processes"
    )


def test_the_merged_model_is_the_trainers(tmp_path: Path) -> None:
    """Of two processes: what the checkpoint of the first step holds is what sampled the second step's attempts."""
    config = config_file(tmp_path, max_steps=2, save_steps=1, save_total_limit=2, verl__gpus_per_node=2)
    out = tmp_path / "run"
    rl(config, out)
    first, merged = Files(out).checkpoints / "global_step_1", tmp_path / "merged"
    assert len(list((first / "actor").glob("model_world_size_2_rank_*.pt"))) == 2
    export = [sys.executable, "-m", "coa", "export"]
    to_model = ["--to", "model", "--out", str(merged)]
    subprocess.run([*export, str(first), *to_model], env=environment(), check=True, capture_output=True)
    model, _ = load_weights(merged, dtype=torch.float32, device="cpu")
    attempts = list(read(out / "groups" / "step-0002.jsonl"))
    assert len(attempts) >= 100
    tokenizer, worst = load_tokenizer(merged), 0.0
    for trajectory in attempts[:50]:
        sample = to_sample(trajectory, tokenizer, profile_of(trajectory))
        if sample.logprobs is None:
            continue
        with torch.no_grad():
            logits = model(torch.tensor([sample.ids])).logits[0]
        logprobs = torch.log_softmax(logits.float(), -1)
        for at, written in enumerate(sample.mask):
            if written:
                worst = max(worst, abs(float(logprobs[at - 1, sample.ids[at]]) - sample.logprobs[at]))
    assert worst < 1e-5
    last = tmp_path / "last"
    subprocess.run([*export, str(out), "--to", "model", "--out", str(last)], env=environment(), check=True)
    other, _ = load_weights(last, dtype=torch.float32, device="cpu")
    final, _ = load_weights(out / "model", dtype=torch.float32, device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(final.parameters(), other.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
