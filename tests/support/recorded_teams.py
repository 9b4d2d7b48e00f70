"""The teams of other frameworks as they were recorded (`tests/corpus/teams`), and what arrives of each recording.

`tests/teams/capture.py` makes the recordings. What a framework does not record itself is declared in
`tests/teams/FRAMEWORK/not_recorded.toml`, one table for each file, with the reason:

    [openinference]
    reasoning = "The instrumentation writes no reasoning into its spans."
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coa.distill import DistillConfig, distill, profile_from_traces
from coa.distill.handovers import HandoverOutcome, handovers_of
from coa.distill.importers.detect import read_traces
from coa.distill.team_run import ModelCall, TeamRun, ToolResult
from coa.distill.tool_names import own_tag
from coa.trajectory import Trajectory
from coa.trajectory.formats.detect import read_trajectories
from support.team_script import ANSWER, SEARCHES, SUM
from teams.common import QUESTION

TESTS = Path(__file__).resolve().parents[1]
CORPUS = TESTS / "corpus" / "teams"
GATEWAY = "gateway"
REASONING = "The sum needs one calculation."
THOUGHTS = (
    "I ask the researcher how many people live in Ostrel and in Brnov.",
    "The request was refused. I ask the researcher again.",
    "I look up both towns at once.",
    "Both numbers are known. The analyst adds them.",
)
FOUND = ("Ostrel is a town of 279,500 people.", "Brnov is a town of 395,000 people.", "674500")


@dataclass(frozen=True)
class Recording:
    team: str
    """The folder of the team's program."""
    way: str
    """`gateway`, or the name of the file in which the framework recorded itself."""
    path: Path
    capture: Mapping[str, Any]
    """What `capture.json` says: the package, its version, and what the server metered."""

    def __str__(self) -> str:
        return f"{self.team}-{self.way}"

    @property
    def not_recorded(self) -> dict[str, str]:
        """What this way of recording leaves out, and why."""
        declared = TESTS / "teams" / self.team / "not_recorded.toml"
        found = tomllib.loads(declared.read_text()) if declared.is_file() else {}
        return dict(found.get(self.way, {}))

    def run(self) -> TeamRun:
        """The one run that the recording holds."""
        runs = list(read_traces([self.path]))
        assert len(runs) == 1 and isinstance(runs[0], TeamRun), runs
        return runs[0]


def recordings(corpus: Path = CORPUS) -> Iterator[Recording]:
    """The gateway's recording of each team first."""
    for described in sorted(corpus.glob("*/capture.json")):
        folder = described.parent
        capture = json.loads(described.read_text())
        if (folder / GATEWAY).is_dir():
            yield Recording(folder.name, GATEWAY, folder / GATEWAY, capture)
        for path in sorted((folder / "own").iterdir() if (folder / "own").is_dir() else ()):
            yield Recording(folder.name, path.name.split(".")[0], path, capture)


def _model_calls(run: TeamRun) -> list[ModelCall]:
    return [call for agent in run.root.walk() for call in agent.model_calls]


def _agents(run: TeamRun, _: Mapping[str, Any]) -> bool:
    return {agent.agent for agent in run.root.walk()} == {"manager", "researcher", "analyst"}


def _hand_overs(run: TeamRun, _: Mapping[str, Any]) -> bool:
    return [h.to for h in handovers_of(run.root) if h.outcome is HandoverOutcome.DONE] == ["researcher", "analyst"]


def _failed_hand_over(run: TeamRun, _: Mapping[str, Any]) -> bool:
    failed = [h for h in handovers_of(run.root) if h.outcome is HandoverOutcome.FAILED]
    return len(failed) == 1 and bool(failed[0].error)


def _thoughts(run: TeamRun, _: Mapping[str, Any]) -> bool:
    said = [text for call in _model_calls(run) for text in (call.thought.strip(), call.text.strip()) if text]
    return sorted(text for text in said if text in THOUGHTS) == sorted(THOUGHTS)


def _reasoning(run: TeamRun, _: Mapping[str, Any]) -> bool:
    return any(call.thought.strip() == REASONING for call in _model_calls(run))


