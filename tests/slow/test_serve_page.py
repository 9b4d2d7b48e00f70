"""A reader's walk through docs/guides/serve.md: the server as started there, every Python block, every call of curl."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.documents import ROOT, blocks

PAGE = ROOT / "docs" / "guides" / "serve.md"
ADDRESS = "http://127.0.0.1:8080"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    state = tmp_path_factory.mktemp("state")
    command = [sys.executable, "-m", "coa.cli", "serve", "--model", "nano", "--temperature", "0", "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "XDG_STATE_HOME": str(state)}
    )
    with process:
        assert process.stdout is not None
        yield process.stdout.readline().split(" at ")[1].strip().removesuffix("/v1")
        process.terminate()
    assert process.returncode == 0 and (state / "coa" / "serve" / "runs.sqlite").is_file()


@pytest.mark.slow
def test_every_python_block_runs_in_one_session(address: str, tmp_path: Path) -> None:
    page = PAGE.read_text()
    found = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert len(found) > 8
    code = "\n".join(found).replace(ADDRESS, address)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    shown = re.search(r"^```\n( +plan .*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert shown is not None and done.stdout.startswith(shown[1])
    assert done.stdout.count("1584\n") >= 4  # asked as a question, by LangChain, by OpenAI Agents, and by smolagents
    assert (tmp_path / "runs" / "served" / "trajectories.jsonl").is_file()


@pytest.mark.slow
def test_every_call_of_curl_gets_an_answer(address: str) -> None:
    run = [block.text for block in blocks(PAGE) if block.is_run and block.text.startswith("curl ")]
    assert run
    for text in run:
        command = text.replace(ADDRESS, address).replace("curl ", "curl -sS --fail-with-body ", 1)
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout)["status"] == "completed"
