"""`open_setting`: from a `RunConfig` to everything that runs need, opened once and closed at the end.

This is the one place where world, tools, cache, model, prices and prompts come together. `coa run`, evaluation,
sampling, the evaluations during SFT, and RL all go through it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any

from pydantic import ValidationError

from coa.blocking import run_blocking
from coa.choices import CacheMode, Constrain, PromptSource
from coa.config import first_problem
from coa.errors import CoaError, ConfigError, StoreError
from coa.models.base import Model
from coa.models.opening import open_model
from coa.models.places import check_model
from coa.models.price import price_of, read_prices
from coa.progress import Progress, Silent, part
from coa.report import plural
from coa.runtime.best_of import SELECTED, best_of
from coa.runtime.chain import run
from coa.runtime.config import AskConfig, RunConfig
from coa.runtime.setting import Prompt, Setting
from coa.runtime.streaming import ChainEvent
from coa.runtime.telemetry import open_sender
from coa.scoring.opening import open_judge
from coa.tools import Tool
from coa.tools.recorded import open_cached_tools
from coa.tools.task_files import missing_files
from coa.trajectory import Limits, Profile, Task, Trajectory, load_profile
from coa.trajectory.conversation import prompt_messages
from coa.trajectory.identity import content_id
from coa.worlds import world_tools

log = logging.getLogger(__name__)


@asynccontextmanager
async def open_setting(
    config: RunConfig | None = None,
    *,
    tasks: Sequence[Task] = (),
    model: Model | None = None,
    tools: Mapping[str, Tool] | None = None,
    profile: Profile | None = None,
    progress: Progress | None = None,
) -> AsyncIterator[Setting]:
    """Open the model, tools, world and cache that a config names, and close them at the end of the `async with` block.

    Args:
        config: How to run the agent. Default: `RunConfig()`.
        tasks: Tasks to be run. If they name profiles or files, the tools for these are opened too.
        model: A model object that replaces the one in `config`. The caller closes it.
        tools: Tool objects by their tag, besides those that `config` names. The caller closes them.
        profile: A profile object that replaces the one in `config`.
        progress: Shows what is being opened, until the block starts.

    Yields:
        The setting, to pass to `run` and `run_many`.

    Raises:
        CoaError: The model, a tool, the world or a setting cannot be used.
    """
    config, own = (config or RunConfig()).resolved(), tools or {}
    _check_objects(model, own)
    profile, prompt = profile or config.loaded_profile(), prompts_of(config, tasks)
    limits = _limits(config, profile)
    if config.prices is not None:
        read_prices(config.prices)  # a bad file stops everything now, not after the model is loaded
    if model is None:
        check_model(config.model)  # opening a world or an MCP server takes longer
    used = _profiles_of(profile, tasks)
    files = ["read_file"] if any(task.files for task in tasks) else []
    wanted = [tag for tag in dict.fromkeys([*(tag for one in used for tag in one.tools), *files]) if tag not in own]
    tags = {tag for one in used for tag in one.tags}
    if config.cache is not CacheMode.REPLAY:  # which opens no file
        _warn_of_missing_files(tasks, config)
    async with AsyncExitStack() as stack:
        what = f"opening {config.model}" if model is None else "opening tools"
        opening = stack.enter_context(ExitStack())
        opening.enter_context(part(progress or Silent(), what))
        finished = await stack.enter_async_context(open_sender(config.otlp))
        given = await stack.enter_async_context(world_tools(config.world, config.tools))
        box = await stack.enter_async_context(
            open_cached_tools(
                given, wanted=wanted, mode=config.cache, file=config.cache_file, mcp=config.mcp, tags=tags
            )
        )
        for name, error in box.absent.items():
            hint = f" ({error.hint})" if error.hint else ""
            log.warning("the tool %s is not available: %s%s", name, error.message, hint)
        if model is None:
            model = await open_model(
                config.model,
                config.model_name,
                mode=config.mode,
                tokenizer=config.tokenizer,
                api_key_env=config.api_key_env,
                rows=min(config.concurrency, 128),
                precision=config.precision,
            )
            stack.push_async_callback(model.close)
        price = config.price or (price_of(model.name, config.prices) if config.prices is not None else None)
        opening.close()
        yield Setting(
            model,
            {**box.tools, **own},
            profile,
            sampling=config.sampling(),
            limits=limits,
            price=price,
            prompt=prompt,
            constrain=config.constrain or Constrain.AUTO,
            concurrency=config.concurrency,
            finished=finished,
        )


def ask(
    question: str | Task,
    config: RunConfig | None = None,
    *,
    after: Trajectory | None = None,
    model: str | Model | None = None,
    tools: Mapping[str, Tool] | None = None,
    listen: Callable[[ChainEvent], None] | None = None,
    **settings: Any,
) -> Trajectory:
    """Ask one question and wait for the run to end: `coa.ask("What is 17 * 23?", model="nano").answer`.

    Opening a model takes seconds. For several questions use `open_setting` with `run` or `run_many`.

    Args:
        question: The question, or a task that carries files, a prompt or a conversation.
        config: How to run the agent. Default: `AskConfig()`.
        after: An earlier run. The question follows it in a conversation (`Trajectory.follow_up`).
        model: A model object, or a name, folder or URL that replaces the one in `config`.
        tools: Tool objects by their tag, besides those that `config` names.
        listen: Receives each event of a single attempt as it happens.
        settings: Fields of `AskConfig`, such as `profile="web"` or `best_of=3`.

    Returns:
        The run; with `best_of`, the attempt that was selected. A run that fails is returned too, with `stop=FAILED`.

    Raises:
        CoaError: The model, a tool, the profile or a setting cannot be used.
    """
    named, own = ({"model": model}, None) if isinstance(model, str) else ({}, model)
    task = _following(question, after)
    try:
        chosen = AskConfig.model_validate(
            {**(config.model_dump(exclude_unset=True) if config else {}), **settings, **named}
        )
    except ValidationError as error:
        raise ConfigError(first_problem(error, AskConfig)) from error
    if chosen.shard is not None or chosen.ray is not None:
        raise ConfigError("`shard` and `ray` are for many tasks", hint="leave them out, or use `run_many`")

    async def work() -> Trajectory:
        async with open_setting(chosen, tasks=[task], model=own, tools=tools) as setting, open_judge(chosen) as judge:
            if chosen.best_of == 1:
                return await run(task, setting, listen=listen)
            made = await best_of(task, setting, chosen.best_of, chosen.select, judge)
            return next((attempt for attempt in made if SELECTED in attempt.meta), made[0])

    return run_blocking(work())


def _following(question: str | Task, after: Trajectory | None) -> Task:
    if isinstance(question, Task):
        if after is not None:
            raise ConfigError("a task has its own conversation", hint="give the question as text, or leave out `after`")
        return question
    task = task_of(question)
    return task if after is None else after.follow_up(question)


def task_of(question: str, *, files: Sequence[str] = ()) -> Task:
    """A task that asks this."""
    if not question.strip():
        raise ConfigError("the question is empty", hint='ask one in quotes: coa run "What is 17 * 23?"')
    return Task(id=content_id(question, None), question=question, files=tuple(files))


def _check_objects(model: object, tools: Mapping[str, object]) -> None:
    """What a caller made is checked before the first run, not in each of them."""
    named = [(f"the tool {tag}", tool, ("about", "shape", "timeout_s", "call")) for tag, tool in tools.items()]
    if model is not None:
        named.append(("the model", model, ("name", "tokenizer", "generate", "close")))
    for what, given, members in named:
        if isinstance(given, type):
            raise ConfigError(f"{what} is the class {given.__name__}, not an object", hint=f"give {given.__name__}()")
        if missing := [name for name in members if not hasattr(given, name)]:
            raise ConfigError(f"{what} has no {', '.join(missing)}", hint=f"it needs {', '.join(members)}")


def _limits(config: RunConfig, profile: Profile) -> Limits | None:
    try:
        return config.limits_of(profile)
    except ValidationError as error:
        raise ConfigError(f"limits: {first_problem(error, Limits)}") from error


def _profiles_of(chosen: Profile, tasks: Sequence[Task]) -> list[Profile]:
    """All that the tasks use. One that cannot be read is left to the tasks that name it: they fail, the others run."""
    found = []
    for name in dict.fromkeys([task.profile for task in tasks] or [None]):
        try:
            found.append(load_profile(name) if name else chosen)
        except CoaError:
            continue
    return found


def prompts_of(config: RunConfig, tasks: Sequence[Task]) -> Prompt:
    """The messages in front of a task's run; None for what the profile says."""
    if config.prompt is PromptSource.ROW:
        if without := [task.id for task in tasks if not task.prompt]:
            raise StoreError(
                f"{len(without)} of {plural(len(tasks), 'task')} without a prompt; the first is {without[0]!r}",
                hint="use --set prompt=profile, or --set prompt_file=FILE",
            )
        return lambda task: task.prompt
    file = config.prompt_file
    if file is None:
        return lambda task: None
    try:
        system = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise StoreError(f"cannot read the prompt {file}: {reason}", hint="check the setting prompt_file") from error
    return lambda task: prompt_messages(system, task)


def _warn_of_missing_files(tasks: Sequence[Task], config: RunConfig) -> None:
    if missing := missing_files(tasks, config.tools):
        log.warning(
            "%d of %d tasks have a file that cannot be read; the first: %s (%s)",
            len(missing), len(tasks), missing[0].message, missing[0].hint,
        )  # fmt: skip
