"""verl's trainer with coa's files and guards around it.

`recording(cls)` derives from any of verl's V1 trainers a class that does the same, and besides

- writes `groups/step-N.jsonl` and a row of `metrics.jsonl` under coa's names, before the step's checkpoint is saved, so
  that a run which goes on from a checkpoint has the files of all steps up to it;
- applies the guards: it ends a run whose tasks are all too hard or too easy, for which verl would draw tasks for ever,
  and one in which sampling and training disagree about probabilities, before they change the weights;
- saves and ends after the current step when `coa rl` was asked to stop.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
import ray
import transfer_queue as tq
from omegaconf import OmegaConf

from coa.errors import TrainingError
from coa.report import plural
from coa.rl import report
from coa.rl.config import RlConfig
from coa.rl.engines.verl.cluster import reason
from coa.rl.engines.verl.collector import Record, RecordedAttempt, find_collector
from coa.rl.engines.verl.settings import Files
from coa.rl.groups import Collected, Group, keep
from coa.rl.guards import LogprobDiff, Watch
from coa.runtime import success
from coa.trajectory import Task

if TYPE_CHECKING:
    from torch import Tensor

GROUPS: Final = "groups"
WATCH_S: Final = 5.0
"""Seconds between two looks at whether the other processes are alive."""
NAMES: Final = {
    "loss": "actor/loss",
    "grad_norm": "actor/grad_norm",
    "clip_fraction": "actor/pg_clipfrac",
    "kl": "actor/kl_loss",
    "policy_kl": "actor/ppo_kl",
    "lr": "actor/lr",
    "prob_diff_max": "training/rollout_probs_diff_max",
    "groups_evicted": "training/filter_groups/evicted_samples",
    "groups_discarded": "training/filter_groups/discarded_surplus_samples",
    "groups_failed": "training/rollout_failure/evicted_samples",
    "logprob_diff_mean": "coa/logprob_diff_mean",
    "logprob_diff_max": "coa/logprob_diff_max",
}
"""coa's names of what verl measures."""
RecordedGroup = Group[RecordedAttempt]


class Journal:
    """What the trainer knows of attempts, from the collector, and what it writes of them."""

    def __init__(self, config: RlConfig, out: Path) -> None:
        self._config, self._out = config, out
        self._waiting: dict[str, list[Record]] = defaultdict(list)
        """Attempts that no step has used yet, by group."""
        self._held_out: list[Record] = []
        self.log = report.Log(out / "metrics.jsonl", config.report_to)
        self.watch = Watch(config.guards)
        self._collector = find_collector()

    def fetch(self) -> None:
        for record in ray.get(self._collector.drain.remote()):
            if record.held_out:
                self._held_out.append(record)
            else:
                self._waiting[record.uid].append(record)

    def step(
        self, step: int, advantages: Mapping[str, Mapping[int, float]], alive: Iterable[str], figures: dict[str, Any]
    ) -> None:
        """Write what a step has learnt from and what it has thrown away.

        `advantages` are those of the attempts that were learnt from, by group and number. Groups that are neither among
        them nor `alive` will never be learnt from.
        """
        self.fetch()
        alive, used, drawn = set(alive), list[RecordedGroup](), list[RecordedGroup]()
        given: dict[int, list[float]] = {}
        for uid in list(self._waiting):
            if uid in alive and uid not in advantages:
                continue
            records = sorted(self._waiting.pop(uid), key=lambda record: record.session)
            learnt = advantages.get(uid, {})
            group = _group(records, step)
            given[id(group)] = [learnt.get(one.session, 0.0) for one in records if one.outcome == "made"]
            drawn.append(group)
            if learnt:
                used.append(group)
        keep(drawn, self._out / GROUPS / f"step-{step:04}.jsonl", lambda group: given[id(group)], used=used)
        found = {**report.of_groups(Collected(used, [], drawn, 1), self._config), **figures}
        if "grad_norm" in found:
            self.watch.update(skipped=not math.isfinite(found["grad_norm"]))
        unrecorded = len(advantages) - len(used)  # restored from an asynchronous run's queue
        self.watch.groups(
            drawn=len(drawn) + unrecorded,
            used=sum(group.teaches(self._config) for group in used) + unrecorded,
            equal=report.equal(drawn, self._config),
            left_out=report.left_out(drawn),
        )
        if "entropy" in found:
            self.watch.attempts(entropy=found["entropy"], length=found["model_tokens"])
        self.watch.policy_kl(found.get("policy_kl", 0.0))
        warnings = {"warnings": list(self.watch.warnings)} if self.watch.warnings else {}
        self.watch.warnings.clear()
        self.log.write(step, {**found, **warnings})

    def held_out(self, step: int) -> None:
        """Write how the held-out tasks went."""
        self.fetch()
        done = [record.trajectory() for record in self._held_out if record.packed]
        done.sort(key=lambda trajectory: trajectory.task.id)
        failed, self._held_out = len(self._held_out) - len(done), []
        success.keep(done, self._out / "agent" / f"step-{step}")
        figures = {f"held_out_{name}": value for name, value in success.figures(done).items()}
        self.log.write(step, {**figures, "held_out_failed": failed})

    def in_vain(self, drawn: int) -> TrainingError:
        """For a step that draws tasks without end."""
        self.fetch()
        groups = [_group(records, 0) for records in self._waiting.values()]
        kinds = ", ".join(f"{n} {name}" for name, n in report.equal(groups, self._config).items() if n)
        left_out = report.left_out(groups)
        return TrainingError(
            f"nothing to learn: {plural(drawn, 'task')} were drawn in one step, and fewer than "
            f"{self._config.train_batch_size} of their groups have attempts whose rewards differ"
            f" ({kinds or 'none could be scored'})" + (f"; {left_out}" if left_out else ""),
            hint="use tasks that the model solves sometimes, a larger num_generations, or fine-tune more first",
        )


