"""The page of an evaluation: every task with its run, and what a reader needs to trust the figures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from coa.evaluate.attempts import attempt_of, by_task
from coa.evaluate.folder import Folder
from coa.evaluate.report import lines, make_report, write_report
from coa.trajectory import Failure, FailureSite, JsonlWriter, Repair, RepairKind, Score, Stop, Task, Trajectory, Usage
from coa.trajectory.types import FrozenDict
from support.builders import make_trajectory

CONFIG: dict[str, Any] = {
    "benchmark": {"name": "exam", "about": "tasks of exam.jsonl", "metric": "pass@1", "tasks": 3, "groups": []},
    "samples": 1, "ks": [], "scorer": "exact", "select": None, "model": "m", "judge": None, "limit": None,
    "tools": {"names": ["code"], "mcp": []},
}  # fmt: skip
SPENT = Usage(prompt_tokens=100, completion_tokens=20, model_calls=2, tool_calls=1)


def run(task: str, value: float | None, *steps: tuple[str, str], repairs: int = 0, **rest: Any) -> Trajectory:
    made = make_trajectory(*(steps or (("think", "hm <b>"), ("answer", "4"))), usage=SPENT)
    fixed = made.steps[0].model_copy(update={"repairs": (Repair(kind=RepairKind.MISSING_CLOSE),) * repairs})
    score = {"exact": Score(value=value, reason="compared as text")}
    question = Task(id=task, question=f"What is two and two, {task}?", answer=("four", "4"))
    return made.model_copy(
        update={"task": question, "steps": (fixed, *made.steps[1:]), "scores": FrozenDict(score), **rest}
    )


def report_of(folder: Path, runs: list[Trajectory], **more: Any) -> tuple[dict[str, Any], str]:
    with JsonlWriter(folder / "trajectories.jsonl") as writer:
        for one in runs:
            writer.write(one)
    report = make_report(by_task(attempt_of(one, "exact") for one in runs).items(), {**CONFIG, **more})
    write_report(Folder(folder), report)
    return report, (folder / "report.html").read_text()


def test_every_task_has_a_row_that_leads_to_its_run(tmp_path: Path) -> None:
    broken = Failure(site=FailureSite.MODEL, message="the server is gone")
    failed = run("t10", None, ("think", "x"), stop=Stop.FAILED, failure=broken)
    _, page = report_of(tmp_path, [failed, run("t2", 0.0, stop=Stop.TOKENS), run("t1", 1.0)])
    rows = re.findall(r'<tr><td><a href="#(run-\d)">(t\d+)</a></td>(.*)</tr>', page)
    assert [row[1] for row in rows] == ["t1", "t2", "t10"]  # by number, in whatever order they ended
    cells = [re.sub("<[^>]*>", "|", row[2]).split("||") for row in rows]
    assert [cell.strip("|") for cell in cells[0]] == [
        "What is two and two, t1?", "four | 4", "4", "right", "answered", "120", "1", "0"
    ]  # fmt: skip
    assert "wrong" in rows[1][2] and "tokens" in rows[1][2]
    assert "no answer" in rows[2][2] and "failed" in rows[2][2]
    for anchor, task, _ in rows:
        fold = page[page.index(f'<div id="{anchor}">') :]
        assert f"two and two, {task}?" in fold[: fold.index("</details>")]
    assert "<b>think</b><pre>hm &lt;b&gt;</pre>" in page and "Scored by exact: compared as text" in page
    assert "Failed in the model: the server is gone" in page


def test_format_repairs_are_in_the_page_and_in_the_terminal(tmp_path: Path) -> None:
    report, page = report_of(tmp_path, [run("a", 1.0, repairs=2), run("b", 1.0), run("c", 0.0, repairs=1)])
    said = "3 repairs in 2 of 3 attempts (66.7%)"
    assert dict(lines(report))["format repairs"] == said and said in page
    assert "think (repaired: missing_close, missing_close)" in page
    clean, _ = report_of(tmp_path / "clean", [run("a", 1.0)])
    assert dict(lines(clean))["format repairs"] == "none"


def test_settings_are_written_without_python_values_and_blanks(tmp_path: Path) -> None:
    _, page = report_of(tmp_path, [run("a", 1.0)])
    provenance = page[page.index("<h2>Provenance</h2>") :]
    assert "['" not in provenance and "[]" not in provenance and "None" not in provenance
    assert "<td></td>" not in provenance
    assert "<td>tools.names</td><td>code</td>" in provenance and "<td>judge</td><td>none</td>" in provenance
    assert not re.search(r"</h2>\s*(<h2>|</body>)", page)


def test_notices_stand_on_top_of_the_page(tmp_path: Path) -> None:
    report, page = report_of(tmp_path, [run("a", 1.0)], notices=["Only the sample tests were run."])
    assert page.index('<p class="notice">Only the sample tests were run.</p>') < page.index("exam: pass@1")
    assert report["notices"] == ["Only the sample tests were run."] and "notices" not in report["provenance"]


def test_a_page_of_many_runs_stays_small(tmp_path: Path) -> None:
    long = "word " * 5_000
    report, page = report_of(tmp_path, [run(f"t{n}", 1.0, ("think", long), ("answer", long)) for n in range(210)])
    assert report["results"]["attempts"] == 210
    assert page.count("<details>") == 200 and page.count('<a href="#') == 200 and "t209" in page
    assert len(page) < 200 * 5_000 and "characters omitted" in page


def test_runs_that_are_not_reported_are_not_in_the_table(tmp_path: Path) -> None:
    runs = [run("a", 1.0), run("b", 1.0), run("a", 0.0, sample=1)]
    report_of(tmp_path, runs)
    report = make_report(by_task([attempt_of(runs[0], "exact")]).items(), CONFIG)
    write_report(Folder(tmp_path), report, {("a", 0)})
    page = (tmp_path / "report.html").read_text()
    assert "two and two, a?" in page and "two and two, b?" not in page and "a #1" not in page
