"""What an attempt needs on a machine, tried out: tools, sandboxes, search servers, the judge. Without verl and Ray."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from coa.errors import TrainingError
from coa.http import Client
from coa.models.places import is_url
from coa.rl.config import RlConfig

CONNECT_S: Final = 10.0


async def try_tools(config: RlConfig, profiles: Sequence[str]) -> list[str]:
    """Open the tools of these profiles as an attempt would, and reach the servers behind them; their names."""
    from coa.models.scripted import ScriptedModel
    from coa.rl.reward import own_reward
    from coa.runtime import RunConfig, open_setting
    from coa.trajectory import Task, load_profile

    if config.reward.function:
        own_reward(config.reward.function)
    names = list(dict.fromkeys([config.profile, *profiles]))
    settings = RunConfig(profile=config.profile, world=config.world, tools=config.tools)
    tasks = [Task(id=name, question="?", profile=name) for name in names]
    async with open_setting(settings, tasks=tasks, model=ScriptedModel([])) as setting:
        called = {tag for name in names for tag in load_profile(name).tools}
        if absent := sorted(called - setting.tools.keys()):
            raise TrainingError(
                f"the tool {absent[0]} that the profile calls cannot be opened",
                hint=f"coa tools, on that machine, says what {absent[0]} needs",
            )
        if os.environ.get("COA_SANDBOX") and "code" in setting.tools:
            await _ask_sandboxes()
        for tool in setting.tools.values():
            await _reach(getattr(tool, "engine", None) or getattr(tool, "retriever", None))
        if config.reward.judge is not None and is_url(config.reward.judge):
            await _reach(Client("the judge", config.reward.judge))
        return sorted(setting.tools)


async def _reach(service: object) -> None:
    """Connect to the server of a search service, without a query that would have to be paid."""
    if not isinstance(service, Client):
        return
    address = urlsplit(service.url)
    port = address.port or {"http": 80, "https": 443}.get(address.scheme, 443)
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(address.hostname, port)
    except (OSError, TimeoutError) as error:
        raise TrainingError(
            f"{service.name} cannot be reached at {service.url}: {error or 'no answer'}",
            hint="start it, or open the way to it from that machine",
        ) from error
    writer.close()


async def _ask_sandboxes() -> None:
    from coa.sandbox import open_sandbox

    box = await open_sandbox()
    try:
        if (answer := await box.run("print('ok')")).text != "ok\n":
            raise TrainingError(f"the sandbox does not run programs: {answer.note}", hint="coa sandbox serve --help")
    finally:
        await box.close()
