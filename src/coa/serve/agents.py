"""The agents that a server offers, each opened once: model, tools, profile and budgets from a `RunConfig`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import PurePath

from coa.addresses import without_passwords
from coa.models.base import Model
from coa.models.opening import open_model
from coa.models.places import check_model, is_url
from coa.progress import Progress, Silent, part
from coa.runtime import RunConfig, Setting, open_setting
from coa.serve.config import ServeConfig
from coa.tools import Tool


@dataclass(frozen=True, slots=True)
class ServedAgent:
    name: str
    """The model name that clients use."""
    setting: Setting
    config: RunConfig

    @property
    def tools(self) -> list[str]:
        """Tags of the tools that it can call."""
        return [tag for tag in self.setting.profile.tools if tag in self.setting.tools]


@asynccontextmanager
async def open_agents(
    config: ServeConfig,
    *,
    models: Mapping[str, Model] | None = None,
    tools: Mapping[str, Mapping[str, Tool]] | None = None,
    progress: Progress | None = None,
) -> AsyncIterator[dict[str, ServedAgent]]:
    """Opens every agent; agents with the same model share it. `models` and `tools` of the caller's replace those that
    the configs name, by agent."""
    models, tools = models or {}, tools or {}
    shared: dict[tuple[object, ...], Model] = {}
    async with AsyncExitStack() as stack:
        found: dict[str, ServedAgent] = {}
        for name, run in configs_of(config).items():
            run = run.model_copy(update={"concurrency": config.max_runs}).resolved()
            model = models.get(name)
            key = (run.model, run.model_name, run.mode, run.tokenizer, run.api_key_env, run.precision)
            if model is None and key not in shared:
                check_model(run.model)
                with part(progress or Silent(), f"opening {without_passwords(run.model)}"):
                    shared[key] = await open_model(
                        run.model, run.model_name, mode=run.mode, tokenizer=run.tokenizer,
                        api_key_env=run.api_key_env, rows=min(run.concurrency, 128),
                        precision=run.precision,
                    )  # fmt: skip
                stack.push_async_callback(shared[key].close)
            setting = await stack.enter_async_context(
                open_setting(run, model=model or shared[key], tools=tools.get(name), progress=progress)
            )
            found[name] = ServedAgent(name, setting, run)
        yield found


def configs_of(config: ServeConfig) -> dict[str, RunConfig]:
    """Every agent's config under its model name."""
    return config.agents or {config.name or _name_of(config.run): config.run}


def _name_of(run: RunConfig) -> str:
    """A model name for an agent that was given none: that of its model."""
    if is_url(run.model):
        return run.model_name or "coa"
    return PurePath(run.model).name or "coa"
