"""From the options of a command to what a run needs: model, tools, limits, prices, prompts; opened and closed once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import typer
from pydantic import ValidationError

from coa.cli.models import open_model, price_finder
from coa.cli.options import one_of
from coa.cli.tools import check_files, tell_absent
from coa.cli.world import world_tools
from coa.errors import CoaError, StoreError
from coa.models.base import Sampling
from coa.models.connect import Mode
from coa.models.price import Price
from coa.runtime import Constrain, Prompt, Setting
from coa.tools.cache import CacheMode
from coa.tools.recorded import open_cached_tools
from coa.trajectory import Limits, Message, Profile, Task, load_profile
from coa.trajectory.profile import asking


class Prompts(StrEnum):
    PROFILE = "profile"
    ROW = "row"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the options say, checked: whatever is wrong with them is told before anything is opened."""

    model: str
    model_name: str | None
    mode: Mode
    tokenizer: str | None
    api_key_env: str
    tools: Sequence[str]
    world: str | None
    mcp: Sequence[str]
    cache: CacheMode
    cache_file: Path | None
    constrain: Constrain
    price: Callable[[str], Price | None]

    @classmethod
    def of(
        cls,
        *,
        model: str,
        model_name: str | None,
        mode: str,
        tokenizer: str | None,
        api_key_env: str,
        tool: Sequence[str] | None,
        world: str | None = None,
        mcp: Sequence[str] | None,
        cache: str,
        cache_file: Path | None,
        constrain: str,
        prices: tuple[float | None, float | None, float | None, Path | None],
    ) -> Asked:
        if cache_file is not None and cache == "off":
            raise typer.BadParameter("--cache-file needs --cache record or --cache replay")
        return cls(
            model,
            model_name,
            one_of(Mode, mode, "--mode"),
            tokenizer,
            api_key_env,
            tool or (),
            world,
            mcp or (),
            one_of(CacheMode, cache, "--cache"),
            cache_file,
            one_of(Constrain, constrain, "--constrain"),
            price_finder(*prices),
        )

    def check_files(self, tasks: Sequence[Task], *, named_by_hand: bool) -> None:
        if self.cache is not CacheMode.REPLAY:  # which opens no file
            check_files(tasks, self.tools, named_by_hand=named_by_hand)

    @asynccontextmanager
    async def opened(
        self,
        tasks: Sequence[Task],
        profile: Profile,
        *,
        sampling: Sampling,
        limits: Limits | None,
        prompt: Prompt,
        at_once: int,
    ) -> AsyncIterator[Setting]:
        used = profiles_of(profile, tasks)
        files = ["read_file"] if any(task.files for task in tasks) else []
        wanted = tuple(dict.fromkeys([*(tag for one in used for tag in one.tools), *files]))
        tags = tuple(dict.fromkeys(tag for one in used for tag in one.tags))
        async with AsyncExitStack() as stack:
            tools = await stack.enter_async_context(world_tools(self.world, self.tools))
            box = await stack.enter_async_context(
                open_cached_tools(tools, wanted=wanted, mode=self.cache, file=self.cache_file, mcp=self.mcp, tags=tags)
            )
            tell_absent(box.absent)
            model = await open_model(
                self.model,
                self.model_name,
                mode=self.mode,
                tokenizer=self.tokenizer,
                api_key_env=self.api_key_env,
                rows=min(at_once, 128),
            )
            stack.push_async_callback(model.close)
            price = self.price(model.name)
            yield Setting(model, box.tools, profile, sampling, limits, price, prompt, self.constrain)


def profiles_of(chosen: Profile, tasks: Sequence[Task]) -> list[Profile]:
    """All that the tasks use. One that cannot be read is left to the rows that name it: they fail, the others run."""
    found = []
    for name in dict.fromkeys(task.profile for task in tasks):
        try:
            found.append(load_profile(name) if name else chosen)
        except CoaError:
            continue
    return found


def limits_of(profile: Profile, budgets: Sequence[str]) -> Limits | None:
    """The profile's, with what `--budget` says instead."""
    if not budgets:
        return None
    pairs = dict(item.partition("=")[::2] for item in budgets)
    try:
        return Limits.model_validate({**profile.limits.model_dump(), **pairs})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        known = ", ".join(Limits.model_fields)
        raise typer.BadParameter(f"--budget {name}: {first['msg']}; budgets are {known}") from error


def prompting(whose: str, file: Path | None, tasks: Sequence[Task], source: str | Path | None) -> Prompt:
    """What stands before a task's run; None for what the profile says."""
    if one_of(Prompts, whose, "--prompt") is Prompts.ROW:
        if file is not None or source is None:
            raise typer.BadParameter("--prompt row takes the prompts of --tasks, without a --prompt-file")
        if without := [task.id for task in tasks if not task.prompt]:
            raise StoreError(
                f"{source}: {len(without)} of {len(tasks)} tasks bring no prompt, the first is {without[0]!r}",
                hint="use --prompt profile, or a --prompt-file",
            )
        return lambda task: task.prompt
    if file is None:
        return lambda task: None
    try:
        system = Message(role="system", content=file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise StoreError(f"cannot read the prompt {file}: {reason}", hint="check --prompt-file") from error
    return lambda task: [system, asking(task)]
