"""The environment in which the engine runs: versions, verl's names, and what is refused before Ray starts."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from coa.config import load_config
from coa.rl.config import RlConfig
from coa.rl.engines.verl import checks, signatures
from coa.rl.engines.verl.launch import compose
from coa.rl.engines.verl.settings import verl_settings
from support.verl_runs import ROOT, config_file, environment, rl

RECIPES = sorted((ROOT / "configs" / "rl").glob("*.toml"))


def test_the_installed_versions_are_the_pinned_ones_and_agree() -> None:
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints-verl.txt").read_text(), re.M))
    for name in checks.NEEDED:
        assert version(name).partition("+")[0] == pinned[name], name
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_verl_has_every_name_that_the_engine_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(signatures.moved()) == []
    monkeypatch.setitem(signatures.FUNCTIONS, "verl.trainer.ppo.v1:get_trainer_cls", ("name", "colour"))
    monkeypatch.setitem(signatures.FUNCTIONS, "verl.trainer.ppo.v1:no_such_function", ())
    monkeypatch.setitem(signatures.MODELS, "verl.workers.rollout.replica:TokenOutput", ("token_ids", "smell"))
    assert list(signatures.moved()) == [
        "verl.trainer.ppo.v1:get_trainer_cls has no parameter colour",
        "verl.trainer.ppo.v1:no_such_function is gone",
        "verl.workers.rollout.replica:TokenOutput has no field smell",
    ]


@pytest.mark.parametrize("rollout", ["vllm", "sglang"])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_composes_with_verls_own_rules(recipe: Path, rollout: str, tmp_path: Path) -> None:
    config = load_config(RlConfig, recipe, [f"verl.rollout={rollout}", "engine=verl"])
    if recipe.stem in ("nano", "tiny"):  # recipes for a CPU, which freeze layers or draw by difficulty
        changed = {"freeze_layers": 0, "freeze_embeddings": False, "task_sampling": "shuffle"}
        config = config.model_copy(update={**changed, "verl": config.verl.model_copy(update={"gpus_per_node": 1})})
    checks.refuse_unsupported(config)
    composed = compose(
        verl_settings(config, tmp_path, model="m", context_tokens=32768, prompt_tokens=1024, held_out=False)
    )
    assert composed.actor_rollout_ref.rollout.name == rollout
    assert composed.actor_rollout_ref.rollout.n == config.num_generations
    assert composed.data.train_batch_size == config.train_batch_size
    assert composed.actor_rollout_ref.actor.ppo_mini_batch_size * config.num_mini_batches == config.train_batch_size
    assert composed.algorithm.filter_groups.enable == config.dynamic_sampling
    assert composed.actor_rollout_ref.rollout.skip_tokenizer_init is False


def test_settings_that_verl_refuses_are_explained(tmp_path: Path) -> None:
    config = config_file(tmp_path, verl__overrides={"actor_rollout_ref.actor.loss_agg_mode": "no-such-mode"})
    assert "verl refuses these settings" in rl(config, tmp_path / "run", code=1)


@pytest.mark.parametrize(
    ("changed", "code", "said"),
    [
        ({"num_mini_batches": 4}, 2, "cannot be split into 4 equal mini-batches"),
        ({"verl__gpus_per_node": 5}, 2, "cannot be divided among 5 training processes"),
        ({"max_model_len": 4096}, 1, "the model was made for 256 tokens"),
        ({"freeze_layers": 1}, 2, "cannot do freeze_layers=1"),
        ({"tools": ["web_search=no_such_module:tool"]}, 1, "no_such_module"),
    ],
)
def test_what_cannot_work_is_refused_before_ray_starts(
    changed: dict[str, object], code: int, said: str, tmp_path: Path
) -> None:
    printed = rl(config_file(tmp_path, **changed), tmp_path / "run", code=code)
    assert said in printed and "hint:" in printed
    assert not (tmp_path / "run" / "verl" / "config.yaml").exists(), "verl was started"


def test_a_search_server_that_is_down_ends_the_run_before_a_model_is_loaded(tmp_path: Path) -> None:
    printed = rl(config_file(tmp_path, tools=["web_search=http://127.0.0.1:9"]), tmp_path / "run", code=1)
    assert "SearXNG cannot be reached at http://127.0.0.1:9" in printed and "the node 127.0.0" in printed
    assert not (tmp_path / "run" / "groups").exists()


def test_a_dry_run_prints_the_settings_of_verl(tmp_path: Path) -> None:
    printed = rl(config_file(tmp_path), tmp_path / "run", "--dry-run")
    assert "settings of verl 0.9.1" in printed and "++actor_rollout_ref.rollout.n=24" in printed
    assert not (tmp_path / "run").exists()


def test_the_doctor_finds_everything_in_order(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coa", "doctor", str(config_file(tmp_path)), "--engine", "verl"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all names that coa uses are there" in done.stdout and "batches divide and contexts fit" in done.stdout