def _group(records: Sequence[Record], step: int) -> RecordedGroup:
    lost = [record for record in records if record.outcome != "made"]
    return Group(
        task=Task.model_validate_json(records[0].task),
        attempts=tuple(record.attempt() for record in records if record.outcome == "made"),
        step=records[0].step or step,
        failed=sum(record.outcome == "failed" for record in lost),
        unscored=sum(record.outcome == "unscored" for record in lost),
        refilled=sum(record.outcome == "made" and record.retries > 0 for record in records),
        why=next((record.why for record in lost if record.why), ""),
    )


def recording(base: Any, config: RlConfig, out: Path) -> Any:
    """A class that does what the trainer `base` of verl does, with coa's files and guards."""

    class RecordingTrainer(base):  # type: ignore[misc]
        journal: Journal
        drawn = 0
        total_training_steps: int

        def fit(self, agent_loop_manager: Any) -> None:
            self.journal = Journal(config, out)
            if Files(out).guards.is_file():
                self.journal.watch.restore(orjson.loads(Files(out).guards.read_bytes()))
            watch_over(_actors_of(self, agent_loop_manager), Files(out))
            try:
                super().fit(agent_loop_manager)
            finally:
                self.journal.log.close()

        def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> Any:
            began, self.drawn = time.perf_counter(), config.train_batch_size
            batch = super().step(metrics, timing_raw)
            rows = _rows(batch)
            alive = {key.partition("_")[0] for key in (tq.kv_list("train") or {}).get("train", {})}
            figures = {name: float(metrics[theirs]) for name, theirs in NAMES.items() if theirs in metrics}
            figures |= {"trained_tokens": _trained_tokens(batch), "staleness": _staleness(rows, self.global_steps - 1)}
            figures["seconds"] = time.perf_counter() - began
            if sampled_s := timing_raw.get("gen"):
                figures |= {"sampling_s": sampled_s, "tokens_per_s": figures["trained_tokens"] / sampled_s}
            self.journal.step(self.global_steps, _advantages(rows), alive, figures)
            return batch

        def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
            """Between sampling and the update; the guard compares what both say of the same tokens."""
            diff = _logprob_diff(_rows(batch, "rollout_log_probs", "old_log_probs"), self.global_steps - 1)
            if diff is not None:
                metrics |= {NAMES["logprob_diff_mean"]: diff.mean, NAMES["logprob_diff_max"]: diff.most}
                self.journal.watch.logprob_diff(diff)
            return super()._compute_advantage(batch, metrics)

        def _add_prompts_to_generate(self, num_prompts: int) -> int:
            self.drawn += num_prompts
            most = config.guards.max_idle_steps * config.max_num_gen_batches * config.tasks_per_draw
            if self.drawn > most:
                raise self.journal.in_vain(self.drawn)
            return int(super()._add_prompts_to_generate(num_prompts))

        def _validate(self) -> Any:
            found = super()._validate()
            self.journal.held_out(self.global_steps)
            return found

        def _save_checkpoint(self) -> None:
            super()._save_checkpoint()
            Files(out).guards.write_bytes(orjson.dumps(self.journal.watch.state()))
            Files(out).prune(config.save_total_limit)

        def on_step_end(self) -> None:
            super().on_step_end()
            if not Files(out).stop.exists() or self.global_steps >= self.total_training_steps:
                return
            if Files(out).latest != self.global_steps:
                self._save_checkpoint()
            self.total_training_steps = self.global_steps  # the loop ends after this step

    return RecordingTrainer


