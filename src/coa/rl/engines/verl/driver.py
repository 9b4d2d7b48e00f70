"""A run on verl from the user's side: check, write the files, start the child process, follow it, merge the model.

Everything that verl and Ray print goes to `verl/log.txt` in the run folder. What people see comes from coa's own files,
which the trainer writes: a line for each step from `metrics.jsonl`, and the number of attempts in between.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from coa.errors import TrainingError
from coa.folder import lock, write_atomic
from coa.models.tokenizer import load_tokenizer
from coa.progress import Progress, Silent, part
from coa.report import plural
from coa.rl import report
from coa.rl.card import measured_figures, rl_card
from coa.rl.checks import Checked, check, profiles_of
from coa.rl.config import RlConfig
from coa.rl.engines.verl import checks
from coa.rl.engines.verl.dataset import longest_prompt, write_loops, write_tasks
from coa.rl.engines.verl.settings import Files, environment, verl_settings
from coa.tools import Tool
from coa.training import checkpoint
from coa.training.merging import merge_checkpoint, model_folder
from coa.training.requirements import refuse_endless
from coa.training.run_folder import METRICS, MODEL, TrainingResult, claim, keep_until
from coa.trajectory import load_profile

POLL_S: Final = 0.5
_FREE: Final = ("report_to", "save_steps", "save_total_limit", "eval_steps", "guards", "otlp", "ray")
_LAST_LINES: Final = 30


def train(
    config: RlConfig,
    out: Path,
    *,
    tools: Mapping[str, Tool] | None = None,
    command: str | None = None,
    progress: Progress | None = None,
    checked: Checked | None = None,
) -> TrainingResult:
    """Train on a Ray cluster with verl. Blocks; goes on from the checkpoints that `out` holds."""
    progress = progress or Silent()
    checks.refuse_unsupported(config, tools)
    checks.refuse_versions()
    checked = checked or check(config)
    files = Files(out)
    with lock(out):
        claim(out, "rl", config, checked.fingerprint, free=_FREE)
        if (out / MODEL).is_dir():
            progress.say(f"finished already: {out / MODEL}")
            return TrainingResult(out / MODEL, config.max_steps, True, {})
        with part(progress, "writing what verl reads"):
            prepare(config, out, checked)
        start = files.latest
        keep_until(out / METRICS, start)
        if start < config.max_steps:
            for line in checks.unused(config):
                progress.say(line)
            _say_start(config, checked, start, progress)
            progress.say(f"verl and Ray take about a minute to start; they write their log to {files.log}")
            if not _run(config, out, files, progress):
                step = files.latest
                progress.say(f"stopped after step {step}; the same command goes on from there")
                return TrainingResult(out, step, False, {})
        return _finish(config, out, files, checked, command, progress)


def prepare(config: RlConfig, out: Path, checked: Checked) -> dict[str, Any]:
    """Write the data set, the registration of the agent loop and the settings; returns the settings of verl."""
    files = Files(out)
    files.folder.mkdir(parents=True, exist_ok=True)
    folder = model_folder(config.model, files.folder / "model")
    tokenizer = load_tokenizer(config.model)
    refuse_endless(tokenizer)
    tasks = [*checked.tasks, *checked.held_out]
    limits = [config.limits(load_profile(name)) for name in profiles_of(config, tasks)]
    prompt = longest_prompt(tasks, config, tokenizer)
    context = checks.refuse_too_long(limits, prompt, checks.positions_of(folder))
    settings = verl_settings(
        config, out, model=str(folder), context_tokens=context, prompt_tokens=prompt, held_out=bool(checked.held_out)
    )
    run = {
        "config": config.model_dump(mode="json"),
        "model": str(folder),
        "profiles": profiles_of(config, tasks),
    }
    write_atomic(files.run, orjson.dumps(run, option=orjson.OPT_INDENT_2))
    write_atomic(files.overrides, orjson.dumps(settings, option=orjson.OPT_INDENT_2))
    write_tasks(checked.tasks, files.train_tasks, config, held_out=False)
    if checked.held_out:
        write_tasks(checked.held_out, files.held_out_tasks, config, held_out=True)
    write_loops(files)
    return settings


def _run(config: RlConfig, out: Path, files: Files, progress: Progress) -> bool:
    """Start the child process and follow it to its end. False if it was asked to stop before the last step."""
    files.stop.unlink(missing_ok=True)
    files.events.unlink(missing_ok=True)
    interruption = checkpoint.Interruption(progress, "step")
    interruption.listen()
    shown = _Shown(config, out / METRICS, files, progress)
    command = [sys.executable, "-m", "coa.rl.engines.verl.launch", str(out), str(os.getpid())]
    progress.start("steps", config.max_steps)
    try:
        with files.log.open("ab") as log:
            # A group of its own: Ctrl-C reaches this process alone, which lets the child finish its step.
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **environment(config, out)},
            )  # fmt: skip
        try:
            while child.poll() is None:
                shown.look()
                if interruption.asked and not files.stop.exists():
                    files.stop.touch()
                time.sleep(POLL_S)
        finally:
            _end(child)
        shown.look()
    finally:
        interruption.restore()
        progress.finish()
    if child.returncode != 0:
        raise shown.problem or TrainingError(
            f"verl ended with exit code {child.returncode}:\n{_tail(files.log)}",
            hint=f"the whole log is {files.log}; the same command goes on from step {files.latest}",
        )
    return files.latest >= config.max_steps


def _end(child: subprocess.Popen[bytes]) -> None:
    """Only where this process is itself being ended: the child takes its Ray with it."""
    if child.poll() is not None:
        return
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(20)
    child.kill()


@dataclass
class _Shown:
    """What has been shown of the run."""

    config: RlConfig
    metrics: Path
    files: Files
    progress: Progress
    problem: TrainingError | None = None
    step: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    pace: list[float] = field(default_factory=list)
    _read: dict[Path, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.step = self.files.latest
        for _ in self._new(self.metrics):  # rows of earlier starts
            pass

    def look(self) -> None:
        for event in self._new(self.files.events):
            if event["event"] == "counts":
                self.counts = event
            elif event["event"] == "failed" and self.problem is None:  # the first says most
                self.problem = TrainingError(event["message"], hint=event["hint"] or None)
            elif event["event"] == "say":
                self.progress.update(self.step, self.config.max_steps, event["line"])
        for row in self._new(self.metrics):
            self._row(row)
        if self.counts:
            made, failed = self.counts["made"], self.counts["failed"]
            more = f", {failed} failed" if failed else ""
            note = f"step {self.step + 1}: {plural(made, 'attempt')} made{more}, {self.counts['tokens']:,} tokens"
            self.progress.update(self.step, self.config.max_steps, note)

    def _row(self, row: dict[str, Any]) -> None:
        step, steps = row["step"], self.config.max_steps
        if "held_out_answered" in row:
            share = row.get("held_out_success")
            shown = f"{share:.1%}" if share is not None else "nothing could be scored"
            self.progress.say(f"step {step}: success {shown} on held-out tasks")
            return
        self.step = step
        self.pace = [*self.pace[-9:], row["seconds"]]
        self.progress.say(report.line(step, steps, row, (steps - step) * sum(self.pace) / len(self.pace)))
        for warning in row.get("warnings", ()):
            self.progress.say(f"step {step}: {warning}")

    def _new(self, path: Path) -> Iterator[dict[str, Any]]:
        """Whole lines that have been added since the last call."""
        if not path.is_file():
            return
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            lines = file.read().splitlines(keepends=True)
        for line in lines:
            if not line.endswith(b"\n"):
                return
            self._read[path] = self._read.get(path, 0) + len(line)
            yield orjson.loads(line)


def _finish(
    config: RlConfig, out: Path, files: Files, checked: Checked, command: str | None, progress: Progress
) -> TrainingResult:
    measured, verl = measured_figures(out), f" on verl {dict(checks.installed())['verl']}"
    card = rl_card(config, out, tasks=len(checked.tasks), figures=measured, command=command, where=verl)
    with part(progress, "merging the checkpoint into a model folder"):
        merge_checkpoint(files.latest_checkpoint / "actor", out / MODEL, card=card, tokenizer=config.model)
    progress.say(f"wrote {out / MODEL}")
    return TrainingResult(out / MODEL, config.max_steps, True, measured)


def _say_start(config: RlConfig, checked: Checked, start: int, progress: Progress) -> None:
    verl = config.verl
    what = "process" if verl.device == "cpu" else "GPU"
    progress.say(
        f"{plural(len(checked.tasks), 'task')}; {plural(config.max_steps, 'step')} of "
        f"{plural(config.train_batch_size, 'group')} of {config.num_generations}, on "
        f"{plural(verl.world_size, what, f'{what}es' if what == 'process' else f'{what}s')} of "
        f"{plural(verl.nnodes, 'machine')}" + (f"; going on after step {start}" if start else "")
    )


def _tail(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return "\n".join(_wanted(lines)[-_LAST_LINES:])


def _wanted(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if line.strip() and "Warning" not in line]