def _calls(run: TeamRun, _: Mapping[str, Any]) -> bool:
    calls = [item for call in _model_calls(run) for item in call.calls if not item.agent]
    given = [(own_tag(item.name), list(item.arguments.values())) for item in calls]
    return given == [*(("web_search", [query]) for query in SEARCHES), ("calculator", [SUM])]


def _parallel_calls(run: TeamRun, _: Mapping[str, Any]) -> bool:
    return any(
        [own_tag(item.name) for item in call.calls] == ["web_search", "web_search"] for call in _model_calls(run)
    )


def _observations(run: TeamRun, _: Mapping[str, Any]) -> bool:
    results = [event for agent in run.root.walk() for event in agent.events if isinstance(event, ToolResult)]
    tools = {item.id for call in _model_calls(run) for item in call.calls if not item.agent}
    found = [result for result in results if tools.intersection(result.call_ids)]
    alone = all(len(result.call_ids) == 1 and result.ok for result in found)
    return alone and tuple(result.text for result in found) == FOUND


def _question(run: TeamRun, _: Mapping[str, Any]) -> bool:
    return run.task.question == QUESTION


def _answer(run: TeamRun, _: Mapping[str, Any]) -> bool:
    return run.answer == ANSWER


def _tokens(run: TeamRun, metered: Mapping[str, Any]) -> bool:
    names = ("model_calls", "prompt_tokens", "completion_tokens")
    return all(getattr(run.usage, name) == metered[name] for name in names)


ARRIVES: dict[str, Callable[[TeamRun, Mapping[str, Any]], bool]] = {
    "question": _question,
    "agents": _agents,
    "hand-overs": _hand_overs,
    "failed hand-over": _failed_hand_over,
    "thoughts": _thoughts,
    "reasoning": _reasoning,
    "calls": _calls,
    "parallel calls": _parallel_calls,
    "observations": _observations,
    "answer": _answer,
    "tokens": _tokens,
}


def arrived(recording: Recording) -> dict[str, bool]:
    """What of the team's work is in the run that `coa` reads from a recording."""
    run = recording.run()
    return {name: there(run, recording.capture) for name, there in ARRIVES.items()}


def steps_of(path: Path, thoughts: bool = True) -> list[tuple[str, str, object]]:
    """The steps of the trajectory made of a recording: agent, text, and the member of the team that wrote it."""
    steps = distilled(path).steps
    return [(step.agent, step.text, step.meta.get("by")) for step in steps if thoughts or step.agent != "think"]


@cache
def distilled(path: Path) -> Trajectory:
    """What the documented commands make of a recording."""
    with TemporaryDirectory() as folder:
        out = Path(folder)
        (out / "mine.toml").write_text(profile_from_traces(path).toml)
        (out / "tasks.jsonl").write_text(json.dumps({"id": "t1", "question": QUESTION, "answer": ANSWER}))
        config = DistillConfig(profile=str(out / "mine.toml"), tasks=out / "tasks.jsonl")
        report = distill(config, [path], out / "data")
        assert report.kept == 1, report.advice
        (trajectory,) = read_trajectories(report.trajectories)
        return trajectory


def matrix(corpus: Path = CORPUS) -> str:
    """What arrives, as the table in docs/guides/frameworks.md: one row for each recording, and a note for each gap."""
    made = list(recordings(corpus))
    rows = [["team", "version", "recorded by", *ARRIVES], ["---"] * (3 + len(ARRIVES))]
    notes: dict[str, int] = {}
    alike = Counter(map(str, made))
    for recording in made:
        there = arrived(recording)
        cells = []
        for name in ARRIVES:
            why = recording.not_recorded.get(name, "it is not read")
            number = "" if there[name] else str(notes.setdefault(why, len(notes) + 1))
            cells.append("yes" if there[name] else f"no ({number})")
        version = f"{recording.capture['package']} {recording.capture['version']}"
        way = recording.path.name.removesuffix(".gz") if alike[str(recording)] > 1 else recording.way
        rows.append([recording.team.replace("_", " "), version, way.replace("_", " "), *cells])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([table, "", *(f"{number}. {why}" for why, number in notes.items())]).rstrip() + "\n"
