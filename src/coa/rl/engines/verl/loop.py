"""One attempt as verl's agent loop: coa's chain, tools, profile and reward around verl's token server.

verl makes a `ChainLoop` for each attempt and calls `run` with the row of the data set. The chain asks `TokenServer` for
tokens, calls the tools, and ends as a trajectory; the ledger turns that into ids, mask and log-probabilities exactly as
for the local engine. What is expensive to open (tools, judge, tokenizer) is opened once per process, in `Workplace`.

An attempt that failed, hung or sampled nothing raises here. verl then trains on the other attempts of its group: the
attempt becomes no row, not even one of padding, and a record of it goes to the collector so that it is counted.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import orjson
from verl.experimental.agent_loop import AgentLoopBase, AgentLoopOutput
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics

from coa.choices import Constrain
from coa.errors import CoaError, ModelError
from coa.models.base import Context, Finish, Generation, OnText, Sampling, first_stop
from coa.models.tokenizer import TextTokenizer, load_tokenizer
from coa.rl.config import RlConfig
from coa.rl.engines.verl.collector import Record, find_collector
from coa.rl.reward import COUNTED, REWARD, SUCCESS, Rewards, cached_profile, own_reward, shaped_reward
from coa.runtime import RunConfig, Setting, open_setting
from coa.runtime.chain import run as run_chain
from coa.scoring.opening import open_judge, open_scorer
from coa.trajectory import CUT_SHORT, Message, Sample, Task, Tokens, Trajectory, Usage, profile_of, to_sample

GRACE_S: Final = 60.0
"""Seconds beyond an attempt's own time limit after which it counts as hanging."""


OPEN_S: Final = 300.0
"""Time limit for opening the tools and the judge in a process."""


class LostAttempt(Exception):
    """There is nothing to learn from this attempt."""


@dataclass
class TokenServer:
    """verl's token servers as a `Model`. One object serves one attempt, so that all its calls go to one server, which
    has their common prefix in its cache."""

    manager: Any
    tokenizer: TextTokenizer
    parameters: dict[str, Any]
    """Sampling parameters that verl passes on to its engine."""
    seeded: bool
    """Whether to pass the seed of a call on. vLLM samples more slowly with seeds."""

    def __post_init__(self) -> None:
        self.name, self.request, self.seconds = "policy", uuid4().hex, 0.0
        self.versions: list[int] = []
        """The versions of the weights that wrote its parts."""

    async def generate(
        self, context: Context, *, stop: Sequence[str], sampling: Sampling, on_text: OnText = None
    ) -> Generation:
        assert context.ids is not None
        # verl returns ids only: a text that ends with its stop string says why it ended.
        asked = {"max_tokens": sampling.max_tokens, "stop": list(stop), "include_stop_str_in_output": True}
        if self.seeded and sampling.seed is not None:
            asked["seed"] = sampling.seed
        began = time.monotonic()
        try:
            found = await self.manager.generate(
                self.request, prompt_ids=list(context.ids), sampling_params={**self.parameters, **asked}
            )
        except Exception as error:  # whatever Ray or the engine raises
            raise ModelError(f"the rollout server failed: {type(error).__name__}: {error}"[:500]) from error
        finally:
            self.seconds += time.monotonic() - began
        versions = (found.extra_fields.get(name) for name in ("min_global_steps", "max_global_steps"))
        self.versions += [version for version in versions if version is not None]
        ids, logprobs, ended = list(found.token_ids), list(found.log_probs or ()), None
        if len(ids) != len(logprobs):
            raise ModelError(f"the rollout server returned {len(ids)} tokens and {len(logprobs)} log-probabilities")
        if ids and ids[-1] in self.tokenizer.end_ids:
            ended = (ids.pop(), logprobs.pop())
        text = self.tokenizer.decode(ids)
        # verl says "completed" for all three.
        finish = Finish.END if ended else Finish.STOP if first_stop(text, stop) else Finish.LENGTH
        usage = Usage(prompt_tokens=len(context.ids), completion_tokens=len(found.token_ids), model_calls=1)
        return Generation(text, finish, usage, Tokens(ids=tuple(ids), logprobs=tuple(logprobs)), ended=ended)

    async def close(self) -> None:
        pass


