"""How fast text becomes steps and steps become text, and how the time grows from 0.1 MB to 10 MB."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.corpus import WEB, ordinary_runs
from benchmarks.results import Figure, save
from benchmarks.timing import best_seconds
from coa.trajectory import Parser, parse, render

SMALL, LARGE = 100_000, 10_000_000
LINEAR = "at most 1.3"
ADVERSARIAL = {
    "only <": "<",
    "unclosed tags": "<think>x ",
    "closing tags": "</think>",
    "mentions": "<think>a <plan>b</plan>",
    "forged ends": "<observation>x</observation>y</observation>",
    "empty steps": "<think></think>",
    "escapes": "<\\",
    "blanks after <": "<  \t ",
}


def main() -> None:
    transcript = "".join(render(run.steps, WEB) for run in ordinary_runs(400))
    megabyte = transcript[:1_000_000]
    steps = parse(megabyte, WEB)
    works: dict[str, Callable[[], object]] = {
        "parse": lambda: parse(megabyte, WEB),
        "parse a stream, 16 characters at a time, with events": lambda: _stream(megabyte),
        "render": lambda: render(steps, WEB),
    }
    figures = list[Figure]()
    for name, work in works.items():
        figures.append(Figure(f"{name}, ordinary transcript", 1 / best_seconds(work), "MB/s"))
        print(f"{figures[-1].value:8.1f} MB/s  {name}")
    print(f"\ngrowth of parse time, {SMALL:,} to {LARGE:,} characters (1.0 is linear; goal: {LINEAR})")
    beside = f"the same volume in texts of {SMALL:,}"
    for name, text in {"ordinary": transcript, **ADVERSARIAL}.items():
        growth, seconds = _growth(text)
        figures.append(Figure(f"parse time of a text of {LARGE:,} characters, {name}", growth, "x", beside, LINEAR))
        print(f"{name:<16} {growth:5.2f}   {LARGE / 1e6 / seconds:7.1f} MB/s")
    save("codec", "python -m benchmarks.codec", figures)


def _growth(text: str) -> tuple[float, float]:
    """Ratio of one long parse to as many short ones as make the same volume, so that both meet the same noise."""
    large = (text * (LARGE // len(text) + 1))[:LARGE]
    small = large[:SMALL]
    ratios = []
    for _ in range(3):
        short = best_seconds(lambda: [len(parse(small, WEB)) for _ in range(LARGE // SMALL)], repeats=1)
        long = best_seconds(lambda: parse(large, WEB), repeats=1)
        ratios.append((long / short, long))
    return sorted(ratios)[1]


def _stream(text: str) -> None:
    parser = Parser(WEB, transcript=True)
    for start in range(0, len(text), 16):
        parser.feed(text[start : start + 16])
    parser.finish()


if __name__ == "__main__":
    main()