def _actors_of(trainer: Any, agent_loop_manager: Any) -> dict[str, Any]:
    """The actors without which a step would wait for ever, or fail attempt after attempt."""
    found = {f"agent worker {number}": one for number, one in enumerate(agent_loop_manager.agent_loop_workers)}
    managers = (getattr(trainer, name, None) for name in ("llm_server_manager", "standalone_server_manager"))
    replicas = [replica for manager in managers if manager is not None for replica in manager.get_replicas()]
    servers = [server for replica in replicas for server in replica.servers]
    return found | {f"rollout server {number}": one for number, one in enumerate(servers)}


def watch_over(actors: Mapping[str, Any], files: Files) -> None:
    """End this process when one of the actors has died. verl does not notice: it polls for attempts that nobody makes.

    An actor that does not answer in time is busy, not dead.
    """

    def watch() -> None:
        while True:
            time.sleep(WATCH_S)
            for name, actor in actors.items():
                try:
                    ray.get(actor.__ray_ready__.remote(), timeout=WATCH_S)
                except ray.exceptions.GetTimeoutError:
                    continue
                except ray.exceptions.RayError as error:  # an actor that was killed for want of memory is no ActorError
                    hint = f"{files.log} may say more; the same command goes on from step {files.latest}"
                    files.report("failed", message=f"the {name} has died: {reason(error)}"[:500], hint=hint)
                    os._exit(1)

    threading.Thread(target=watch, name="coa-watch", daemon=True).start()


def _rows(batch: Any, *fields: str) -> list[dict[str, Any]]:
    """The rows of a batch without padding, each with its tag and its tensors."""
    places = [at for at, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
    keys = [batch.keys[at] for at in places]
    if not keys:
        return []
    wanted = ["response_mask", *(fields or ("advantages",))]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=wanted)
    columns = {name: [value for value in data[name].unbind()] for name in wanted}
    return [
        {"key": key, "tag": batch.tags[at], **{name: columns[name][row] for name in wanted}}
        for row, (key, at) in enumerate(zip(keys, places, strict=True))
    ]


def _advantages(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """The advantage of each attempt, which all its tokens share, by group and number."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        uid, session, _ = row["key"].rsplit("_", 2)
        written: Tensor = row["response_mask"].bool()
        found[uid][int(session)] = float(row["advantages"][written].mean()) if written.any() else 0.0
    return found


def _trained_tokens(batch: Any) -> float:
    """The tokens of the batch that have a gradient, rows of padding included: they should have none."""
    data = tq.kv_batch_get(keys=list(batch.keys), partition_id=batch.partition_id, select_fields=["response_mask"])
    return float(sum(int(mask.sum()) for mask in data["response_mask"].unbind()))


def _staleness(rows: Sequence[Mapping[str, Any]], version: int) -> float:
    """By how many versions of the weights the attempts were behind, on average."""
    behind = [version - int(row["tag"]["max_global_steps"]) for row in rows]
    return sum(behind) / max(len(behind), 1)


def _logprob_diff(rows: Sequence[Mapping[str, Any]], version: int) -> LogprobDiff | None:
    """How much the log-probabilities of attempts that the current weights have sampled differ."""
    diffs: list[tuple[int, float]] = []
    for row in rows:
        if row["tag"].get("min_global_steps") != version:
            continue
        written = row["response_mask"].bool()
        differences = (row["rollout_log_probs"] - row["old_log_probs"]).abs()
        turn, before = -1, False
        for is_written, difference in zip(written.tolist(), differences.tolist(), strict=True):
            turn += is_written and not before
            before = is_written
            if is_written:
                diffs.append((turn, difference))
    return LogprobDiff.of(diffs)


class Runner:
    """Runs the trainer in an actor of its own, as verl's own runner does."""

    def run(self, config: Any, run_file: str, out: str) -> dict[str, str] | None:
        """None, or the message and the hint of an error of coa's: Ray would wrap it in a traceback."""
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ, get_trainer_cls
        from verl.utils.logging_utils import configure_verl_logging

        configure_verl_logging()
        settings = RlConfig.model_validate(orjson.loads(Path(run_file).read_bytes())["config"])
        OmegaConf.resolve(config)
        tq.init(config.transfer_queue)
        trainer = None
        try:
            trainer = recording(get_trainer_cls(settings.verl.trainer_mode), settings, Path(out))(config=config)
            trainer.init()
            manager = AgentLoopManagerTQ.create(
                config=config,
                llm_client=trainer.get_llm_client(),
                teacher_client=trainer.get_teacher_client(),
                reward_loop_worker_handles=trainer.get_reward_handles(),
            )
            trainer.fit(manager)
            return None
        except TrainingError as error:
            return {"message": error.message, "hint": error.hint or ""}
        finally:
            tracking = getattr(trainer, "logger", None)
            if tracking is not None:
                tracking.finish()
            tq.close()
