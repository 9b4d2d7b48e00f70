"""Runs in few words: a model, perhaps tools and a profile, and whatever else a setting or a batch takes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

from coa import runtime
from coa.choices import Constrain
from coa.models.base import Model
from coa.runtime import Chain, Setting
from coa.tools import Tool
from coa.trajectory import Profile, Task, Trajectory, load_profile

_BATCH = ("samples", "out", "progress", "retry_failed", "watch_s", "score")
_RUN = ("sample", "listen")


def setting(
    model: Model,
    tools: Mapping[str, Tool] | None = None,
    profile: Profile | str = "web",
    *,
    constrain: Constrain | str = Constrain.AUTO,
    prompt: Any = None,
    **options: Any,
) -> Setting:
    """None stands for the default; `prompt` is one for all tasks."""
    known = load_profile(profile) if isinstance(profile, str) else profile
    given = {name: value for name, value in options.items() if value is not None}
    if prompt is not None:
        given["prompt"] = prompt if callable(prompt) else lambda task: prompt
    return Setting(model, tools or {}, known, constrain=Constrain(constrain), **given)


async def run(task: Task | str, *needed: Any, **options: Any) -> Trajectory:
    given = {name: options.pop(name) for name in _RUN if name in options}
    return await runtime.run(task, setting(*needed, **options), **given)


def run_many(tasks: Iterable[Task], *needed: Any, **options: Any) -> AsyncGenerator[Trajectory, None]:
    given = {name: options.pop(name) for name in _BATCH if name in options}
    return runtime.run_many(tasks, setting(*needed, **options), **given)


def chain(task: Task | str, *needed: Any, **options: Any) -> Chain:
    given = {name: options.pop(name) for name in _RUN if name in options}
    return Chain(task, setting(*needed, **options), **given)
