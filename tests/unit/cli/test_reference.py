"""The generated reference: it is what the commands and settings say, whatever the terminal."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from coa.sft.config import SftConfig

SCRIPT = Path(__file__).parents[3] / "scripts" / "reference.py"


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("coa_reference", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = _script()


def test_the_reference_is_up_to_date() -> None:
    assert not reference.stale(), "\n".join(reference.stale())


def test_a_stale_page_is_named_with_the_command_that_fixes_it(tmp_path: Path) -> None:
    reference.write(tmp_path)
    assert reference.stale(tmp_path) == []
    page = tmp_path / "cli.md"
    page.write_text(page.read_text().replace("`--model`", "`--modle`"))
    assert reference.stale(tmp_path) == [f"{page} is out of date", "run `make reference`"]
    (tmp_path / "config.md").unlink()
    assert len(reference.stale(tmp_path)) == 3


def test_the_terminal_does_not_show_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = reference.pages()
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("NO_COLOR", "1")
    assert reference.pages() == before


def test_commands_options_and_settings_are_all_there() -> None:
    cli, config = reference.pages()["cli.md"], reference.pages()["config.md"]
    for heading in ("coa run", "coa eval", "coa rl", "coa world build", "coa index search", "coa demo"):
        assert f"\n## {heading}\n" in cli
    # An option of each kind: plain, bounded, repeatable, a flag, and one that must be given.
    assert "| `--model-name` | text |  | Name of the model on a server that serves several. |" in cli
    assert "| `--max-without-tools` | number, ≥ 0 and ≤ 1 |" in cli
    assert "| `--mcp` | list of text |" in cli
    assert "| `--plan` |  |  | Print the commands of the demo without running them. |" in cli
    assert "| `PATHS` | list of path | required |" in cli
    for name in SftConfig.model_fields:
        assert f"| `{name}` |" in config
    assert "| `lora.rank` | integer, ≥ 1 | `16` |" in config
    assert (
        "| `reward.scorer` | text |" in config and "| `quality.error_share` | number, ≥ 0 and ≤ 1 | `0.3` |" in config
    )
