"""The local engine: the whole of RL in one process, top to bottom.

Steps follow one another: sample tasks, attempt each several times, compare, update, evaluate, save; again.

Everything random follows from the seed, the step, the task and the number of the attempt, so a run that is killed and
started again goes on as if it had not been interrupted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import torch

from coa.blocking import run_blocking
from coa.folder import lock
from coa.models.base import Sampling
from coa.progress import Progress, Silent, part
from coa.report import plural
from coa.rl import report, state
from coa.rl.card import measured_figures, rl_card
from coa.rl.checks import Checked, check, profiles_of
from coa.rl.config import RlConfig
from coa.rl.groups import Collected, Group, collect, keep, mean_advantages
from coa.rl.guards import LogprobDiff, Watch
from coa.rl.policy import Policy, open_policy, save_model
from coa.rl.reward import Rewards, own_reward
from coa.rl.rollout import Rollouts
from coa.rl.tasks import Sampler
from coa.rl.update import Trainer, UpdateStats
from coa.runtime import RunConfig, Setting, open_setting, success
from coa.runtime.live import LiveFeed, live_feed
from coa.scoring.opening import open_judge, open_scorer
from coa.tools import Tool
from coa.training import checkpoint
from coa.training.footprint import millions
from coa.training.run_folder import METRICS, MODEL, TrainingResult, claim, keep_until
from coa.trajectory import Task, load_profile

GROUPS: Final = "groups"
_FREE: Final = ("report_to", "save_steps", "save_total_limit", "eval_steps", "guards", "otlp")
T = TypeVar("T")


def train(
    config: RlConfig,
    out: Path,
    *,
    tools: Mapping[str, Tool] | None = None,
    command: str | None = None,
    progress: Progress | None = None,
    checked: Checked | None = None,
) -> TrainingResult:
    """Train a model by reinforcement learning as the settings say. `tools` are objects, besides those in the settings.

    `progress` gets the lines of the report, and how far each step has come. `checked` is the result of `check`, where
    the caller has called it.
    """
    progress = progress or Silent()
    checked = checked or check(config)
    tasks, held_out = checked.tasks, checked.held_out
    with lock(out):
        claim(out, "rl", config, checked.fingerprint, free=_FREE)
        checkpoint.clear_torn(out)
        if (out / MODEL).is_dir():
            progress.say(f"finished already: {out / MODEL}")
            return TrainingResult(out / MODEL, config.max_steps, True, {})
        with live_feed(out) as live:
            return run_blocking(_train(config, out, tasks, held_out, tools or {}, command, progress, live))


async def _train(
    config: RlConfig, out: Path, tasks: Sequence[Task], held_out: Sequence[Task], own_tools: Mapping[str, Tool],
    command: str | None, progress: Progress, live: LiveFeed,
) -> TrainingResult:  # fmt: skip
    device = "cuda" if torch.cuda.is_available() else "cpu"
    exact = config.full_determinism
    if exact is None:
        exact = device == "cpu" and not config.one_step_off_policy
    async with _opened(config, own_tools, (*tasks, *held_out), device, progress) as (policy, setting, rewards):
        at_step = report.StepProgress(progress, config.max_steps, policy.sampler)
        # Where attempts of two steps are made at once, they cannot be counted as one step's.
        made = at_step.made if not config.one_step_off_policy else lambda: None
        rollouts = Rollouts(
            policy.sampler, policy.tokenizer, setting.tools, rewards, config, exact, made, live, setting.finished
        )
        trainer, sampler, watch = Trainer(policy, config), Sampler(tasks, config), Watch(config.guards)
        last, surplus = checkpoint.latest(out), list[Group]()
        if last is not None:
            surplus = state.restore(last, trainer, sampler, watch, rollouts.attempt)
        start = checkpoint.step_of(last) if last is not None else 0
        _say_start(config, policy, tasks, start, progress)
        keep_until(out / METRICS, start)
        log = report.Log(out / METRICS, config.report_to)
        interruption = checkpoint.Interruption(progress, "step")
        interruption.listen()
        pace: list[float] = []

        async def attempts(step: int, surplus: Sequence[Group], ahead: int = 0) -> tuple[Collected, float]:
            """The groups of a step, and how many seconds it took to sample them."""
            began = time.perf_counter()

            async def attempt(drawn: list[Task], number: int) -> list[Group]:
                groups = await rollouts(drawn, step=step, number=number, ahead=ahead)
                return await _with_kl_in_reward(groups, trainer, config)

            collected = await collect(sampler.draw, attempt, surplus, config, step)
            return collected, time.perf_counter() - began

        following: asyncio.Task[tuple[Collected, float]] | None = None
        progress.start("steps", config.max_steps)
        watching = asyncio.create_task(at_step.follow())
        try:
            if held_out and start == 0:
                await _look(held_out, rollouts, policy, out, 0, log, progress)
            for step in range(start + 1, config.max_steps + 1):
                began = time.perf_counter()
                at_step.begin(step, (config.max_steps - step + 1) * sum(pace) / len(pace) if pace else None)
                policy.sync_sampler()

                # Attempts of this step, unless they were made during the last one; those of the next step may begin.
                collected, sampled_s = await (following or attempts(step, surplus))
                surplus = collected.surplus
                sampler.learn(collected.drawn)
                drawing = sampler.state()
                if config.one_step_off_policy and step < config.max_steps:
                    following = asyncio.create_task(attempts(step + 1, surplus, ahead=1))
                fresh = {id(group) for group in collected.drawn}
                seen_now = [*collected.drawn, *(group for group in collected.used if id(group) not in fresh)]
                keep(
                    seen_now,
                    out / GROUPS / f"step-{step:04}.jsonl",
                    lambda group: mean_advantages(group, config),
                    used=collected.used,
                )
                found = report.of_groups(collected, config)
                seen = collected.drawn or collected.used
                watch.groups(
                    drawn=len(seen),
                    used=sum(group.teaches(config) for group in collected.used),
                    equal=report.equal(seen, config),
                    left_out=report.left_out(collected.drawn),
                )
                if "entropy" in found:
                    watch.attempts(entropy=found["entropy"], length=found["model_tokens"])

                at_step.learn(len(collected.used))
                # Updates. The event loop stays free meanwhile: tools may have connections to keep alive.
                updates, diff = await _in_thread(lambda: _update(trainer, collected.used, step, watch))  # noqa: B023
                if following is not None:
                    await asyncio.wait([following])

                # The report.
                written = sum(a.sample.trained for group in collected.drawn for a in group.attempts)
                pace = [*pace[-9:], time.perf_counter() - began]
                found |= report.of_updates(updates, diff, trainer.optimizer.param_groups[0]["lr"])
                watch.policy_kl(found.get("policy_kl", 0.0))
                found |= {"seconds": pace[-1], "sampling_s": sampled_s}
                found |= {"tokens_per_s": written / sampled_s} if written else {}
                found |= {f"success_{name}": value for name, value in sampler.success.items() if name}
                log.write(step, found)
                left_s = (config.max_steps - step) * sum(pace) / len(pace)
                progress.say(report.line(step, config.max_steps, found, left_s))
                for warning in watch.warnings:
                    progress.say(f"step {step}: {warning}")
                watch.warnings.clear()
                if held_out and (step % config.eval_steps == 0 or step == config.max_steps):
                    at_step.pause()
                    await _look(held_out, rollouts, policy, out, step, log, progress)
                if step % config.save_steps == 0 or step == config.max_steps or interruption.asked:
                    with checkpoint.saving("a checkpoint", out):
                        state.save(out, step, trainer, drawing, watch, surplus, config)
                if interruption.asked and step < config.max_steps:
                    progress.say(f"stopped after step {step}; the same command goes on from there")
                    return TrainingResult(out, step, False, {})
        finally:
            for task in (watching, following):
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
            interruption.restore()
            progress.finish()
            log.close()
        measured = measured_figures(out)
        card = rl_card(config, out, tasks=len(tasks), figures=measured, command=command)
        with checkpoint.saving("the model", out):
            save_model(policy, config, out / MODEL, card)
        progress.say(f"wrote {out / MODEL}")
        return TrainingResult(out / MODEL, config.max_steps, True, measured)


def _update(
    trainer: Trainer, used: Sequence[Group], step: int, watch: Watch
) -> tuple[list[UpdateStats], LogprobDiff | None]:
    updates, diff = list[UpdateStats](), None
    for stats in trainer.learn(used, step) if used else ():
        if not updates:
            diff = LogprobDiff.of(stats.logprob_diffs)
            watch.logprob_diff(diff)  # before the weights change
        updates.append(stats)
    for stats in updates:
        watch.update(skipped=bool(stats.skipped))
    return updates, diff


async def _with_kl_in_reward(groups: list[Group], trainer: Trainer, config: RlConfig) -> list[Group]:
    """Subtract the KL to the initial model from the rewards, as PPO does, where the settings say so.

    Groups that dynamic sampling leaves out keep their rewards: no two attempts have the same KL, and divided by their
    standard deviation these small differences would be all that the group teaches.
    """
    if not config.kl_coef or not config.use_kl_in_reward:
        return groups
    changed = []
    for group in groups:
        if config.dynamic_sampling and not group.teaches(config):
            changed.append(group)
            continue
        kls = await _in_thread(lambda: trainer.kl_to_start(group.attempts))  # noqa: B023
        attempts = [
            replace(a, reward=a.reward - config.kl_coef * kl) for a, kl in zip(group.attempts, kls, strict=True)
        ]
        changed.append(replace(group, attempts=tuple(attempts)))
    return changed


@asynccontextmanager
async def _opened(
    config: RlConfig, own: Mapping[str, Tool], tasks: Sequence[Task], device: str, progress: Progress
) -> AsyncIterator[tuple[Policy, Setting, Rewards]]:
    reward = config.reward
    async with AsyncExitStack() as stack:
        judge = await stack.enter_async_context(open_judge(reward))
        scorer = await stack.enter_async_context(open_scorer(reward.scorer, judge))
        rewards = Rewards(reward, scorer, own_reward(reward.function) if reward.function else None)
        with part(progress, f"opening {config.model}"):
            policy = open_policy(config, device)
        stack.push_async_callback(policy.sampler.close)
        run = RunConfig(profile=config.profile, world=config.world, tools=config.tools, otlp=config.otlp)
        setting = await stack.enter_async_context(
            open_setting(run, tasks=tasks, model=policy.sampler, tools=own, progress=progress)
        )
        yield policy, setting, rewards


async def _look(
    held_out: Sequence[Task], rollouts: Rollouts, policy: Policy, out: Path, step: int, log: report.Log,
    progress: Progress,
) -> None:  # fmt: skip
    """Evaluate the policy on the held-out tasks, greedily."""
    config = rollouts.config
    policy.sync_sampler()
    done = []
    for name in profiles_of(config, held_out):  # each has its limits
        profile = load_profile(name)
        cut, limits = Sampling(max_tokens=config.max_turn_tokens), config.limits(profile)
        setting = Setting(
            rollouts.model, rollouts.tools, profile, sampling=cut, limits=limits, prompt=rollouts.prompt,
            live=rollouts.live, finished=rollouts.finished,
        )  # fmt: skip
        tasks = [task for task in held_out if (task.profile or config.profile) == name]
        done += await success.look(tasks, setting, rollouts.rewards.scorer, progress)
    success.keep(done, out / "agent" / f"step-{step}")
    log.write(step, {f"held_out_{name}": value for name, value in success.figures(done).items()})
    progress.say(f"step {step}: {success.sentence(done)}")


_ONE_THREAD: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="coa-update")


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_ONE_THREAD, work)


def _say_start(config: RlConfig, policy: Policy, tasks: Sequence[Task], start: int, progress: Progress) -> None:
    trained = sum(weight.numel() for weight in policy.trained.values())
    whole = sum(weight.numel() for weight in policy.whole.parameters())
    progress.say(
        f"{plural(len(tasks), 'task')}; {plural(config.max_steps, 'step')} of "
        f"{plural(config.train_batch_size, 'group')} of {config.num_generations}, "
        f"{millions(trained)} of {millions(whole)} weights trained"
        + (f"; going on after step {start}" if start else "")
    )
    longest = max(config.limits(load_profile(name)).context_tokens for name in profiles_of(config, tasks))
    room = policy.sampler.longest
    if longest > room:
        progress.say(
            f"an attempt may have {longest} tokens, but kv_cache_gb={config.kv_cache_gb:g} has room for {room}: longer "
            f"ones fail and are left out; --set kv_cache_gb={config.kv_cache_gb * longest / max(room, 1):.3g}"
        )
