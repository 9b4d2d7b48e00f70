"""A folder with something of every stage, as the viewer sees it: evaluations, a comparison, a distillation, curves of
SFT and RL with groups, a recorded team, a server's runs, and damaged files.

`words` is put into every text that somebody else could have written: names, questions, answers, reports.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coa.compare import compare
from coa.distill.atif_writer import to_atif
from coa.distill.team_run import AgentRun, LeftOut, ModelCall, Note, Source, SubRun, TeamRun, ToolCall, ToolResult
from coa.serve.store import Store, StoredRun, trajectory_line
from coa.trajectory import Author, Profile, Score, Step, Task, Trajectory, Usage, load_profile, observation, write
from coa.trajectory.types import Failure, FailureSite, Repair, RepairKind, Stop, Tokens

_FAMILIES = ("one_hop", "two_hop", "code")


def stage_folders(root: Path, words: str = "", *, profile: Profile | None = None) -> Path:
    """All of it below `root`, which is returned."""
    profile = profile or load_profile("all")
    tasks = [_task(number, words) for number in range(6)]
    for name, right in (("base", 2), ("tuned", 4)):
        runs = [_run(task, profile, words, right=number < right) for number, task in enumerate(tasks)]
        _evaluation(root / "eval" / name, [*runs, _broken(tasks[0], profile, words)], words)
    compare([root / "eval" / "base", root / "eval" / "tuned"], root / "comparison")
    _distillation(root / "data", [_run(task, profile, words, right=True) for task in tasks], words)
    _training(root / "sft", "sft", words)
    _training(root / "rl", "rl", words)
    for step in (1, 2):
        write(root / "rl" / "groups" / f"step-{step:04}.jsonl", _group(tasks, step, profile, words))
    traces = root / "traces"
    traces.mkdir(parents=True)
    (traces / "team.atif.json").write_text(json.dumps(to_atif(_team(words))))
    _served(root / "state", [_run(task, profile, words, right=True) for task in tasks[:2]], words)
    _damaged(root / "damaged", words)
    return root


def _task(number: int, words: str) -> Task:
    meta = {"family": f"{_FAMILIES[number % 3]}{words[:60]}", "benchmark": f"exam{words[:60]}", "note": words}
    question, answer = f"Who wrote book {number}? {words}", f"Ada {number}{words}"
    return Task(id=f"task-{number}{words[:80]}", question=question, answer=answer, meta=meta)


def _run(task: Task, profile: Profile, words: str, *, right: bool, sample: int = 0, **rest: Any) -> Trajectory:
    answer = task.answer[0] if right else f"Nobody {words}"
    found = f"1. Ada Lovelace {words} - https://a.example/ada\n2. Charles - javascript:window.hurt=1\n{words}"
    code = f"```py\nprint(1)  # {words}\n```"
    repair = Repair(kind=next(iter(RepairKind)), detail=words or "a tag was closed")
    steps = [
        Step(agent="think", text=f"I need a plan. {words}", tokens=_tokens()),
        Step(
            agent="plan", text=f"1. search {words}\n2. read\n3. answer", usage=Usage(completion_tokens=9, seconds=0.4)
        ),
        Step(agent="think", text=f"Search for it. {words}", repairs=(repair,)),
        Step(agent="web_search", text=f"book {words}".replace("\n", " ")),
        observation(found, meta={"ok": True, "seconds": 0.2, "pages": [{"url": f"https://a.example/{words[:40]}"}]}),
        Step(agent="think", text=f"Compute. {words}"),
        Step(agent="code", text=code),
        observation(f"error: {words}", meta={"ok": False, "error": f"timeout{words[:40]}"}),
        Step(agent="think", text="Looks right."),
        Step(agent="suggested_answer", text=answer),
        Step(agent="think", text="Check it."),
        Step(agent="double_check", text=f"It matches. {words}\nscore: 4"),
        Step(agent="think", text="Done."),
        Step(agent="answer", text=f"{answer} https://a.example/ada"),
    ]
    given: dict[str, Any] = {
        "scores": {"auto": Score(value=float(right), reason=f"exact: {words}")},
        "meta": {"model": f"tiny{words[:60]}", "note": words},
        "usage": Usage(prompt_tokens=900, completion_tokens=120, tool_calls=2, model_calls=4, seconds=3.2, cost=0.01),
        **rest,
    }
    return Trajectory(
        task=task, profile=profile.name, profile_hash=profile.hash, steps=tuple(steps), sample=sample, **given
    )


def _tokens() -> Tokens:
    return Tokens(ids=(1, 2, 3), logprobs=(-0.1, -2.5, -0.01))


def _broken(task: Task, profile: Profile, words: str) -> Trajectory:
    """One that failed, with steps in a wrong order."""
    steps = (Step(agent="answer", text=words or "?"), Step(agent="nobody", text=words, author=Author.MODEL))
    failure = Failure(site=FailureSite.MODEL, message=f"the server did not answer {words}")
    return Trajectory(task=task, profile=profile.name, profile_hash=profile.hash, steps=steps, sample=1,
                      stop=Stop.FAILED, failure=failure)  # fmt: skip


def _evaluation(folder: Path, runs: Sequence[Trajectory], words: str) -> None:
    write(folder / "trajectories.jsonl", runs)
    right = sum(run.scores["auto"].value == 1.0 for run in runs if run.scores)
    estimate = {"value": right / 6, "low": 0.1, "high": 0.9}
    spent = {"prompt_tokens": 900.0, "cached_tokens": None, "completion_tokens": 120.0, "total_tokens": 1020.0,
             "model_calls": 4.0, "tool_calls": 2.0, "cost": 0.01}  # fmt: skip
    family = {"tasks": 2, "attempts": 2, "right": 1, "failed": 0, "unscored": 0, "pass@1": estimate,
              "tokens_per_success": None}  # fmt: skip
    benchmark = {"name": f"exam{words}", "about": f"tasks {words}", "note": words, "metric": "pass@1", "tasks": 6,
                 "published_size": None, "files": [words], "sha256": words,
                 "groups": [], "sample_tests_only": 0}  # fmt: skip
    report = {
        "benchmark": benchmark, "notices": [words] if words else [], "scorer": "auto", "complete": True,
        "results": {"tasks": 6, "attempts_per_task": 1, "attempts": 7, "missing": 0, "right": right, "unanswered": 0,
                    "failed": 1, "unscored": 0, "metrics": {"pass@1": estimate, f"odd{words}": estimate}},
        "spent": {"total": spent, "per_attempt": spent, "per_task": spent, "per_success": spent, "unmetered_calls": 0},
        "agents": {"written_tokens": {"think": 40, f"odd{words}": 4}, "share": {"think": 0.9, f"odd{words}": 0.1},
                   "shared_out_by_length": False},
        "stops": {"answered": 6, f"failed{words}": 1},
        "repairs": {"attempts_with": 6, "share_of_attempts": 0.9, "total": 6},
        "breakdown": {f"family{words}": {f"{name}{words}": family for name in _FAMILIES}},
        "tokens_per_success": {"value": 1530.0, "low": 900.0, "high": 2000.0},
        "provenance": {"model": words, "coa": words},
        words or "more": words,
    }  # fmt: skip
    _write(folder / "report.json", report)
    settings = {"stage": "eval", "benchmark": benchmark, "samples": 1, "scorer": "auto", "model": words or "tiny"}
    _write(folder / "config.json", {**settings, words or "x": words})


def _distillation(folder: Path, runs: Sequence[Trajectory], words: str) -> None:
    write(folder / "trajectories.jsonl", runs)
    stages = [
        {
            "stage": f"{name}{words}",
            "in": 10 - place,
            "kept": 9 - place,
            "dropped": 1,
            "reasons": {f"too long{words}": 1},
        }
        for place, name in enumerate(("complexity", "quality", "length"))
    ]
    _write(folder / "config.json", {"stage": "distill", "profile": words or "web"})
    _write(folder / "report.json", {
        "profile": words or "web", "scorer": words or "rules", "fill": None, "student": None, "benchmarks": [words],
        "benchmark_questions": 0, "config": {"seed": 0, words or "x": words},
        "read": {"team_runs": 10, "trajectories": 0, "formats": {f"recorded{words}": 10}, "unreadable": 1,
                 "unreadable_places": [f"line 3 {words}"]},
        "stages": stages, "failed_handovers": 1, "inferred": {"decisions": [words]}, "corrected_themselves": 1,
        "shortened": 0, "filled_steps": 0, "written": {"trajectories": 6, "rows": 6},
        "roles": {f"manager{words}": {f"act by default{words}": 10}},
    })  # fmt: skip


def _training(folder: Path, stage: str, words: str) -> None:
    seed = random.Random(stage)
    rows: list[dict[str, Any]] = []
    for step in range(1, 13):
        row: dict[str, Any] = {
            "step": step, "loss": 2.0 / step + seed.random() / 9, "grad_norm": seed.random(), "lr": 1e-4,
            "time": 1_790_000_000.0 + 60 * step, f"odd{words}": seed.random(), "text": words,
        }  # fmt: skip
        if stage == "rl":
            row |= {"reward": step / 12, "success": step / 12, "entropy": 0.1, "clip_fraction": 0.01, "kl": 0.001,
                    "groups_drawn": 4, "groups_used": 3, "success_one_hop": 0.5, f"success_{words}": 0.4}  # fmt: skip
        else:
            row |= {"label_tokens": 500, "eval_loss": 1.0 / step}
        rows.append(row)
    _write(folder / "config.json", {"stage": stage, "model": words or "tiny", "config": {words or "x": words}})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text + '{"step": 13, "lo', encoding="utf-8")


def _group(tasks: Sequence[Task], step: int, profile: Profile, words: str) -> list[Trajectory]:
    runs = []
    for group, task in enumerate(tasks[:2]):
        for sample in range(4):
            reward, advantage = float(sample % 2), 0.5 if sample % 2 else -0.5
            told = {"step": step, "group": group, "reward": reward, "advantage": advantage, "learnt": sample != 3}
            scores = {
                "success": Score(value=reward, reason=words),
                "reward": Score(value=reward),
                "advantage": Score(value=advantage),
            }
            runs.append(
                _run(
                    task,
                    profile,
                    words,
                    right=bool(sample % 2),
                    sample=sample,
                    scores=scores,
                    meta={"rl": told, "note": words},
                )
            )
    return runs


def _team(words: str) -> TeamRun:
    """A manager that asks a searcher once in vain and once with success."""
    helper = f"search_agent{words[:40]}"

    def asks(identity: str) -> tuple[ToolCall, ...]:
        return (ToolCall(id=identity, name=helper, arguments={"task": f"Find Ada. {words}"}, agent=True),)

    search = ToolCall(id="c", name="web_search", arguments={"query": words or "Ada", words or "x": words})
    searcher = AgentRun(
        id="s", agent=helper, type=f"CodeAgent{words[:40]}", description=words, system=f"You search. {words}",
        request=f"Find Ada. {words}", answer=f"Ada {words}", tools=(f"web_search{words[:40]}",),
        events=(
            ModelCall(thought=f"I search. {words}", calls=(search,), usage=Usage(prompt_tokens=7), model=words),
            ToolResult(call_ids=("c",), text=f"Ada Lovelace {words}"),
            ModelCall(text=f"Ada {words}"),
        ),
    )  # fmt: skip
    root = AgentRun(
        id="m", agent=f"manager{words[:40]}", request=f"Who? {words}", answer=f"Ada {words}",
        events=(
            ModelCall(thought=f"I ask. {words}", calls=asks("c1")),
            ToolResult(call_ids=("c1",), text=f"it is not there {words}", ok=False),
            ModelCall(thought=f"Again. {words}", calls=asks("c2")),
            SubRun(call_id="c2", run=searcher),
            ToolResult(call_ids=("c2",), text=f"Ada {words}", report_of=("s",)),
            Note(role=f"system{words[:40]}", text=f"Hurry up. {words}"),
            ModelCall(thought="It is Ada.", text=f"Ada {words}", error=words or None),
        ),
    )  # fmt: skip
    left = (LeftOut(what=f"a span {words}", reason=f"unknown {words}", place=words),)
    meta = {"inferred": {"notes": [f"manager asked {words}"], "calls": 1}}
    return TeamRun(task=Task(id=f"team{words[:80]}", question=f"Who? {words}"), root=root, left_out=left, meta=meta,
                   source=Source(format="recorded", file=words, place=words))  # fmt: skip


def _served(folder: Path, runs: Sequence[Trajectory], words: str) -> None:
    store = Store(folder, days=9, most_bytes=1 << 30)
    for number, run in enumerate(runs):
        name = f"run-{number}"
        line = trajectory_line(run)
        store.put(StoredRun(name, "me", "responses", "web", time.time(), "done", None, name, words, None, b"{}", line))
    store.close()


def _damaged(folder: Path, words: str) -> None:
    folder.mkdir(parents=True)
    (folder / "torn.jsonl").write_text('{"task": {"id": "' + words.replace('"', "'"), encoding="utf-8")
    (folder / "newer.jsonl").write_text(json.dumps({"schema_version": 99, "task": words, "profile": words}) + "\n")
    (folder / "empty.jsonl").touch()


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
