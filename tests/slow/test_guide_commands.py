"""Command blocks of all pages that no faster test runs, in a folder where the earlier stages have run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.documents import FAST_PAGES, OTHER_TESTS, Block, fresh_folder, run_blocks, runnable_pages

pytestmark = pytest.mark.slow

_RUN = {name: run for name, run in runnable_pages().items() if name not in FAST_PAGES + OTHER_TESTS}
_PREPARED = """
mkdir models && cp -r model models/tiny
coa world build --out world --people 40 --seed 3
head -n 8 world/tasks/train.jsonl > tasks.jsonl
coa teach tasks.jsonl --team world --world world --jobs 2 --out traces
coa distill traces --profile atlas --config configs/distill/atlas.toml --out data
for name in a b; do
  coa eval world/tasks/test.jsonl --limit 4 --model model --world world --budget model_tokens=60 --out runs/$name
done
"""
"""What the stages before would have left in the folder: a world, tasks, traces of a team, data, two evaluations."""


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = fresh_folder(tmp_path_factory.mktemp("guides"))
    done = run_blocks([Block(Path(__file__), 1, _PREPARED, True)], folder)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    return folder


@pytest.mark.parametrize("name", _RUN)
def test_commands_of_a_guide_run(name: str, prepared: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(prepared, folder)
    done = run_blocks(_RUN[name], folder)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
