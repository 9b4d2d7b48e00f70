"""The demo as one page: what was measured, how the data were filtered, how training went, and examples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from coa.compare.page import differences, success, table_rows
from coa.demo.commands import STATE, span
from coa.demo.result import NAMES, goals, is_right, short_table
from coa.evaluate.report import percent
from coa.report import Bar, bars, curve, details, funnel, links, page, paragraph, section, table
from coa.trajectory import Trajectory, read

_ABOUT = (
    "A team of separate agents (smolagents, played by an offline expert that errs at a set rate) answered questions "
    "about an invented web and was recorded. Its runs were re-expressed as runs of one model and filtered; SmolLM2 was "
    "fine-tuned on them and then trained further by reinforcement learning with real tools. All of them were asked the "
    "same held-out questions (SmolLM2 as it comes only the first few of them), about entities that no training data "
    "hold. Tokens are SmolLM2's, for every request as it "
    "was made; most of the team's are its prompts, which a model that was never trained for the task cannot do without."
)

_PAGES = {
    "what the filters kept and dropped": "data/report.html",
    "fine-tuned, by family": "eval/sft/report.html",
    "reinforced, by family": "eval/rl/report.html",
    "task by task": "comparison/report.html",
}


def demo_page(out: Path) -> str:
    found: dict[str, Any] = orjson.loads((out / "comparison" / "report.json").read_bytes())
    runs = found["runs"]
    shown = [_bar(run["name"], success(run), percent(success(run))) for run in runs]
    columns, rows = short_table(found)
    spent = [
        _bar(run["name"], one, f"{one['value']:,.0f}") for run in runs if (one := run["tokens_per_success"]) is not None
    ]
    rows_of_all = [(name, *cells) for name, cells in table_rows(runs)]
    curves = (
        ("sft", "loss", "Fine-tuning: loss"),
        ("rl", "success", "Reinforcement learning: success of the attempts (each step's tasks are others)"),
        ("rl", "model_tokens", "Reinforcement learning: tokens that the model writes in an attempt"),
    )
    examples = _examples(out / "eval")
    there = {name: where for name, where in _PAGES.items() if (out / where).is_file()}
    return page(
        "Chain of Agents: the demo",
        paragraph(_ABOUT),
        section(
            "On held-out tasks",
            bars(shown, title="success", most=1.0),
            table(columns, rows),
            *(paragraph(goal.line()) for goal in goals(found)),
        ),
        section(
            "Tokens per success",
            bars(spent, title="tokens per success") if spent else "",
            details("All figures", parts=[table(["", *(run["name"] for run in runs)], rows_of_all)]),
            details("All differences", differences(found["pairs"])) if found["pairs"] else "",
        ),
        section("From the team's runs to training data", _funnel(out / "data" / "report.json")),
        *(
            section(heading, curve(_series(out / name / "metrics.jsonl", key), title=heading))
            for name, key, heading in curves
        ),
        section("Examples", *([paragraph("The same question before and after."), *examples] if examples else [])),
        section("How it was made", _made(out / STATE)),
        links("More:", there) if there else "",
        run=out,
    )


def _bar(name: str, value: Mapping[str, Any], note: str) -> Bar:
    return Bar(NAMES.get(name, name), value["value"], note, value["low"], value["high"])


def _made(state: Path) -> str:
    """The recipe, the seed, and how long each stage took."""
    if not state.is_file():
        return ""
    made = orjson.loads(state.read_bytes())
    rows = [(name, span(seconds)) for name, seconds in made["seconds"].items()]
    about = f"Recipe {made['recipe']}, seed {made['seed']}; coa demo --plan prints the commands."
    return paragraph(about) + table(["stage", "took"], rows)


def _funnel(report: Path) -> str:
    found = orjson.loads(report.read_bytes())
    stages = [(stage["stage"], stage["in"], stage["kept"]) for stage in found["stages"]]
    return funnel(("runs", stages[0][1]), stages, title="filters")


def _series(metrics: Path, key: str) -> list[tuple[float, float]]:
    rows = [orjson.loads(line) for line in metrics.read_bytes().splitlines()] if metrics.is_file() else []
    return [(row["step"], row[key]) for row in rows if isinstance(row.get(key), int | float)]


def _examples(folder: Path, most: int = 3) -> list[str]:
    """Tasks that the last model solves and an earlier one does not, if there are any."""
    kept: dict[str, dict[str, Trajectory]] = {
        name: {run.task.id: run for run in read(folder / name)} if (folder / name).is_dir() else {}
        for name in ("base", "sft", "rl")
    }
    solved = [task for task, run in kept["rl"].items() if is_right(run)]
    tasks = [task for task in solved if task in kept["base"]][:1]
    tasks += [task for task in solved if task not in kept["sft"] or not is_right(kept["sft"][task])]
    parts = []
    for task in tasks[:most]:
        parts.append(paragraph(f"{kept['rl'][task].task.question} (right: {', '.join(kept['rl'][task].task.answer)})"))
        for name in ("base", "sft", "rl"):
            if (run := kept[name].get(task)) is not None:
                steps = [f"{step.agent}: {step.text}" for step in run.steps]
                parts.append(details(f"{name}: {run.answer or 'no answer'}", steps))
    return parts
