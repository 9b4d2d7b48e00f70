"""report.json and report.html of one evaluation. Everything but `timing` follows from the attempts alone."""

from __future__ import annotations

import subprocess
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from coa.choices import Select
from coa.errors import EvaluationError
from coa.evaluate.attempts import GROUPS
from coa.evaluate.folder import Folder
from coa.evaluate.metrics import Estimate
from coa.evaluate.summary import Figures, Tasks, summed_up
from coa.evaluate.task_table import task_table
from coa.folder import write_atomic
from coa.report import Bar, bars, notice, page, paragraph, plural, said, section, table
from coa.trajectory import Stop, read
from coa.version import __version__

_LONGEST: Final = 200


@dataclass(frozen=True)
class BenchmarkReport:
    """What an evaluation on one benchmark found. `data` is all of report.json."""

    data: Mapping[str, Any]
    folder: Path

    @classmethod
    def read(cls, folder: Folder) -> BenchmarkReport:
        return cls(orjson.loads(folder.report.read_bytes()), folder.path)

    @property
    def benchmark(self) -> str:
        return str(self.data["benchmark"]["name"])

    @property
    def complete(self) -> bool:
        """Whether every attempt was made."""
        return bool(self.data["complete"])

    @property
    def metrics(self) -> dict[str, Estimate]:
        """Every metric by name, such as `pass@1`, with its 95 % interval."""
        return {name: Estimate(**value) for name, value in self.data["results"]["metrics"].items()}

    @property
    def pass_at_1(self) -> float | None:
        """None where no attempt was made."""
        found = self.metrics.get("pass@1")
        return None if found is None else found.value

    @property
    def tasks(self) -> int:
        return int(self.data["results"]["tasks"])

    @property
    def right(self) -> int:
        return int(self.data["results"]["right"])

    @property
    def failed(self) -> int:
        """Number of attempts that failed before there was an answer."""
        return int(self.data["results"]["failed"])

    @property
    def unscored(self) -> int:
        """Number of attempts that ended, but that no scorer could judge."""
        return int(self.data["results"]["unscored"])

    @property
    def tokens_per_success(self) -> float | None:
        """None without a success, or where the model reported no tokens."""
        return self._per_success("total_tokens") or None

    @property
    def cost_per_success(self) -> float | None:
        """None without a success, or without prices."""
        return self._per_success("cost")

    @property
    def page(self) -> Path:
        return self.folder / "report.html"

    def _per_success(self, name: str) -> float | None:
        each = self.data["spent"]["per_success"]
        return None if each is None else each.get(name)


@dataclass(frozen=True)
class Evaluation:
    """Reports of an evaluation, one for each benchmark: `evaluation["gaia"]`.

    With a single benchmark, its figures (`pass_at_1`, `tokens_per_success`, ...) are available here too.
    """

    reports: Sequence[BenchmarkReport]

    def __getitem__(self, benchmark: str) -> BenchmarkReport:
        found = {report.benchmark: report for report in self.reports}
        if benchmark not in found:
            raise EvaluationError(
                f"there is no report on {benchmark!r}", hint=f"there are {', '.join(found) or 'none'}"
            )
        return found[benchmark]

    @property
    def failed(self) -> int:
        return sum(report.failed for report in self.reports)

    @property
    def complete(self) -> bool:
        return all(report.complete for report in self.reports)

    @property
    def pass_at_1(self) -> float | None:
        return self._only.pass_at_1

    @property
    def tokens_per_success(self) -> float | None:
        return self._only.tokens_per_success

    @property
    def cost_per_success(self) -> float | None:
        return self._only.cost_per_success

    @property
    def _only(self) -> BenchmarkReport:
        if len(self.reports) != 1:
            names = ", ".join(report.benchmark for report in self.reports)
            raise EvaluationError(f"there are reports of several benchmarks: {names}", hint='take one: report["gaia"]')
        return self.reports[0]


