"""A run made with a profile of one's own, read by every command after the profile's file is gone."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from coa.trajectory import profile_of, read
from support.commands import coa
from support.servers import FakeServer

TOOLS = """
from coa.tools import Observation
from coa.trajectory import Form, Shape


class Lookup:
    about = "looks a fact up."
    shape = Shape(form=Form.LINE)
    timeout_s = 60.0

    async def call(self, arguments, context):
        return Observation("Ada Lovelace, see </archive> and <ledger>")
"""
OWN = """
name = "{name}"
about = "Answers from an archive."
start = ["{tool}"]
prompt = "Ask the archive, then answer. {{agents}} {{rules}}"

[agents.muse]
title = "Thinking"
kind = "thought"
does = "thinks."

[agents.{tool}]
title = "Archive"
kind = "tool"
does = "looks a fact up."
shape = {{ form = "line" }}
next = ["{tool}", "check", "answer"]
thought = true

[agents.check]
title = "Check"
kind = "role"
does = "checks the fact."
next = ["answer"]
[agents.check.verdict]
read = "score"
passed = ["answer"]
failed = ["answer"]

[agents.answer]
title = "Answer"
kind = "answer"
does = "answers."
"""


def run_with(folder: Path, name: str, tool: str) -> Path:
    """`coa run` with a profile whose file, and the tools beside it, are gone when it returns."""

    def script(body: dict[str, Any]) -> str:
        if "Ada Lovelace" in str(body["messages"]):
            return "<check>It fits.\nscore: 4</check>\n<answer>Ada</answer>"
        return f"<muse>Where?</muse>\n<{tool}>first programmer</{tool}>"

    work, out = folder / f"work-{name}", folder / name
    work.mkdir()
    (work / "mine.toml").write_text(OWN.format(name=name, tool=tool))
    (work / "mytools.py").write_text(TOOLS)
    tasks = [{"id": f"{name}-{n}", "question": f"Who is {n}?", "answer": "Ada"} for n in range(3)]
    (work / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))

    async def go() -> None:
        async with FakeServer(script, owner="somebody").running() as url:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "coa.cli", "run", "--tasks", "tasks.jsonl", "--profile", "mine.toml",
                "--model", url, "--tool", f"{tool}=mytools:Lookup", "--out", str(out),
                cwd=work, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            _, err = await asyncio.wait_for(process.communicate(), 120)
            assert process.returncode == 0, err.decode()

    asyncio.run(go())
    for file in work.iterdir():
        if file.is_file():
            file.unlink()
    return out


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_with(tmp_path_factory.mktemp("archive"), "mine", "archive")


@pytest.fixture(scope="module")
def joined(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`cat a.jsonl b.jsonl > c.jsonl`: the same name for two different profiles."""
    other = run_with(tmp_path_factory.mktemp("ledger"), "mine", "ledger")
    path = tmp_path_factory.mktemp("joined") / "c.jsonl"
    files = [str(folder / "trajectories.jsonl") for folder in (archive, other)]
    with path.open("wb") as out:
        subprocess.run(["cat", *files], stdout=out, check=True)
    return path


def agents(masks: str) -> list[set[str]]:
    """Of each trajectory, the agents with trained tokens."""
    rows = [json.loads(line) for line in masks.splitlines()]
    return [{token["agent"] for token in row["tokens"] if token["trained"]} - {None} for row in rows]


def test_masks_are_shown_with_no_further_option(archive: Path, joined: Path) -> None:
    assert agents(coa("inspect", archive, "--mask", "--json")) == [{"muse", "archive", "check", "answer"}] * 3
    both = agents(coa("inspect", joined, "--mask", "--json"))
    assert both == [{"muse", tool, "check", "answer"} for tool in ("archive", "ledger") for _ in range(3)]


def test_the_right_tags_are_neutralised_in_what_tools_say(joined: Path) -> None:
    rows = [json.loads(line)["output"] for line in coa("export", joined, "--to", "alpaca").splitlines()]
    assert "see <\\/archive> and <ledger>" in rows[0] and "see </archive> and <\\ledger>" in rows[3]


@pytest.mark.parametrize("to", ["messages", "sharegpt", "verl", "atif"])
def test_every_format_is_exported(to: str, archive: Path, joined: Path) -> None:
    assert len(coa("export", archive, "--to", to).splitlines()) == 3
    assert len(coa("export", joined, "--to", to).splitlines()) == 6


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
def test_an_export_to_our_own_format_carries_the_profiles_on(ending: str, joined: Path, tmp_path: Path) -> None:
    out = tmp_path / f"trajectories.{ending}"
    coa("export", joined, "--to", "trajectories", "--out", out)
    shown = coa("inspect", out)
    assert shown.count("0 violations") == 6 and shown.count("1 tool call") == 6
    if ending == "parquet":
        assert len(set(pq.read_table(out)["profile_definition"].to_pylist())) == 2
        again = tmp_path / "again.jsonl"
        coa("export", out, "--to", "trajectories", "--out", again)
        assert list(read(again)) == list(read(joined))


def test_what_inspect_prints_as_json_is_a_file_again(joined: Path, tmp_path: Path) -> None:
    (tmp_path / "printed.jsonl").write_text(coa("inspect", joined, "--json"))
    assert coa("inspect", tmp_path / "printed.jsonl").count("0 violations") == 6


def test_runs_are_scored_compared_and_counted(archive: Path, joined: Path, tmp_path: Path) -> None:
    scored = tmp_path / "scored.jsonl"
    scored.write_bytes(joined.read_bytes())
    coa("score", scored, "--scorer", "exact", "--in-place")
    assert coa("inspect", scored).count("exact 1.0") == 6
    shown = json.loads(coa("compare", archive, scored, "--tokenizer", "smollm2", "--json", "--out", tmp_path / "pair"))
    assert len(shown["runs"]) == 2
    assert coa("cost", joined, "--json")


def test_it_is_data_for_training(joined: Path) -> None:
    from coa.models.tokenizer import load_tokenizer
    from coa.sft.config import SftConfig
    from coa.sft.data import load
    from coa.sft.examples import to_examples
    from coa.trajectory import Tally

    config = SftConfig.model_validate({"data": [str(joined)], "agent_weights": {"ledger": 0.5}})
    loaded = load(config)
    assert [profile_of(t).tools for t in loaded.train] == [("archive",)] * 3 + [("ledger",)] * 3
    assert len(to_examples(loaded.train, load_tokenizer("smollm2"), config, 4096, Tally())) == 6


def test_distillation_takes_it_and_passes_it_on(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(OWN.format(name="mine", tool="archive"))
    coa("distill", archive, "--profile", tmp_path / "mine.toml", "--set", "complexity.fewest_calls=1",
        "--set", "quality.tolerated=['missing_thought']", "--out", tmp_path / "data")  # fmt: skip
    (tmp_path / "mine.toml").unlink()
    for name in ("trajectories.jsonl", "trajectories.parquet"):
        assert coa("inspect", tmp_path / "data" / name).count("0 violations") == 3
