"""Settings of a training run: those of its size, those that are newer than the run, and where it is reported."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from coa.config import load_config
from coa.errors import FolderError, TrainingError
from coa.rl.config import Guards, Reward, RlConfig
from coa.sft.config import SMALL, Phase, SftConfig
from coa.training.requirements import refuse_absent
from coa.training.run_folder import claim
from coa.training.settings import Lora
from coa.trajectory.types import Frozen

NANO = Path(__file__).parents[3] / "configs" / "sft" / "nano.toml"


def test_the_embedded_model_has_defaults_of_its_size_from_the_command_line_and_from_python() -> None:
    recipe = tomllib.loads(NANO.read_text())
    assert recipe.pop("model") == "smollm2" and recipe == SMALL
    bare = load_config(SftConfig, None, ["seed=3", "lr=1e-4"], given={"data": ("d",)})
    assert (bare.batch_size, bare.max_length, bare.seed, bare.lr) == (8, 1024, 3, 1e-4)
    assert bare == SftConfig(seed=3, lr=1e-4, data=("d",))
    other = load_config(SftConfig, given={"model": "some/other"})
    assert other.batch_size == SftConfig(model="some/other").batch_size == 256


def test_numbers_without_a_point_are_learning_rates_too() -> None:
    found = load_config(SftConfig, None, ["lr=1"]).lr
    assert found == 1.0 and isinstance(found, float)


def test_old_keys_of_rl_are_accepted_with_a_warning_in_tables_too(caplog: pytest.LogCaptureFixture) -> None:
    old = ["group=4", "mean=sequence", "ratio=sequence", "kl_in=reward", "ahead=1", "guards.moved=0.3",
           "reward.well_formed=false", "lora.targets=x"]  # fmt: skip
    found = load_config(RlConfig, None, old)
    assert (found.num_generations, found.loss_agg_mode, found.policy_loss) == (4, "seq-mean-token-mean", "gspo")
    assert found.use_kl_in_reward and found.one_step_off_policy and found.guards.max_policy_kl == 0.3
    assert not found.reward.require_format and found.lora and found.lora.target_modules == "x"
    assert "group is now called num_generations" in caplog.text
    assert "guards.moved is now called max_policy_kl" in caplog.text
    assert load_config(RlConfig, None, ["baseline=token"]).advantage_estimator == "token_baseline"


def test_old_keys_of_sft_are_accepted_with_a_warning_in_lists_of_tables_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "old.toml").write_text(
        'model = "m"\nwarmup = 0.2\nrow_tokens = 64\ncontext = [{ max_tokens = 32, epochs = 1.0 }]\n'
        "[lora]\ndora = true\n"
    )
    found = load_config(SftConfig, tmp_path / "old.toml", ["patience=2", "held_out=3"])
    assert (found.warmup_ratio, found.micro_batch_tokens, found.early_stopping_patience) == (0.2, 64, 2)
    assert found.phases[0].max_length == 32 and found.lora and found.lora.use_dora
    assert "length_schedule.max_tokens is now called max_length" in caplog.text


@pytest.mark.parametrize("kind", [RlConfig, Reward, Guards, Lora, SftConfig, Phase])
def test_every_old_key_has_a_new_one_and_is_not_in_use_itself(kind: type[Frozen]) -> None:
    renamed: dict[str, str] = kind.RENAMED  # type: ignore[attr-defined]
    assert set(renamed.values()) <= set(kind.model_fields) and not set(renamed) & set(kind.model_fields)
    assert len(set(renamed.values())) == len(renamed)


def _claim(out: Path, config: RlConfig) -> None:
    claim(out, "rl", config, "f", free=())


def test_a_run_goes_on_though_it_is_older_than_a_setting(tmp_path: Path) -> None:
    _claim(tmp_path, RlConfig(max_steps=3))
    (tmp_path / "metrics.jsonl").write_text("{}")
    kept = json.loads((tmp_path / "config.json").read_text())
    del kept["config"]["families"]
    (tmp_path / "config.json").write_text(json.dumps(kept))
    _claim(tmp_path, RlConfig(max_steps=3))
    with pytest.raises(FolderError, match="families was"):
        _claim(tmp_path, RlConfig(max_steps=3, families=("a",)))


def test_a_run_that_was_started_under_old_names_goes_on(tmp_path: Path) -> None:
    """As version 0.1 wrote its config.json; what differs in substance is still refused."""
    config = RlConfig(num_generations=4, loss_agg_mode="seq-mean-token-mean", use_kl_in_reward=True, lora=Lora(rank=4))
    _claim(tmp_path, config)
    (tmp_path / "metrics.jsonl").write_text("{}")
    kept = json.loads((tmp_path / "config.json").read_text())
    kept["config"] = _under_old_names(RlConfig, kept["config"])
    assert kept["config"]["mean"] == "sequence" and kept["config"]["kl_in"] == "reward"
    assert kept["config"]["lora"]["targets"] == "all-linear" and kept["config"]["guards"]["moved"] == 0.1
    (tmp_path / "config.json").write_text(json.dumps(kept))
    _claim(tmp_path, config)
    with pytest.raises(FolderError, match="num_generations was 4 and is now 6"):
        _claim(tmp_path, config.model_copy(update={"num_generations": 6}))


def _under_old_names(kind: type[Frozen], data: dict[str, Any]) -> dict[str, Any]:
    tables: dict[str, type[Frozen]] = {"reward": Reward, "guards": Guards, "lora": Lora}
    old_of = {new: old for old, new in kind.RENAMED.items()}  # type: ignore[attr-defined]
    found = {}
    for key, value in data.items():
        old = old_of.get(key, key)
        values = {new: was for was, new in getattr(kind, "RENAMED_VALUES", {}).get(old, {}).items()}
        found[old] = (
            _under_old_names(tables[key], value) if key in tables else values.get(value, value) if values else value
        )
    return found


def test_a_tracker_that_is_not_there_is_named_before_anything_is_loaded() -> None:
    refuse_absent(())
    refuse_absent(("tensorboard",))
    with pytest.raises(TrainingError, match="'tensorbord' is not known"):
        refuse_absent(("tensorbord",))
    with pytest.raises(TrainingError, match="swanlab is not installed") as refused:
        refuse_absent(("tensorboard", "swanlab"))
    assert refused.value.hint and "pip install swanlab" in refused.value.hint
