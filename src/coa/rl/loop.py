"""The whole of RL, top to bottom: draw tasks, attempt each several times, compare, update, look, save; again.

Everything that is drawn follows from the seed, the step, the task and the number of the attempt, so a run that is
killed and started again goes on as if nothing had been.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import orjson
import torch

from coa import __version__
from coa.errors import TrainingError
from coa.models.connect import connect
from coa.report import plural
from coa.rl import report, state
from coa.rl.config import RlConfig
from coa.rl.groups import Collected, Group, collect, keep
from coa.rl.guards import Gap, Watch
from coa.rl.policy import Policy, open_policy, save_model
from coa.rl.reward import Rewards, own_reward
from coa.rl.rollout import Rollouts
from coa.rl.tasks import Sampler, load_tasks
from coa.rl.update import Told, Trainer
from coa.runtime import success
from coa.scoring import scorer_for
from coa.tools import Tool
from coa.tools.registry import open_tools
from coa.training import checkpoint
from coa.training.card import model_card
from coa.training.interruption import Interruption
from coa.training.metrics import keep_until
from coa.training.run_folder import METRICS, MODEL, Result, claim
from coa.training.trackers import refuse_absent
from coa.trajectory import Task, load_profile
from coa.worlds import world_tools

GROUPS: Final = "groups"
_FREE: Final = ("report_to", "checkpoint_every", "checkpoints_kept", "eval_every", "guards")
T = TypeVar("T")
Tell = Callable[[str], None]


def train(
    config: RlConfig,
    out: Path,
    *,
    tools: Mapping[str, Tool] | None = None,
    command: str | None = None,
    tell: Tell = print,
    status: Tell = lambda line: None,
) -> Result:
    """Improve a model as the settings say. `tools` are objects, beside those that the settings name.

    `tell` gets lines to keep, `status` what may be overwritten by the next.
    """
    refuse_absent(config.report_to)
    tasks, held_out, fingerprint = load_tasks(config)
    for name in _profiles(config, (*tasks, *held_out)):
        config.limits(load_profile(name))  # before anything is loaded or written
    claim(out, "rl", config, fingerprint, free=_FREE, seed=config.seed, coa=__version__)
    checkpoint.clear_torn(out)
    if (out / MODEL).is_dir():
        tell(f"finished already: {out / MODEL}")
        return Result(out / MODEL, config.steps, True, {})
    return asyncio.run(_train(config, out, tasks, held_out, tools or {}, command, tell, status))


async def _train(
    config: RlConfig,
    out: Path,
    tasks: Sequence[Task],
    held_out: Sequence[Task],
    own_tools: Mapping[str, Tool],
    command: str | None,
    tell: Tell,
    status: Tell,
) -> Result:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    exact = device == "cpu" and not config.ahead if config.exact is None else config.exact
    async with _opened(config, own_tools, (*tasks, *held_out), device, tell) as (policy, box, rewards):
        standing = report.Standing(status, config.steps)
        made = standing.made if not config.ahead else _unseen  # attempts of two steps at once cannot be counted as one
        rollouts = Rollouts(policy.sampler, policy.tokenizer, box, rewards, config, exact, made)
        trainer, sampler, watch = Trainer(policy, config), Sampler(tasks, config), Watch(config.guards)
        last, surplus = checkpoint.latest(out), list[Group]()
        if last is not None:
            surplus = state.restore(last, trainer, sampler, watch, rollouts.attempt)
        start = checkpoint.step_of(last) if last is not None else 0
        _tell_start(config, policy, tasks, start, tell)
        keep_until(out / METRICS, start)
        log, interruption = report.Log(out / METRICS, config.report_to), Interruption(tell, "step")
        interruption.listen()
        pace: list[float] = []

        async def attempts(step: int, surplus: Sequence[Group], ahead: int = 0) -> tuple[Collected, float]:
            """Until enough groups have a spread; and how long it took."""
            began = time.perf_counter()

            async def attempt(drawn: list[Task], number: int) -> list[Group]:
                groups = await rollouts(drawn, step=step, number=number, ahead=ahead)
                return await _with_distance(groups, trainer, config)

            collected = await collect(sampler.draw, attempt, surplus, config, step)
            return collected, time.perf_counter() - began

        following: asyncio.Task[tuple[Collected, float]] | None = None
        try:
            if held_out and start == 0:
                await _look(held_out, rollouts, policy, out, 0, log, tell)
            for step in range(start + 1, config.steps + 1):
                began = time.perf_counter()
                standing.begin(step, (config.steps - step + 1) * sum(pace) / len(pace) if pace else None)
                policy.renew()

                # Attempts: this step's, unless they were made during the last one; perhaps the next step's begin.
                collected, sampled_s = await (following or attempts(step, surplus))
                surplus = collected.surplus
                sampler.learn(collected.drawn)
                drawing = sampler.state()
                if config.ahead and step < config.steps:
                    following = asyncio.create_task(attempts(step + 1, surplus, config.ahead))
                fresh = {id(group) for group in collected.drawn}
                keep(
                    [*collected.drawn, *(group for group in collected.used if id(group) not in fresh)],
                    out / GROUPS / f"step-{step:04}.jsonl",
                    config,
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

                standing.learn(len(collected.used))
                # Updates. The event loop stays free meanwhile: tools may have connections to keep alive.
                told, gap = await _in_thread(lambda: _update(trainer, collected.used, step, watch))  # noqa: B023
                if following is not None:
                    await asyncio.wait([following])

                # What is told.
                written = sum(a.sample.trained for group in collected.drawn for a in group.attempts)
                pace = [*pace[-9:], time.perf_counter() - began]
                found |= report.of_updates(told, gap, trainer.optimizer.param_groups[0]["lr"])
                watch.moved(found.get("moved", 0.0))
                found |= {"seconds": pace[-1], "sampling_s": sampled_s}
                found |= {"tokens_per_s": written / sampled_s} if written else {}
                found |= {f"success_{name}": value for name, value in sampler.success.items() if name}
                log.write(step, found)
                tell(report.line(step, config.steps, found, (config.steps - step) * sum(pace) / len(pace)))
                for warning in watch.warnings:
                    tell(f"step {step}: {warning}")
                watch.warnings.clear()
                if held_out and (step % config.eval_every == 0 or step == config.steps):
                    await _look(held_out, rollouts, policy, out, step, log, tell)
                if step % config.checkpoint_every == 0 or step == config.steps or interruption.asked:
                    state.save(out, step, trainer, drawing, watch, surplus, config)
                if interruption.asked and step < config.steps:
                    tell(f"stopped after step {step}; the same command goes on from there")
                    return Result(out, step, False, {})
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            interruption.restore()
            log.close()
        figures = _figures(out / METRICS)
        save_model(policy, config, out / MODEL, _card(config, out, tasks, figures, command))
        tell(f"wrote {out / MODEL}")
        return Result(out / MODEL, config.steps, True, figures)


def _update(trainer: Trainer, used: Sequence[Group], step: int, watch: Watch) -> tuple[list[Told], Gap | None]:
    told, gap = list[Told](), None
    for one in trainer.learn(used, step) if used else ():
        if not told:
            gap = Gap.of(one.gaps)
            watch.gap(gap)  # before the weights change
        told.append(one)
    for one in told:
        watch.update(skipped=bool(one.skipped))
    return told, gap


async def _with_distance(groups: list[Group], trainer: Trainer, config: RlConfig) -> list[Group]:
    """PPO's way: the distance to the start is taken off the reward.

    Not where dynamic sampling leaves a group out: no two distances are equal, and divided by their deviation they would
    be all that it teaches.
    """
    if not config.kl or config.kl_in != "reward":
        return groups
    changed = []
    for group in groups:
        if config.dynamic_sampling and not group.teaches(config):
            changed.append(group)
            continue
        moved = await _in_thread(lambda: trainer.distances(group.attempts))  # noqa: B023
        attempts = [replace(a, reward=a.reward - config.kl * d) for a, d in zip(group.attempts, moved, strict=True)]
        changed.append(replace(group, attempts=tuple(attempts)))
    return changed


@asynccontextmanager
async def _opened(
    config: RlConfig, own: Mapping[str, Tool], tasks: Sequence[Task], device: str, tell: Tell
) -> AsyncIterator[tuple[Policy, Mapping[str, Tool], Rewards]]:
    profiles = [load_profile(name) for name in _profiles(config, tasks)]
    wanted = dict.fromkeys(tag for profile in profiles for tag in profile.tools if tag not in own)
    setting = config.reward
    async with AsyncExitStack() as stack:
        given = await stack.enter_async_context(world_tools(config.world, config.tools))
        box = await stack.enter_async_context(open_tools(given, wanted=wanted))
        for name, error in box.absent.items():
            tell(f"no tool {name}: {error}")
        judge = None
        if setting.judge is None and setting.scorer == "judge":
            raise TrainingError("rewards by a judge need a model that judges", hint="--set reward.judge=URL")
        if setting.judge is not None:
            judge = await connect(setting.judge, setting.judge_name, api_key_env=setting.judge_key_env)
            stack.push_async_callback(judge.close)
        scorer = scorer_for(setting.scorer, judge=judge)
        stack.push_async_callback(scorer.close)
        rewards = Rewards(setting, scorer, own_reward(setting.function) if setting.function else None)
        policy = open_policy(config, device)
        stack.push_async_callback(policy.sampler.close)
        yield policy, {**box.tools, **own}, rewards


async def _look(
    held_out: Sequence[Task], rollouts: Rollouts, policy: Policy, out: Path, step: int, log: report.Log, tell: Tell
) -> None:
    config = rollouts.config
    policy.renew()
    done = []
    for name in _profiles(config, held_out):  # each has its limits
        done += await success.look(
            [task for task in held_out if (task.profile or config.profile) == name],
            rollouts.model,
            rollouts.tools,
            name,
            rollouts.rewards.scorer,
            prompt=rollouts.prompt,
            limits=config.limits(load_profile(name)),
            max_tokens=config.turn_tokens,
        )
    success.keep(done, out / "agent" / f"step-{step}")
    log.write(step, {f"held_out_{name}": value for name, value in success.figures(done).items()})
    tell(f"step {step}: {success.sentence(done)}")


def _profiles(config: RlConfig, tasks: Sequence[Task]) -> list[str]:
    """Of these tasks, each once."""
    return list(dict.fromkeys(task.profile or config.profile for task in tasks))


def _unseen() -> None:
    pass


_ONE_THREAD: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="coa-update")


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_ONE_THREAD, work)


def _tell_start(config: RlConfig, policy: Policy, tasks: Sequence[Task], start: int, tell: Tell) -> None:
    trained = sum(weight.numel() for weight in policy.trained.values())
    whole = sum(weight.numel() for weight in policy.whole.parameters())
    tell(
        f"{plural(len(tasks), 'task')}; {plural(config.steps, 'step')} of {plural(config.prompts, 'group')} "
        f"of {config.group}, {trained / 1e6:.3g} M of {whole / 1e6:.3g} M weights trained"
        + (f"; going on after step {start}" if start else "")
    )
    longest = max(config.limits(load_profile(name)).context_tokens for name in _profiles(config, tasks))
    room = policy.sampler.longest
    if longest > room:
        tell(
            f"an attempt may have {longest} tokens, but kv_gb={config.kv_gb:g} has room for {room}: "
            f"longer ones break and are left out; --set kv_gb={config.kv_gb * longest / max(room, 1):.3g}"
        )


def _card(config: RlConfig, out: Path, tasks: Sequence[Task], figures: Mapping[str, str], command: str | None) -> str:
    recipe = config.model_dump(mode="json", exclude_defaults=True, exclude={"tasks", "model"})
    return model_card(
        name=out.name,
        base=config.model,
        stage="rl",
        about=f"{config.model}, trained by reinforcement learning with real tools (profile: {config.profile}) "
        f"with coa {__version__}. Only what the model wrote was trained.",
        data=[f"{plural(len(tasks), 'task')} of {config.tasks}"],
        recipe={"lr": config.lr, "steps": config.steps, "seed": config.seed, **recipe},
        figures=figures,
        command=command
        or shlex.join(["coa", "rl", "--model", config.model, "--tasks", str(config.tasks), "--out", str(out)]),
    )


def _figures(path: Path) -> dict[str, str]:
    """First and last of what was measured."""
    rows = [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.is_file() else []
    figures = {}
    for name, shown in (("reward", "{:.3f}"), ("success", "{:.1%}"), ("held_out_success", "{:.1%}")):
        # Where surplus made drawing needless, the numbers are of groups that were chosen for their spread.
        found = [(row["step"], row[name]) for row in rows if name in row and row.get("groups_drawn", 1)]
        if found:
            (first, one), (last, other) = found[0], found[-1]
            figures[name.replace("_", "-")] = (
                f"{shown.format(one)} at step {first}, {shown.format(other)} at step {last}"
            )
    rates = sorted(row["tokens_per_s"] for row in rows if "tokens_per_s" in row)
    if rates:
        figures["sampled tokens/s (median)"] = f"{rates[len(rates) // 2]:.0f}"
    return figures
