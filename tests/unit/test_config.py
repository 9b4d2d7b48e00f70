"""Settings that do not exist: which ones were meant."""

from __future__ import annotations

from typing import ClassVar

import pytest
from pydantic import BaseModel

from coa.config import ELSEWHERE, describe_config, load_config
from coa.distill import DistillConfig, TeachConfig
from coa.errors import ConfigError
from coa.evaluate import EvalConfig
from coa.rl import RlConfig
from coa.runtime import AskConfig
from coa.sampling import SampleConfig
from coa.serve.config import ServeConfig
from coa.sft import SftConfig

STAGES: list[type[BaseModel]] = [SftConfig, RlConfig, EvalConfig, SampleConfig, DistillConfig, TeachConfig, AskConfig]


@pytest.mark.parametrize(
    ("kind", "setting", "meant"),
    [
        (SftConfig, "learning_rate=1e-5", "did you mean lr?"),
        (SftConfig, "num_train_epochs=2", "did you mean epochs "),
        (SftConfig, "rank=4", "did you mean lora.rank?"),
        (SftConfig, "lora.lora_alpha=4", "did you mean lora.alpha?"),
        (SftConfig, "length_schedule=[{max_lenght=100, epochs=1}]", "did you mean length_schedule.max_length"),
        (RlConfig, "learning_rate=1e-5", "did you mean lr?"),
        (RlConfig, "group_size=8", "did you mean num_generations?"),
        (RlConfig, "epsilon_high=0.3", "did you mean clip_ratio_high?"),
        (RlConfig, "reward.scorrer='math'", "did you mean reward.scorer?"),
        (EvalConfig, "temperature=1", "did you mean run.temperature?"),
        (EvalConfig, "run.temprature=1", "did you mean run.temperature?"),
        (SampleConfig, "n=4", "did you mean samples?"),
        (DistillConfig, "qualty.tolerated=1", "did you mean quality?"),
        (DistillConfig, "max_tokens=100", "did you mean length.max_tokens?"),
        (TeachConfig, "max_token=3", "did you mean max_tokens?"),
        (ServeConfig, "agents.quick.temprature=1", "did you mean agents.NAME.temperature?"),
        (ServeConfig, "agents.quick.wolrd='atlas'", "did you mean agents.NAME.world?"),
        (AskConfig, "top-p=1", "did you mean top_p?"),
    ],
)
def test_a_key_that_does_not_exist_names_the_one_that_was_meant(
    kind: type[BaseModel], setting: str, meant: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(kind, settings=[setting])
    assert "there is no such setting" in str(refused.value) and meant in str(refused.value)


def test_a_name_of_the_users_is_not_taken_for_an_old_key(caplog: pytest.LogCaptureFixture) -> None:
    class Part(BaseModel):
        RENAMED: ClassVar[dict[str, str]] = {"old": "new"}
        new: int = 0

    class Whole(BaseModel):
        parts: dict[str, Part] = {}

    found = load_config(Whole, settings=["parts.old.old=3"])
    assert found.parts == {"old": Part(new=3)}
    assert "parts.old.old is now called new" in caplog.text


def test_keys_of_named_tables_are_listed_with_a_place_for_the_name() -> None:
    assert "\nagents.NAME.model " in describe_config(ServeConfig)


def test_a_key_like_no_other_names_none() -> None:
    with pytest.raises(ConfigError, match=r"xyzzy: there is no such setting$"):
        load_config(SftConfig, settings=["xyzzy=1"])


def test_names_of_other_libraries_lead_to_settings_that_exist() -> None:
    known = {name for kind in STAGES for name in _names(kind)}
    assert not {ours for names in ELSEWHERE.values() for ours in names} - known


def _names(kind: type[BaseModel], prefix: str = "") -> set[str]:
    found = set()
    for name, field in kind.model_fields.items():
        found |= {name, f"{prefix}{name}"}
        tables = [each for each in (field.annotation, *getattr(field.annotation, "__args__", ())) if each is not None]
        for table in tables:
            if isinstance(table, type) and issubclass(table, BaseModel):
                found |= _names(table, f"{prefix}{name}.")
    return found
