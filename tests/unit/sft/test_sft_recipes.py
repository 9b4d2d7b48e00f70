"""Every recipe loads, and says what the paper says."""

from __future__ import annotations

from pathlib import Path

import pytest

from coa.config import describe_config, load_config
from coa.sft.config import SftConfig

RECIPES = sorted((Path(__file__).parents[3] / "configs" / "sft").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads(path: Path) -> None:
    config = load_config(SftConfig, path)
    assert config.model and config.phases[-1].max_length >= 1024


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
