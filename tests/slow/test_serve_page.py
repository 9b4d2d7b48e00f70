"""A reader's walk through the pages about serving.

Every Python block and every call of curl in the guides runs against a server that is started as the pages say; the
Python blocks of a page are one session. The tutorial is walked from beginning to end, with the servers that it starts
and stops itself.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.documents import ROOT, Block, blocks, fresh_folder, run_blocks

GUIDES = ROOT / "docs" / "guides"
TUTORIAL = ROOT / "docs" / "tutorials" / "serve.md"
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


def ran(page: Path, address: str, folder: Path) -> str:
    """What the Python blocks of a page print in one session."""
    found = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(found) >= 2
    code = "\n".join(found).replace(ADDRESS, address)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    return done.stdout


@pytest.mark.slow
def test_python_of_the_guide_to_serving(address: str, tmp_path: Path) -> None:
    page = GUIDES / "serve.md"
    printed = ran(page, address, tmp_path)
    shown = re.search(r"^```\n( +plan .*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert shown is not None and printed.startswith(shown[1])
    assert printed.count("1584\n") >= 4  # asked as a question, by LangChain, by OpenAI Agents, and by smolagents
    assert (tmp_path / "runs" / "served" / "trajectories.jsonl").is_file()


@pytest.mark.slow
def test_python_of_the_guide_to_responses(address: str, tmp_path: Path) -> None:
    printed = ran(GUIDES / "serve-responses.md", address, tmp_path).splitlines()
    assert printed[0] == "1584" and "391" in printed
    assert "4400" in printed, "the follow-up"
    assert any(line.startswith("completed ") for line in printed), "the background run"


@pytest.mark.slow
def test_python_of_the_guide_to_chat_completions(address: str, tmp_path: Path) -> None:
    page = GUIDES / "serve-chat.md"
    shown = re.search(r"^```\n(1584.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert shown is not None and ran(page, address, tmp_path).startswith(shown[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["serve.md", "serve-responses.md", "serve-chat.md"])
def test_every_call_of_curl_gets_an_answer(name: str, address: str) -> None:
    run = [block for block in blocks(GUIDES / name) if block.text.startswith("curl ")]
    assert run
    for block in run:
        command = block.text.replace(ADDRESS, address).replace("curl ", "curl -sS --fail-with-body ", 1)
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1584" in done.stdout


@pytest.mark.slow
def test_the_tutorial_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = fresh_folder(tmp_path)
    session, shown = _session()
    (folder / "session.py").write_text(session.text.replace(ADDRESS, f"http://127.0.0.1:{(port := _free_port())}"))
    run = [block for block in blocks(TUTORIAL) if block.is_run]
    run.append(session._replace(text="python session.py > session.out"))
    run.sort(key=lambda block: block.line)
    # A step that fails would otherwise leave its server behind.
    run.insert(0, Block(TUTORIAL, 1, "trap 'kill $(jobs -p) 2> /dev/null || true' EXIT", True))
    done = run_blocks([_at(port, block) for block in run], folder, timeout_s=1_800)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    assert (folder / "session.out").read_text() == shown
    assert '"status":"ready"' in done.stdout
    assert '"code":"invalid_api_key"' in done.stdout and '"profile":"atlas"' in done.stdout
    assert json.loads((folder / "response.json").read_text())["output"][-1]["content"][0]["text"] == "1584"


def _session() -> tuple[Block, str]:
    """All Python blocks of the tutorial at the place of the last one, and what the page says that they print."""
    page = TUTORIAL.read_text()
    found = list(re.finditer(r"^```python\n(.*?)^```\n(?:\n```\n(.*?)^```)?", page, flags=re.MULTILINE | re.DOTALL))
    assert len(found) >= 4
    code = "\n".join(block[1] for block in found)
    line = page.count("\n", 0, found[-1].start()) + 1
    return Block(TUTORIAL, line, code, True), "".join(block[2] or "" for block in found)


def _at(port: int, block: Block) -> Block:
    text = block.text.replace(ADDRESS, f"http://127.0.0.1:{port}")
    return block._replace(text=text.replace("coa serve --model", f"coa serve --port {port} --model"))


def _free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        number: int = tried.getsockname()[1]
        return number