@dataclass(frozen=True)
class Workplace:
    """What all attempts of one process share."""

    config: RlConfig
    tokenizer: TextTokenizer
    setting: Setting
    rewards: Rewards
    collector: Any
    opened: AsyncExitStack
    """Keeps tools and judge open; the end of the process closes them."""

    @classmethod
    async def open(cls, run_file: Path) -> Workplace:
        run = orjson.loads(run_file.read_bytes())
        config, profiles = RlConfig.model_validate(run["config"]), run["profiles"]
        tokenizer = load_tokenizer(run["model"])
        async with AsyncExitStack() as stack:
            setting, rewards = await cls._opened(config, profiles, tokenizer, stack)
            opened = stack.pop_all()
        return cls(config, tokenizer, setting, rewards, find_collector(), opened)

    @staticmethod
    async def _opened(
        config: RlConfig, profiles: Sequence[str], tokenizer: TextTokenizer, stack: AsyncExitStack
    ) -> tuple[Setting, Rewards]:
        judge = await stack.enter_async_context(open_judge(config.reward))
        scorer = await stack.enter_async_context(open_scorer(config.reward.scorer, judge))
        own = own_reward(config.reward.function) if config.reward.function else None
        # Tasks name profiles, and profiles name tools: one task of each opens all that are needed.
        examples = [Task(id=name, question="?", profile=name) for name in profiles]
        settings = RunConfig(profile=config.profile, world=config.world, tools=config.tools, otlp=config.otlp)
        idle = TokenServer(None, tokenizer, {}, seeded=False)
        setting = await stack.enter_async_context(open_setting(settings, tasks=examples, model=idle))
        return setting, Rewards(config.reward, scorer, own)

    def setting_for(self, task: Task, model: TokenServer, *, held_out: bool, seed: int) -> Setting:
        config, profile = self.config, cached_profile(task.profile or self.config.profile)
        sampling = Sampling(1.0, config.top_p, config.top_k, config.max_turn_tokens, seed)
        if held_out:
            sampling = Sampling(temperature=0.0, max_tokens=config.max_turn_tokens, seed=0)
        return replace(
            self.setting,
            model=model,
            profile=profile,
            sampling=sampling,
            limits=config.limits(profile),
            prompt=self.prompt,
            constrain=Constrain.NEVER,
        )

    def prompt(self, task: Task) -> Sequence[Message] | None:
        return task.prompt if self.config.use_task_prompts else None


_WORKPLACES: dict[str, asyncio.Task[Workplace]] = {}
"""By run file. verl makes a loop object for each attempt, but tools and tokenizer are opened once per process."""


async def workplace(run_file: str) -> Workplace:
    opening = _WORKPLACES.get(run_file)
    if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
        # For the first time, or again: a server that was down may be up for this attempt.
        opening = _WORKPLACES[run_file] = asyncio.create_task(_open(Path(run_file)))
    return await asyncio.shield(opening)


async def _open(run_file: Path) -> Workplace:
    try:
        async with asyncio.timeout(OPEN_S):
            return await Workplace.open(run_file)
    except TimeoutError as error:
        raise CoaError(f"tools and judge could not be opened within {OPEN_S:g} s") from error


