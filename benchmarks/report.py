"""Writes the tables of docs/evidence/performance.md from the figures in `benchmarks/results/`.

python -m benchmarks.report            write the page
python -m benchmarks.report --check    exit with 1 if the page does not show the figures as they are
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from benchmarks.results import RESULTS, SHARE

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "performance.md"
BEGIN: Final = "<!-- python -m benchmarks.report writes from here -->\n"
END: Final = "<!-- to here -->\n"
TITLES: Final = {
    "runtime": "Running agents",
    "decoding": "Decoding",
    "engine": "Local engine",
    "sft": "Fine-tuning",
    "rl": "Reinforcement learning",
    "evaluate": "Evaluation",
    "growth": "Growth with the number of runs",
    "grammar": "Constrained decoding",
    "codec": "Parsing and rendering",
    "ledger": "Ledger",
    "distill": "Distillation",
    "sandbox": "Sandbox",
    "gateway": "Gateway",
}
"""Headings of the benchmarks, in the order in which the page shows them."""
_QUIET: Final = 0.1
"""Cores that other work may take on a machine that is called idle."""


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    written = with_tables(page, tables(RESULTS))
    if "--check" not in sys.argv:
        PAGE.write_text(written, encoding="utf-8")
    elif written != page:
        raise SystemExit(f"{PAGE} does not show the figures as they are; run python -m benchmarks.report")


def with_tables(page: str, written: str) -> str:
    """The page with these tables in the place of its own."""
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"the page needs the lines {BEGIN.strip()} and {END.strip()}")
    return f"{before}{BEGIN}\n{written}\n{END}{after}"


def tables(folder: Path) -> str:
    """The shares of the machine's limits, then a section for each benchmark of `TITLES` that has kept figures."""
    records = [
        (name, orjson.loads(file.read_bytes())) for name in TITLES if (file := folder / f"{name}.json").is_file()
    ]
    sections = ["\n".join(_section(name, record)) for name, record in records]
    shares = list(_shares(records))
    return "\n\n".join(["\n".join(shares), *sections] if len(shares) > len(_SHARES) else sections)


_SHARES: Final = (
    "### Shares of the machine's limits\n",
    "The limit is the least CPU time in which the machine could do the same: it has to read all weights once from",
    "memory, and to make all multiplications. Both speeds are measured in the same process; the table names the one",
    "that takes longer. A share of 1 would be the limit.\n",
    "| measured | share | limit | command |",
    "|---|---|---|---|",
)


def _shares(measured: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    yield from _SHARES
    for _, record in measured:
        for figure in record["figures"]:
            if figure["what"].endswith(SHARE):
                what = figure["what"].removesuffix(SHARE)
                yield f"| {what} | {figure['value']:.2f} | {figure['beside']} | `{record['command']}` |"


def _section(name: str, record: Mapping[str, Any]) -> Iterator[str]:
    machine = record["machine"]
    units = ", ".join(machine["units"]) or "no vector units that matter here"
    versions = ", ".join(
        f"{package} {machine[package]}"
        for package in ("torch", "transformers", "trl", "aiohttp", "tokenizers")
        if machine.get(package)
    )
    yield f"### {TITLES[name]}\n"
    yield f"{_about(name)}.\n"
    yield f"`{record['command']}`\n"
    yield f"Measured on {record['date']} on {machine['cores']} cores of {machine['cpu']} ({units}), with Python"
    yield f"{machine['python']}, {versions}.{_load(record)}\n"
    yield "| measured | figure | compared with | goal |"
    yield "|---|---|---|---|"
    for figure in record["figures"]:
        if not figure["what"].endswith(SHARE):
            yield f"| {figure['what']} | {_value(figure)} | {figure['beside'] or '–'} | {_goal(figure)} |"


def _load(record: Mapping[str, Any]) -> str:
    others = record.get("others")
    if others is None:
        return ""
    if others < _QUIET:
        return "\nThe machine was idle otherwise."
    return f"\nThe machine was busy: other work took {others:.1f} cores on average."


def _about(name: str) -> str:
    """The first line of the benchmark's docstring, which says what is measured."""
    source = Path(__file__).with_name(f"{name}.py")
    said = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return said.partition("\n")[0].rstrip(".")


def _goal(figure: Mapping[str, Any]) -> str:
    """The goal, with a mark where it is missed."""
    goal: str = figure["goal"]
    return f"{goal}: missed" if _missed(figure["value"], goal) else goal or "–"


def _missed(value: float, goal: str) -> bool:
    side, _, number = goal.rpartition(" ")
    return (side == "at least" and value < float(number)) or (
        side in ("at most", "less than") and value > float(number)
    )


def _value(figure: Mapping[str, Any]) -> str:
    """Three digits, and more where a missed goal would look reached after rounding."""
    value, goal = figure["value"], figure["goal"]
    if abs(value) >= 1000:
        return f"{value:,.0f} {figure['unit']}"
    for digits in range(3, 8):
        shown = f"{value:.{digits}g}"
        if _missed(float(shown), goal) == _missed(value, goal):
            break
    return f"{shown} {figure['unit']}"


if __name__ == "__main__":
    main()
