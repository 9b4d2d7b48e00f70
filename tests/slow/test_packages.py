"""The wheel as its users install it: every extra from the package index, `nano` after one command, the notebook without
the repository. Needs the network."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from support import wheels
from support.notebooks import RUN_CELLS, cells

pytestmark = pytest.mark.slow
IMPORTS = {
    "": "coa.cli.commands",
    "serve": "uvicorn, coa.serve.server",
    "tools": "tantivy, trafilatura, coa.tools.crawl_page",
    "eval": "math_verify, coa.scoring.math",
    "teacher": "smolagents",
    "worlds": "reasoning_gym",
    "serve,tools,eval": "uvicorn, tantivy, math_verify, coa.serve.server",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.build_wheel(tmp_path_factory.mktemp("wheel"))


def install(wheel: Path, folder: Path, extras: str = "") -> Path:
    python = wheels.empty_environment(folder / "env", pip=True)
    pip(python, folder, "install", "-q", f"chain-of-agents[{extras}] @ {wheel.as_uri()}" if extras else str(wheel))
    pip(python, folder, "check")
    return python


def pip(python: Path, home: Path, *arguments: str) -> None:
    called([str(python), "-m", "pip", *arguments], home)


def called(command: list[str], home: Path) -> str:
    done = subprocess.run(command, cwd=home, env=wheels.environment(home), capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    return done.stdout


@pytest.mark.parametrize("extras", IMPORTS, ids=lambda extras: extras or "core")
def test_an_extra_installs_alone_and_in_combination(wheel: Path, tmp_path: Path, extras: str) -> None:
    python = install(wheel, tmp_path, extras)
    called([str(python), "-c", f"import {IMPORTS[extras]}"], tmp_path)
    assert wheels.run(python, "doctor", home=tmp_path).returncode == 0


@pytest.mark.parametrize(
    "extras", ["local", "train", "demo", "ray", "serve,tools,local", "train,eval,tools,teacher,serve,worlds,ray"]
)
def test_extras_with_large_packages_resolve(wheel: Path, tmp_path: Path, extras: str) -> None:
    python = wheels.empty_environment(tmp_path / "env", pip=True)
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    options = ["--dry-run", "-q", "--report", "report.json", "-c", "constraints.txt"]
    pip(python, tmp_path, "install", *options, f"chain-of-agents[{extras}] @ {wheel.as_uri()}")
    chosen = {item["metadata"]["name"] for item in json.loads((tmp_path / "report.json").read_text())["install"]}
    assert "chain-of-agents" in chosen and ("torch" in chosen or extras == "ray")


def test_nano_answers_after_the_command_that_the_error_names(wheel: Path, tmp_path: Path) -> None:
    python = install(wheel, tmp_path)
    question = ("run", "--model", "nano", "--temperature", "0", "--seed", "3")
    refused = wheels.run(python, *question, home=tmp_path)
    assert refused.returncode == 1 and refused.stderr.rstrip().endswith("coa setup nano")
    called([str(python.with_name("coa")), "setup", "nano"], tmp_path)
    answered = wheels.run(python, *question, home=tmp_path)
    assert answered.returncode == 0 and "answer: 625" in answered.stdout + answered.stderr, answered.stderr


def test_the_notebook_trains_from_the_wheel_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    python = wheels.empty_environment(tmp_path / "env", pip=True)
    install_cell, *others = cells()
    placed = install_cell.replace('SOURCE = "chain-of-agents"', f"SOURCE = {os.fspath(wheel)!r}")
    assert placed != install_cell
    (tmp_path / "cells.json").write_text(json.dumps([placed, *others]))
    shown = called([str(python), "-c", RUN_CELLS, "cells.json"], tmp_path)
    assert "408" in shown and (tmp_path / "runs" / "sft" / "model").is_dir()
