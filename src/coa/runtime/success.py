"""How often a model succeeds as it is: greedy, with real tools, held by no grammar. For looks during training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from coa.choices import Constrain
from coa.models.base import Sampling
from coa.progress import Progress, Silent
from coa.runtime.many import BatchProgress, reported, run_many
from coa.runtime.setting import Setting
from coa.runtime.telemetry import unheard
from coa.scoring import Scorer, score_trajectory
from coa.trajectory import Stop, Task, Trajectory, writer

SUCCESS: Final = "success"
"""Name of the score."""


async def look(
    tasks: Sequence[Task], setting: Setting, scorer: Scorer, progress: Progress | None = None
) -> list[Trajectory]:
    """One greedy attempt at each task, scored, in the order of their ids."""
    greedy = Sampling(temperature=0.0, max_tokens=setting.sampling.max_tokens, seed=0)
    # What the model has learnt is the question, so no grammar holds it.
    bare = replace(setting, sampling=greedy, constrain=Constrain.NEVER, concurrency=32, finished=unheard)
    batch = BatchProgress(total=len(tasks))
    async with reported(batch, progress or Silent(), "held-out tasks"):
        runs = run_many(tasks, bare, progress=batch)
        done = [await score_trajectory(run, scorer, name=SUCCESS) async for run in runs]
    for scored in done:
        setting.finished(scored)
    return sorted(done, key=lambda trajectory: trajectory.task.id)


def figures(done: Sequence[Trajectory]) -> dict[str, float]:
    """For the metrics. What could not be scored is in no mean."""
    scored = _scored(done)
    found = {"success_tasks": len(scored), "answered": sum(t.stop is Stop.ANSWERED for t in done) / max(len(done), 1)}
    return {**found, **({SUCCESS: sum(scored) / len(scored)} if scored else {})}


def sentence(done: Sequence[Trajectory]) -> str:
    """For people."""
    found, scored = figures(done), _scored(done)
    share = f"{found[SUCCESS]:.1%} of {len(scored)}" if scored else "nothing could be scored"
    rest = f", {len(done) - len(scored)} unscored" if len(scored) < len(done) else ""
    return f"success {share} held-out tasks{rest}; {found['answered']:.1%} answered of their own accord"


def keep(done: Sequence[Trajectory], folder: Path) -> None:
    """For `coa inspect`; a look that is repeated takes the place of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "trajectories.jsonl"
    path.unlink(missing_ok=True)
    with writer(path) as out:
        for trajectory in done:
            out.write(trajectory)


def _scored(done: Sequence[Trajectory]) -> list[float]:
    return [value for t in done if (value := t.scores[SUCCESS].value) is not None]