def make_report(tasks: Tasks, config: Mapping[str, Any], *, retried: int = 0) -> Figures:
    """`config` is the folder's config.json, which says what the numbers are about."""
    samples, scorer = int(config["samples"]), deciding(config)
    select = Select(config["select"]) if config.get("select") else None
    groups = config["benchmark"].get("groups") or GROUPS
    found = summed_up(tasks, groups=groups, select=select, scorer=scorer)
    # A folder may hold more tasks than the latest limit includes.
    planned = max(int(config["benchmark"]["tasks"]), found.counts.tasks)
    figures = found.figures(samples=samples, planned=planned, ks=config.get("ks") or ())
    return {
        "benchmark": config["benchmark"],
        "notices": list(config.get("notices") or ()),
        "scorer": scorer,
        "complete": figures["results"]["missing"] == 0,
        **figures,
        "runs_tried_again_on_request": retried,
        "agreement": found.agreements(),
        "provenance": {name: value for name, value in config.items() if name not in ("stage", "benchmark", "notices")},
        "timing": found.times(),
    }


def deciding(config: Mapping[str, Any]) -> str:
    """The scorer that decides: the evaluation's, or the one that scored it again."""
    again = config.get("scored_again")
    return str(again["by"] if again else config["scorer"])


def write_report(folder: Folder, report: Figures, only: Container[tuple[str, int]] | None = None) -> None:
    """`only` names the attempts that are reported, where the folder holds others too."""
    data = orjson.dumps(report, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)
    write_atomic(folder.report, data)
    runs = read(folder.trajectories) if folder.trajectories.is_file() else iter(())
    wanted = (
        run for run in runs if run.sample < report["results"]["attempts_per_task"] and (only is None or run.key in only)
    )
    tasks = task_table(wanted, report["scorer"], folder.path, report["results"]["attempts"])
    write_atomic(folder.page, _html(report, folder.path, tasks))


def code_version() -> dict[str, str | None]:
    """The version, and the commit if the code is a git checkout and not merely installed inside another one."""
    return {"coa": __version__, "commit": _git("rev-parse", "HEAD") if _git("ls-files", Path(__file__).name) else None}


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""  # git is not installed


def headline(report: Mapping[str, Any]) -> str:
    """One line: the benchmark's metric with its interval, and what is not in it."""
    found = report["results"]
    shard = report["provenance"].get("shard")
    about = f"{report['benchmark']['name']}, shard {shard['part']}" if shard else report["benchmark"]["name"]
    if not found["metrics"]:
        return f"{about}: no attempt was made"
    name = report["benchmark"].get("metric") or "pass@1"
    name = name if name in found["metrics"] else next(iter(found["metrics"]))
    parts = [f"{about}: {name} {percent(found['metrics'][name])}"]
    parts.append(f"{plural(found['tasks'], 'task')} x {found['attempts_per_task']}, {found['right']:,} right")
    for kind in ("unanswered", "failed", "unscored", "missing"):
        if found[kind]:
            parts.append(f"{found[kind]:,} {kind}")
    if few := report["benchmark"].get("sample_tests_only"):
        parts.append("judged by sample tests only" if few == found["tasks"] else f"{few:,} by sample tests only")
    if "success_if_all_unscored_were_right" in found:
        parts.append(f"pass@1 at most {found['success_if_all_unscored_were_right']:.1%} if all unscored were right")
    return ", ".join(parts)


def caveat(report: Mapping[str, Any]) -> str:
    """What forbids to compare the figure with published ones; empty if nothing does."""
    few, tasks = report["benchmark"].get("sample_tests_only"), report["results"]["tasks"]
    if not few:
        return ""
    return (
        f"{'All' if few == tasks else f'{few:,} of'} {plural(tasks, 'task')} are judged only by the sample tests that "
        "their statements print, and a program that prints the sample outputs passes. This figure cannot be compared "
        "with published ones. Give the full tests with --tests."
    )


def percent(value: Mapping[str, float]) -> str:
    return f"{value['value']:.1%} [{value['low']:.1%}, {value['high']:.1%}]"


