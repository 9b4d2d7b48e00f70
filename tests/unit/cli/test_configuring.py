"""From flags to a config: `--set`, `--dry-run`, `--settings`, and flags that became settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from coa.cli import app
from coa.cli.configuring import SettingsCommand

run = CliRunner().invoke


def resolved(*words: str) -> dict[str, object]:
    """The settings that a dry run prints. The plan behind them is another test's business: here it has no data."""
    done = run(app, [*words, "--dry-run"])
    found: dict[str, object] = json.JSONDecoder().raw_decode(done.stdout)[0]
    return found


@pytest.mark.parametrize("command", [["run", "q"], ["eval"], ["sample"], ["rl"], ["sft"]], ids=lambda words: words[0])
def test_every_stage_prints_its_resolved_settings_and_stops(command: list[str]) -> None:
    assert resolved(*command)
    listed = run(app, [*command, "--settings"])
    assert listed.exit_code == 0 and "seed" in listed.stdout


def test_a_file_then_set_then_flags(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text('benchmarks = ["atlas"]\nsamples = 2\n[run]\nmodel = "a"\ntemperature = 0.5\n')
    found = resolved("eval", str(tmp_path / "e.toml"), "--set", "run.temperature=0.7", "--set", "samples=3", "-n", "4")
    assert found["benchmarks"] == ["atlas"] and found["samples"] == 4
    assert found["run"]["model"] == "a" and found["run"]["temperature"] == 0.7  # type: ignore[index]


def test_limits_and_tools_are_tables_and_lists() -> None:
    found = resolved(
        "run", "q", "--budget", "seconds=60", "--budget", "tool_calls=3", "--tool", "code", "--tool", "a=b:c"
    )
    assert found["limits"] == {"seconds": 60.0, "tool_calls": 3.0} and found["tools"] == ["code", "a=b:c"]


def test_a_flag_that_became_a_setting_still_works_with_a_warning() -> None:
    done = run(app, ["run", "q", "--constrain", "never", "--price-in=2", "--dry-run"])
    assert json.loads(done.stdout)["constrain"] == "never" and json.loads(done.stdout)["price"]["input"] == 2.0
    assert "--constrain will go in the next release; write --set constrain=never" in done.stderr
    assert resolved("sample", "--enough")["early_stop"] is True
    assert resolved("eval", "atlas", "--top-p", "0.5")["run"]["top_p"] == 0.5  # type: ignore[index]


def test_a_wrong_setting_is_refused_with_exit_code_2_and_named() -> None:
    done = run(app, ["eval", "atlas", "--set", "run.temprature=1", "--out", "x"])
    assert done.exit_code == 2 and "run.temprature" in done.stderr and "--settings lists every key" in done.stderr
    assert run(app, ["run", "q", "--budget", "minutes"]).exit_code == 2


def test_no_command_has_more_than_about_twenty_flags_of_its_own() -> None:
    root = typer.main.get_command(app)
    shared = {"--set", "--settings", "--dry-run", "--json", "--config", "--out", "--help"} | {
        "--shard",
        "--ray",
        "--ray-actors",
    }
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        flags = {option for each in command.params for option in each.opts[:1] if option.startswith("-")} - shared
        assert len(flags) <= 20, (name, sorted(flags))


def test_words_after_two_dashes_are_nobodys_flags() -> None:
    command = SettingsCommand("x")
    command.former = {"--old": "new"}  # type: ignore[misc]
    assert command._translated(["a", "--", "--old", "1"]) == ["a", "--", "--old", "1"]


def test_options_of_the_verl_engine_are_refused_without_it_in_a_dry_run_too() -> None:
    result = CliRunner().invoke(app, ["rl", "--model", "smollm2", "--nnodes", "2", "--dry-run"])
    assert result.exit_code == 2 and "--nnodes is for the verl engine" in result.output
