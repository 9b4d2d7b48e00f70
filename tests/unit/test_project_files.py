"""What workflows and hooks call exists, so that they do not fail first on somebody else's machine."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
EVERYWHERE = {"cd", "test", "sudo", "python", "make"}
"""What a fresh runner has; a path of its own making is known by its slash."""


def loaded(path: Path) -> dict[str, Any]:
    found = yaml.safe_load(path.read_text())
    assert isinstance(found, dict)
    return found


def jobs_of(path: Path) -> dict[str, dict[str, Any]]:
    jobs: dict[str, dict[str, Any]] = loaded(path)["jobs"]
    return jobs


def commands_of(path: Path) -> Iterator[list[str]]:
    for job in jobs_of(path).values():
        for step in job.get("steps", ()):
            for line in step.get("run", "").splitlines():
                yield shlex.split(line)


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_both_workflows_are_there() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "release.yml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_follow_the_schema_of_github_actions(path: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    ended = subprocess.run([*command, path], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_commands_of_a_workflow_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in commands_of(path):
        assert command[0] in EVERYWHERE or command[0].startswith("/tmp/fresh/bin/"), command
        if command[0] == "make":
            assert set(command[1:]) <= targets, command


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_jobs_of_a_workflow_need_jobs_that_exist(path: Path) -> None:
    jobs = jobs_of(path)
    for job in jobs.values():
        assert set(job.get("needs", ())) <= jobs.keys()
        called = job.get("uses", "")
        assert not called.startswith("./") or (ROOT / called).is_file(), called


def test_ci_tries_every_python_that_the_package_declares() -> None:
    declared = [text.rpartition(" ")[2] for text in project()["classifiers"] if "Python :: 3." in text]
    ci = ROOT / ".github/workflows/ci.yml"
    for name in ("test", "packages"):
        assert jobs_of(ci)[name]["strategy"]["matrix"]["python"] == declared
    assert {"test", "test-packages"} <= {command[1] for command in commands_of(ci) if command[0] == "make"}


def test_only_the_job_that_publishes_may_speak_for_the_project() -> None:
    release = ROOT / ".github/workflows/release.yml"
    allowed = {name for name, job in jobs_of(release).items() if "id-token" in job.get("permissions", {})}
    assert allowed == {"publish"} and loaded(release)["permissions"] == {"contents": "read"}
    assert set(jobs_of(release)["publish"]["needs"]) == {"test", "build"}


def test_hooks_are_the_checks_of_make_lint() -> None:
    (local,) = loaded(ROOT / ".pre-commit-config.yaml")["repos"]
    entries = [hook["entry"] for hook in local["hooks"]]
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    checks = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]
    assert entries == [check.removesuffix(" .").removesuffix(" --check") for check in checks]
    for entry in entries:
        assert shutil.which(ROOT / entry.split()[0]), f"{entry}: make setup installs it"


def test_every_extra_that_a_message_names_is_declared() -> None:
    named = set()
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        for extras in re.findall(r"chain-of-agents\[([a-z,]+)\]", path.read_text()):
            named.update(extras.split(","))
    assert named and named <= project()["optional-dependencies"].keys()