class ChainLoop(AgentLoopBase):  # type: ignore[misc]
    def __init__(self, *args: Any, run_file: str, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self._run_file = run_file

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        task, held_out = Task.model_validate_json(row["extra_info"]["task"]), bool(row["extra_info"]["held_out"])
        step, session = int(row.get("global_steps", 0)), int(row.get("session_id", 0))
        base = Record(str(row["uid"]), session, row["extra_info"]["task"], step, "failed", held_out)
        try:
            return await self._run(base, task, sampling_params, str(row["extra_info"]["index"]))
        except LostAttempt:
            raise
        except Exception as error:  # whatever it is, the attempt is counted and its reason is known
            why = error.message if isinstance(error, CoaError) else f"{type(error).__name__}: {error}"
            await find_collector().add.remote(replace(base, why=why[:500]))
            raise

    async def _run(self, base: Record, task: Task, sampling_params: dict[str, Any], index: str) -> AgentLoopOutput:
        place, step, session, held_out = await workplace(self._run_file), base.step, base.session, base.held_out
        retries, why = 0, ""
        while True:
            model = TokenServer(
                self.server_manager, place.tokenizer, dict(sampling_params), place.config.verl.device == "cpu"
            )
            seed = _seed(place.config.seed, step, index, session, retries)
            setting = place.setting_for(task, model, held_out=held_out, seed=seed)
            began = time.monotonic()
            try:
                trajectory = await self._attempt(place, task, setting, session)
                break
            except LostAttempt as lost:
                why = str(lost)
            retries += 1
            if retries > place.config.max_retries:
                await place.collector.add.remote(replace(base, why=why, retries=retries - 1))
                raise LostAttempt(why)
        base = replace(base, retries=retries, packed=Record.pack(trajectory))
        value = trajectory.scores[REWARD].value
        if value is None:
            why = trajectory.scores[REWARD].reason
            await place.collector.add.remote(replace(base, outcome="unscored", why=why))
            raise LostAttempt(f"no reward: {why}")
        sample = expressible(to_sample(trajectory, place.tokenizer, profile_of(trajectory), ends=True))
        if sample.logprobs is None:
            # verl drops the log-probabilities of the whole batch if one row has none.
            await place.collector.add.remote(replace(base, why="the model wrote nothing"))
            raise LostAttempt("the model wrote nothing")
        reward = shaped_reward(trajectory, sample.trained, place.config)
        place.setting.finished(trajectory)
        made = replace(base, outcome="made", reward=reward, tokens=sample.trained, logprobs=sum(sample.logprobs))
        await place.collector.add.remote(made)
        return to_output(trajectory, sample, reward, model, tool_s=time.monotonic() - began - model.seconds)

    async def _attempt(self, place: Workplace, task: Task, setting: Setting, session: int) -> Trajectory:
        """A scored attempt. Raises `LostAttempt` if it failed, hung or broke off."""
        assert setting.limits is not None
        try:
            async with asyncio.timeout(setting.limits.seconds + GRACE_S):
                trajectory = await run_chain(task, setting, sample=session)
                if trajectory.stop in CUT_SHORT:
                    failure = trajectory.failure
                    raise LostAttempt(failure.message if failure else f"it was {trajectory.stop.value}")
                return await place.rewards.of(trajectory, profile_of(trajectory))
        except TimeoutError as error:
            limit = setting.limits.seconds
            raise LostAttempt(f"it did not end {GRACE_S:g} s after its time limit of {limit:g} s") from error
        except CoaError as error:
            raise LostAttempt(error.message) from error


def expressible(sample: Sample) -> Sample:
    """The sample without turn ends in the middle of a run.

    Where the model ended its turn but the run went on, the local engine trains the end of the turn in place of the
    token that follows in the context. verl trains each position on the token that is there, so it cannot.
    """
    if not sample.labels:
        return sample
    mask = [written and at not in sample.labels for at, written in enumerate(sample.mask)]
    logprobs = [value if written else 0.0 for value, written in zip(sample.logprobs or (), mask, strict=True)]
    return replace(sample, mask=mask, logprobs=logprobs if any(mask) else None, labels={})


def to_output(
    trajectory: Trajectory, sample: Sample, reward: float, model: TokenServer, *, tool_s: float
) -> AgentLoopOutput:
    """What verl trains on. The response begins after the prompt; the mask is 1 where the model wrote.

    It ends with the last token that the model wrote: an observation behind that teaches nothing, and could make the
    response longer than any context that verl expects.
    """
    assert sample.logprobs is not None
    start = next(at for at, step in enumerate(sample.steps) if step >= 0 or sample.mask[at])
    end = max(at for at, written in enumerate(sample.mask) if written) + 1
    scores = trajectory.scores
    info = {COUNTED: scores[COUNTED].value, SUCCESS: scores[SUCCESS].value, REWARD: reward}
    versions = model.versions or [0]
    return AgentLoopOutput(
        prompt_ids=list(sample.ids[:start]),
        response_ids=list(sample.ids[start:end]),
        response_mask=[int(written) for written in sample.mask[start:end]],
        response_logprobs=list(sample.logprobs[start:end]),
        reward_score=reward,
        num_turns=len(trajectory.steps),
        metrics=AgentLoopMetrics(generate_sequences=model.seconds, tool_calls=max(tool_s, 0.0)),
        extra_fields={
            "reward_extra_info": {name: float(value or 0.0) for name, value in info.items()},
            "turn_scores": [],
            "tool_rewards": [],
            "min_global_steps": min(versions),
            "max_global_steps": max(versions),
        },
    )


def _seed(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:6])
