"""Settings of a training run: those of its size, those that are newer than the run, and where it is reported."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from coa.errors import FolderError, TrainingError
from coa.rl.config import RlConfig
from coa.sft.config import SMALL, SftConfig, load_config
from coa.training.run_folder import claim
from coa.training.trackers import refuse_absent

NANO = Path(__file__).parents[3] / "configs" / "sft" / "nano.toml"


def test_the_embedded_model_gets_settings_of_its_size_where_no_recipe_is_given() -> None:
    recipe = tomllib.loads(NANO.read_text())
    assert recipe.pop("model") == "smollm2" and recipe == SMALL
    bare = load_config(None, ["seed=3", "lr=1e-4"], data=("d",))
    assert (bare.batch_size, bare.max_tokens, bare.seed, bare.lr) == (8, 1024, 3, 1e-4)
    assert load_config(None, [], model="some/other").batch_size == SftConfig().batch_size == 256


def _claim(out: Path, config: RlConfig) -> None:
    claim(out, "rl", config, "f", free=(), seed=0, coa="1")


def test_a_run_goes_on_though_it_is_older_than_a_setting(tmp_path: Path) -> None:
    _claim(tmp_path, RlConfig(steps=3))
    (tmp_path / "metrics.jsonl").write_text("{}")
    kept = json.loads((tmp_path / "config.json").read_text())
    del kept["config"]["families"]
    (tmp_path / "config.json").write_text(json.dumps(kept))
    _claim(tmp_path, RlConfig(steps=3))
    with pytest.raises(FolderError, match="families was"):
        _claim(tmp_path, RlConfig(steps=3, families=("a",)))


def test_a_tracker_that_is_not_there_is_named_before_anything_is_loaded() -> None:
    refuse_absent(())
    refuse_absent(("tensorboard",))
    with pytest.raises(TrainingError, match="'tensorbord' is not known"):
        refuse_absent(("tensorbord",))
    with pytest.raises(TrainingError, match="swanlab is not installed") as refused:
        refuse_absent(("tensorboard", "swanlab"))
    assert refused.value.hint and "pip install swanlab" in refused.value.hint
