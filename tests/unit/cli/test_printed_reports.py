"""What commands print about runs: nothing lost, nothing wrapped, nothing counted that did not happen."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from coa.cli import app
from coa.trajectory import Task, Trajectory, Usage, load_profile
from coa.trajectory.counting import count_tokens, tool_calls
from support.builders import make_trajectory, web_run
from support.distilled import good, second_thoughts
from support.tokenizers import tokenizer

SPENT = Usage(prompt_tokens=1_000_000, completion_tokens=20, model_calls=2, tool_calls=1)


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.chdir(tmp_path)


def write(name: str, runs: list[Trajectory]) -> str:
    Path(name).write_text("".join(run.to_json() + "\n" for run in runs))
    return name


def coa(*given: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*given])
    assert result.exit_code == code, result.output
    return result.output


def test_an_interval_without_an_upper_end_is_printed_as_a_least_value() -> None:
    runs = [web_run(usage=SPENT).scored("exact", float(at == 0)) for at in range(10)]
    named = [run.model_copy(update={"task": Task(id=str(at), question="?")}) for at, run in enumerate(runs)]
    printed = coa("compare", write("rare.jsonl", named), "--scorer", "exact")
    assert "10,000,200 [at least " in printed and "no end" not in printed


def test_the_labels_of_a_cost_are_not_wrapped() -> None:
    for name in ("the-runs-of-the-first-model.jsonl", "the-runs-of-the-second-model.jsonl"):
        write(name, [web_run(usage=SPENT)])
    printed = [line.rstrip() for line in coa("cost", *sorted(map(str, Path().glob("*.jsonl")))).splitlines()]
    labels = ["runs", "tasks", "right", "unscored"]
    for heading in ("per task", "per right answer"):
        assert heading in printed
        at = printed.index(heading)
        spent = ["model calls", "tool calls", "prompt tokens", "completion tokens", "total tokens", "each token once"]
        assert [line.split("  ")[1] for line in printed[at + 1 : at + 7]] == spent
    assert [line.split()[0] for line in printed if line.split()[:1] in [[label] for label in labels]] == labels


def test_a_call_that_was_never_made_is_not_counted() -> None:
    """The model did not close <code>, wrote on, and nothing was run."""
    steps = ("think", "x"), ("code", "print(4)"), ("think", "it says 4"), ("answer", "4")
    metered = make_trajectory(*steps, profile="code", usage=SPENT.model_copy(update={"tool_calls": 0}))
    assert "0 tool calls" in coa("inspect", write("run.jsonl", [metered]), "--no-pager")
    profile = load_profile("code")
    imported = metered.model_copy(update={"usage": Usage()})
    assert tool_calls(imported, profile) == 0
    assert count_tokens(imported, tokenizer("byte_bpe"), profile).usage.tool_calls == 0
    ran = make_trajectory(*steps[:2], ("observation", "4"), steps[3], profile="code")
    assert tool_calls(ran, profile) == 1


def test_if_nothing_is_kept_every_filter_that_dropped_a_run_is_named() -> None:
    wrong = good(task_id="w", answer="no").model_copy(update={"task": Task(id="w", question="Who?", answer="yes")})
    few = [
        make_trajectory(("think", "x"), ("answer", "Ada")).model_copy(
            update={"task": Task(id=f"f{at}", question=f"Who was number {at}?", answer="Ada")}
        )
        for at in range(2)
    ]
    result = CliRunner().invoke(app, ["distill", write("t.jsonl", [*few, wrong]), "--out", "data"])
    hint = getattr(result.exception, "hint", "")
    assert "2 by complexity (2 too_few_calls), 1 by quality (1 wrong_answer)" in hint
    assert "complexity.fewest_calls" in hint and "report.html" in hint


def test_more_rows_than_trajectories_are_explained_where_they_are_printed() -> None:
    printed = " ".join(coa("distill", write("t.jsonl", [second_thoughts()]), "--out", "data").split())
    assert "1 trajectory in data" in printed
    assert "in 2 rows: runs that corrected themselves are written several times" in printed
    page = Path("data/report.html").read_text()
    assert "runs that corrected themselves are written several times" in page
    # Nothing was dropped, so there is nothing to explain under that heading.
    assert "Reasons, with examples" not in page