def lines(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures of most interest: name and value."""
    rows = [(name, percent(value)) for name, value in report["results"]["metrics"].items()]
    spent = report["spent"]
    for per, label in (("per_attempt", "attempt"), ("per_task", "task"), ("per_success", "success")):
        if per == "per_task" and report["results"]["attempts_per_task"] == 1:
            continue
        rows.append((f"spent per {label}", _spent(spent[per], report["timing"][f"seconds_{per}"])))
    if "per_chosen_success" in spent:
        rows.append(("spent per success chosen", _spent(spent["per_chosen_success"], None)))
    if spent["unmetered_calls"]:
        rows.append(("unmetered model calls", f"{spent['unmetered_calls']:,}: the tokens are a lower bound"))
    rows.append(("format repairs", _repaired(report["repairs"], report["results"]["attempts"])))
    rows += [(f"agreement with {name}", _agreed(value)) for name, value in report["agreement"].items()]
    return rows


def _spent(each: Mapping[str, float | None] | None, seconds: float | None) -> str:
    if each is None:
        return "no success"
    cost = f", cost {each['cost']:.4g}" if each.get("cost") is not None else ""
    time = f", {seconds:,.1f} s" if seconds is not None else ""
    return (
        f"{each['total_tokens']:,.0f} tokens ({each['prompt_tokens']:,.0f} read, {each['cached_tokens']:,.0f} of them "
        f"from cache, {each['completion_tokens']:,.0f} written), {each['tool_calls']:,.1f} tool calls{time}{cost}"
    )


def _repaired(found: Mapping[str, Any], attempts: int) -> str:
    """How much of the text the parser had to fix before it could be read."""
    if not found["total"]:
        return "none"
    share = f"{found['share_of_attempts']:.1%}"
    return (
        f"{plural(found['total'], 'repair')} in {found['attempts_with']:,} of {plural(attempts, 'attempt')} ({share})"
    )


def _agreed(value: Mapping[str, Any]) -> str:
    kappa = "" if value["kappa"] is None else f", kappa {value['kappa']:.2f}"
    total = sum(value[name] for name in ("both_right", "both_wrong", "only_first", "only_second"))
    return f"{value['rate']:.1%} of {total:,}{kappa}"


def _html(report: Figures, folder: Path, tasks: str) -> str:
    found = report["results"]
    metrics = [
        Bar(name, value["value"], f"{value['value']:.1%}", value["low"], value["high"])
        for name, value in found["metrics"].items()
    ]
    benchmark, agents = report["benchmark"], report["agents"]
    shares = {name: "" if share is None else f"{share:.1%}" for name, share in agents["share"].items()}
    ends = [(Stop(stop).words, count) for stop, count in report["stops"].items()]
    written = [(name, count, shares[name]) for name, count in agents["written_tokens"].items()]
    about = f"{benchmark['about']}. {benchmark['note']}" if benchmark.get("note") else benchmark.get("about", "")
    texts = {name: said(value) for name, value in _flat(report["provenance"]).items()}
    provenance = [(name, f"{text[:_LONGEST]}{'…' if len(text) > _LONGEST else ''}") for name, text in texts.items()]
    return page(
        f"Evaluation: {benchmark['name']}",
        *map(notice, report["notices"]),
        paragraph(headline(report)),
        paragraph(caveat(report)) if caveat(report) else "",
        paragraph(about),
        bars(metrics, title="success with 95 % intervals", most=1.0) if metrics else "",
        section("What it took", table(["", ""], lines(report))),
        section("Who wrote how much", table(["agent", "tokens written", "share"], written)),
        section("How runs ended", table(["end", "attempts"], ends)),
        *(section(f"By {key}", group_table(groups)) for key, groups in report["breakdown"].items()),
        tasks,
        section("Provenance", table(["setting", "value"], provenance)),
        run=folder,
    )


def group_table(groups: Mapping[str, Figures]) -> str:
    rows = []
    for name, group in groups.items():
        tokens = None if group["tokens_per_success"] is None else round(group["tokens_per_success"])
        counts = group["tasks"], group["attempts"], percent(group["pass@1"]), group["failed"], group["unscored"]
        rows.append((name or "(none)", *counts, tokens))
    return table(["", "tasks", "attempts", "pass@1", "failed", "unscored", "tokens per success"], rows)


def _flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, item in value.items():
        found |= _flat(item, f"{before}{name}.") if isinstance(item, Mapping) else {f"{before}{name}": item}
    return found
