"""The settings of `coa rl` as settings of verl, and what is refused; none of it needs verl."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coa.errors import ConfigError, TrainingError
from coa.rl.config import RlConfig
from coa.rl.engines.verl.checks import positions_of, refuse_few_gpus, refuse_too_long, refuse_unsupported, unused
from coa.rl.engines.verl.dataset import write_loops, write_tasks
from coa.rl.engines.verl.settings import Files, as_overrides, environment, verl_settings
from coa.trajectory import Limits, Task


def settings(**given: Any) -> dict[str, Any]:
    config = RlConfig.model_validate({"engine": "verl", **given})
    return verl_settings(
        config, Path("run"), model="models/m", context_tokens=1000, prompt_tokens=90, held_out=bool(config.eval_tasks)
    )


def test_keys_of_the_local_engine_have_their_counterparts_in_verl() -> None:
    found = settings(
        train_batch_size=64, num_mini_batches=4, num_generations=16, clip_ratio_high=0.3, kl_coef=0.02, lr=2e-6,
        warmup_steps=6, dynamic_sampling=True, filter_groups_metric="score", top_k=0, max_staleness=3, save_steps=7,
        max_steps=11, seed=5, importance_sampling_cap=3.0, scale_rewards="none",
    )  # fmt: skip
    expected = {
        "data.train_batch_size": 64,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 16,
        "actor_rollout_ref.rollout.n": 16,
        "actor_rollout_ref.actor.clip_ratio_high": 0.3,
        "actor_rollout_ref.actor.use_kl_loss": True,
        "actor_rollout_ref.actor.kl_loss_coef": 0.02,
        "actor_rollout_ref.actor.optim.lr": 2e-6,
        "actor_rollout_ref.actor.optim.lr_warmup_steps": 2,  # six updates are one step and a half
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.metric": "counted",
        "algorithm.rollout_correction.rollout_is": "token",
        "algorithm.rollout_correction.rollout_is_threshold": 3.0,
        "algorithm.norm_adv_by_std_in_grpo": False,
        "actor_rollout_ref.rollout.top_k": -1,
        "trainer.v1.sampler.max_off_policy_threshold": 4,
        "trainer.v1.sampler.sync_refill_failed_groups": True,
        "trainer.save_freq": 7,
        "trainer.total_training_steps": 11,
        "data.seed": 5,
        "actor_rollout_ref.rollout.max_model_len": 1000,
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
    }
    assert {name: found[name] for name in expected} == expected


def test_a_kl_in_the_reward_is_none_in_the_loss() -> None:
    found = settings(kl_coef=0.02, use_kl_in_reward=True)
    assert found["algorithm.use_kl_in_reward"] and not found["actor_rollout_ref.actor.use_kl_loss"]


def test_a_cpu_gets_our_own_rollout_in_fp32_and_a_gpu_does_not() -> None:
    cpu, gpu = settings(verl={"device": "cpu"}), settings()
    assert cpu["actor_rollout_ref.rollout.name"] == "coa" and gpu["actor_rollout_ref.rollout.name"] == "vllm"
    assert cpu["trainer.n_gpus_per_node"] == 1 and gpu["trainer.n_gpus_per_node"] == 8
    assert not any("mixed_precision" in name for name in gpu)
    assert environment(RlConfig(), Path("run")).get("VERL_PLATFORM") is None


def test_overrides_come_last_and_reach_verl_as_written() -> None:
    name = "actor_rollout_ref.rollout.enforce_eager"
    found = settings(verl={"overrides": {name: True, "trainer.logger": ["console"], "data.seed": None}})
    assert found["trainer.logger"] == ["console"]
    written = as_overrides({name: found[name], "a": ["x'y", 2], "b": None, "c": {"k": 1.5}})
    assert written == [f"++{name}=true", "++a=['x\\'y',2]", "++b=null", "++c={k:1.5}"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"advantage_estimator": "token_baseline"}, "cannot do advantage_estimator=token_baseline"),
        ({"freeze_embeddings": True}, "cannot do freeze_embeddings=true"),
        ({"full_determinism": True}, "cannot do full_determinism=true"),
        ({"clip_ratio_c": 0}, "cannot turn the dual clip off"),
        ({"train_batch_size": 10, "num_mini_batches": 4}, "cannot be split into 4 equal mini-batches"),
        ({"train_batch_size": 2, "num_generations": 3, "verl": {"gpus_per_node": 4}}, "among 4 training processes"),
        ({"reward": {"judge": "http://me:secret@host/v1"}}, "holds a password"),
        ({"lora": {}}, "no adapters"),
    ],
)
def test_what_verl_cannot_do_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        refuse_unsupported(RlConfig.model_validate({"engine": "verl", **given}))
    assert caught.value.hint


def test_all_that_verl_cannot_do_is_said_at_once_with_the_settings_that_it_needs() -> None:
    with pytest.raises(ConfigError) as caught:
        refuse_unsupported(RlConfig(engine="verl", freeze_embeddings=True, freeze_layers=2, task_sampling="family"))
    assert "freeze_layers=2" in caught.value.message
    assert caught.value.hint == (
        "--set freeze_embeddings=false --set freeze_layers=0 --set task_sampling=shuffle, or use --engine local"
    )


def test_old_checkpoints_go_after_the_new_one_is_named_and_torn_ones_too(tmp_path: Path) -> None:
    files = Files(tmp_path)
    for step in (2, 4, 6, 8):
        (files.checkpoints / f"global_step_{step}").mkdir(parents=True)
    (files.checkpoints / "latest_checkpointed_iteration.txt").write_text("6")
    files.prune(2)
    assert sorted(path.name for path in files.checkpoints.glob("global*")) == ["global_step_4", "global_step_6"]


def test_the_gpus_that_sample_must_divide_among_copies_of_the_model() -> None:
    with pytest.raises(ValueError, match="GPUs that sample, which is 2"):
        RlConfig.model_validate(
            {"verl": {"trainer_mode": "separate_async", "rollout_gpus_per_node": 2, "tensor_parallel_size": 8}}
        )


def test_a_ray_of_its_own_is_asked_for_by_local_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from coa.rl.engines.verl.settings import cluster_address

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert cluster_address(RlConfig()) is None and cluster_address(RlConfig(ray="local")) is None
    assert cluster_address(RlConfig(ray="head:6379")) == "head:6379"


def test_sequence_parallelism_reduces_the_number_of_processes_that_share_a_batch() -> None:
    """Eight processes of which two share an attempt: four share the batch, and 4 attempts divide by it."""
    given = {"train_batch_size": 1, "num_generations": 4, "verl": {"sequence_parallel_size": 2}}
    refuse_unsupported(RlConfig.model_validate({"engine": "verl", **given}))
    with pytest.raises(ConfigError, match="among 8 training processes"):
        refuse_unsupported(RlConfig.model_validate({"engine": "verl", "train_batch_size": 1, "num_generations": 4}))


def test_a_tool_object_of_this_process_is_refused() -> None:
    with pytest.raises(ConfigError, match="is an object of this process"):
        refuse_unsupported(RlConfig(engine="verl"), {"web_search": object()})  # type: ignore[dict-item]


def test_lengths_are_compared_before_anything_starts(tmp_path: Path) -> None:
    limits = [Limits(model_tokens=50, context_tokens=100)]
    assert refuse_too_long(limits, 40, None) == 100
    with pytest.raises(TrainingError, match="the longest prompt has 100 tokens"):
        refuse_too_long(limits, 100, None)
    with pytest.raises(TrainingError, match="made for 64 tokens"):
        refuse_too_long(limits, 40, 64)
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 64}')
    assert positions_of(tmp_path) == 64
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 64, "rope_scaling": {"factor": 4.0}}')
    assert positions_of(tmp_path) == 256
    assert positions_of(tmp_path / "absent") is None


def test_a_scaled_model_is_as_long_as_its_files_say(tmp_path: Path) -> None:
    """Llama 3.1 names the scaled number, and the original one it comes from."""
    rope = '{"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}'
    (tmp_path / "config.json").write_text(f'{{"max_position_embeddings": 131072, "rope_scaling": {rope}}}')
    assert positions_of(tmp_path) == 131_072


@pytest.mark.parametrize("there", [[8, 8], [16], [4, 12, 8]])
def test_machines_with_enough_gpus_are_taken(there: list[int]) -> None:
    refuse_few_gpus(RlConfig.model_validate({"verl": {"nnodes": 2, "gpus_per_node": 8}}), there)


@pytest.mark.parametrize(
    "there, message", [([8, 4], "needs 16 GPUs, and the cluster has 12"), ([4] * 4, "machines with 4, 4, 4, 4")]
)
def test_gpus_that_are_too_few_or_too_scattered_are_refused(there: list[int], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        refuse_few_gpus(RlConfig.model_validate({"verl": {"nnodes": 2, "gpus_per_node": 8}}), there)


def test_a_setting_without_use_is_named_but_does_not_keep_a_config_from_running() -> None:
    config = RlConfig.model_validate({"engine": "verl", "min_groups": 2, "precision": "bf16"})
    refuse_unsupported(config)
    assert unused(config) == [
        "min_groups=2 is not used: verl draws tasks until it has train_batch_size groups",
        "precision=bf16 is not used: verl trains in mixed precision; verl.overrides reach its fsdp_config",
    ]
    assert unused(RlConfig(engine="verl")) == []


def test_the_length_of_a_pass_holds_the_longest_attempt() -> None:
    name = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    assert settings()[name] == 8192
    assert settings(micro_batch_tokens=4096)[name] == 4096
    assert settings(micro_batch_tokens=512)[name] == 1000
    assert settings(micro_batch_tokens=4096, verl={"max_tokens_per_gpu": 2000})[name] == 2000


def test_held_out_tasks_are_looked_at_before_the_first_step_only(tmp_path: Path) -> None:
    config = RlConfig.model_validate({"engine": "verl", "eval_tasks": "held_out.jsonl"})

    def looks() -> Any:
        given = verl_settings(config, tmp_path, model="m", context_tokens=1000, prompt_tokens=90, held_out=True)
        return given["trainer.val_before_train"]

    assert looks() is True
    checkpoints = Files(tmp_path).checkpoints
    checkpoints.mkdir(parents=True)
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("3")
    assert looks() is False


def test_a_row_carries_the_whole_task(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    task = Task(id="a", question="How many?", answer=("3", "three"), meta={"family": "f"})
    write_tasks([task], tmp_path / "rows.parquet", RlConfig(), held_out=True)
    (row,) = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert Task.model_validate_json(row["extra_info"]["task"]) == task and row["extra_info"]["held_out"]
    assert row["agent_name"] == "coa" and "How many?" in row["prompt"][-1]["content"]


def test_few_tasks_are_repeated_until_they_fill_a_batch(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    tasks = [Task(id=name, question=name, answer=("1",)) for name in "abc"]
    write_tasks(tasks, tmp_path / "rows.parquet", RlConfig(train_batch_size=8), held_out=False)
    rows = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [Task.model_validate_json(row["extra_info"]["task"]).id for row in rows] == [*"abcabcabc"]
    assert [row["extra_info"]["index"] for row in rows] == list(range(9))


def test_the_agent_loop_is_registered_by_its_place(tmp_path: Path) -> None:
    import json

    files = Files(tmp_path)
    files.folder.mkdir()
    write_loops(files)
    (loop,) = json.loads(files.loops.read_text())
    assert loop["_target_"] == "coa.rl.engines.verl.loop.ChainLoop" and loop["run_file"] == str(files.run)


def test_the_newest_checkpoint_is_the_one_that_verl_names(tmp_path: Path) -> None:
    files = Files(tmp_path)
    assert files.latest == 0
    files.checkpoints.mkdir(parents=True)
    (files.checkpoints / "global_step_9").mkdir()  # torn: killed before it was named
    (files.checkpoints / "latest_checkpointed_iteration.txt").write_text("8")
    assert files.latest == 8 and files.latest_checkpoint.name == "global_step_8"


def test_planning_loads_neither_torch_nor_verl() -> None:
    code = (
        "import sys\nfrom coa.rl import dry_run\n"
        "assert not {'torch', 'verl', 'ray', 'hydra'} & sys.modules.keys(), 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_verl_the_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from coa.rl.engines.verl import checks

    monkeypatch.setattr(checks, "installed", lambda: iter([("verl", None)]))
    with pytest.raises(TrainingError, match="needs the package verl") as caught:
        checks.refuse_versions()
    assert "chain-of-agents[verl" in str(caught.value.hint)
    monkeypatch.setattr(checks, "installed", lambda: iter([("verl", "0.10.0")]))
    with pytest.raises(TrainingError, match=r"written for verl 0\.9\.1; verl 0\.10\.0 is installed"):
        checks.refuse_versions()
