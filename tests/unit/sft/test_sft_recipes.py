"""Every recipe loads, and says what the paper says."""

from __future__ import annotations

from pathlib import Path

import pytest

from coa.config import describe_config, load_config
from coa.models.footprint import ModelShape
from coa.sft import plan
from coa.sft.config import SftConfig
from coa.sft.dry_run import memory_of
from coa.sft.launch import Launch
from coa.trajectory import write
from support.builders import make_trajectory
from support.commands import save_tiny_model

RECIPES = sorted((Path(__file__).parents[3] / "configs" / "sft").glob("*.toml"))
SIZES = {
    "3b": ModelShape(3_085_938_688, 36, 2048, 11_008, 2048, 256, 151_936, True),
    "7b": ModelShape(7_615_616_512, 28, 3584, 18_944, 3584, 512, 152_064, False),
    "32b": ModelShape(32_763_876_352, 64, 5120, 27_648, 5120, 1024, 152_064, False),
}
"""Of the Qwen2.5 models that the recipes train."""
LARGE = [path for path in RECIPES if path.stem.rpartition("-")[2] in SIZES]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads(path: Path) -> None:
    config = load_config(SftConfig, path)
    assert config.model and config.phases[-1].max_length >= 1024


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_can_be_planned_for_eight_gpus(path: Path, tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")
    runs = [make_trajectory(("answer", f"{n}"), question=f"Who {n}?", profile="nano") for n in range(8)]
    write(tmp_path / "runs.jsonl", runs)
    given = {"model": str(tmp_path / "model"), "data": (str(tmp_path / "runs.jsonl"),)}
    found = plan(load_config(SftConfig, path, given=given), launch=Launch(gpus_per_node=8))
    assert found.fits and found.rows_per_update % 8 == 0


@pytest.mark.parametrize("path", LARGE, ids=lambda path: path.stem)
def test_every_large_recipe_fits_into_the_gpus_that_it_names_and_says_where_it_differs(path: Path) -> None:
    text, config = path.read_text(), load_config(SftConfig, path)
    assert "# Differs from the paper: " in text and f"configs/sft/{path.name} --launch" in text
    launch = Launch()
    if "--nnodes 2" in text:
        launch = Launch(nnodes=2, main_address="first")
        config = config.model_copy(update={"sequence_parallel_size": 2})
    rows = config.micro_batch_tokens or config.phases[-1].max_length
    memory = memory_of(SIZES[path.stem.rpartition("-")[2]], config, launch, rows)
    assert memory.total <= 0.9 * 80e9, memory


def test_the_papers_figures_are_in_the_recipes() -> None:
    """lr, epochs, tokens of the longest phase, batch (the paper names none for multi-hop)."""
    found = {path.stem: load_config(SftConfig, path) for path in RECIPES}
    for name, lr, epochs, tokens, batch in [
        ("web-7b", 1.4e-5, 2.5, 32_768, 256),
        ("web-32b", 1.4e-5, 2.5, 32_768, 256),
        ("mhqa-3b", 1e-5, 4, 5_120, None),
        ("mhqa-7b", 2e-5, 4, 5_120, None),
        ("code-7b", 3e-5, 2, 32_768, 32),
        ("code-32b", 1.4e-5, 2, 32_768, 64),
    ]:
        config = found[name]
        assert (config.lr, config.warmup_ratio, config.lora) == (lr, 0.1, None)
        assert sum(phase.epochs for phase in config.phases) == epochs
        assert config.phases[-1].max_length == tokens
        assert batch is None or config.batch_size == batch


def test_a_size_that_the_paper_did_not_train_has_the_settings_that_its_recipe_says() -> None:
    found = {path.stem: load_config(SftConfig, path) for path in RECIPES}
    assert found["web-3b"] == found["web-7b"].model_copy(update={"model": "Qwen/Qwen2.5-3B-Instruct"})


def test_every_setting_is_explained() -> None:
    lines = describe_config(SftConfig).splitlines()
    assert any(line.startswith("lora.rank") for line in lines)
    assert [line for line in lines if not line.endswith(".")] == []
