"""`RunConfig`: how to run an agent, as data. Evaluation and sampling contain one instead of repeating its fields.

None in a field means "not decided here": a benchmark's protocol, the world, or the profile decides then, and at last
the defaults of the paper.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pydantic import Field, field_validator, model_validator

from coa.choices import CacheMode, Constrain, Mode, Precision, PromptSource, Select
from coa.models.base import Sampling
from coa.models.price import Price
from coa.models.tokenizer import NANO
from coa.scoring.opening import JudgeConfig
from coa.shard import Shard
from coa.trajectory import Limits, Profile, load_profile
from coa.trajectory.formats.otlp_endpoint import OtlpConfig
from coa.trajectory.types import Frozen
from coa.worlds.atlas.questions import PROFILE as WORLD_PROFILE

HOME: Final = "atlas"
"""The world in which `nano` was trained."""


class RunConfig(Frozen):
    """How to run an agent: model, profile, tools, world, sampling, limits and prices.

    The configs of the stages contain one. `coa run --settings` lists the fields.
    """

    model: str = "smollm2"
    """URL of a model server, `nano`, `smollm2`, a model folder, or a hub id. Several URLs, separated by commas, are
    servers of the same model that share the work."""
    model_name: str | None = None
    """Name of the model on a server that serves several."""
    mode: Mode = Mode.AUTO
    """How to talk to a server: with token ids where it can, or as a chat."""
    tokenizer: str | None = None
    """Tokenizer for token mode, where the server does not say which one its model has."""
    api_key_env: str = "COA_API_KEY"
    """Environment variable that holds the key of the model server."""
    precision: Precision = Precision.AUTO
    """Type in which a model in this process multiplies; `auto` is bf16 where the GPU or CPU has units for it, else
    fp32."""
    profile: str | None = None
    """Name of a shipped profile or path of a TOML file. Default: the profile of the world, else `web`."""
    world: str | None = None
    """Offline world whose tools to use: `atlas`, `atlas:SEED`, or a folder made by `coa world build`."""
    tools: tuple[str, ...] = ()
    """Settings of tools: `name=setting`, or `name=module:factory` for a tool of your own."""
    mcp: tuple[str, ...] = ()
    """MCP servers whose tools to add, each by its command or its URL."""
    cache: CacheMode = CacheMode.OFF
    """Whether to record the answers of tools in a file, or to replay them from it."""
    cache_file: Path | None = None
    """File of recorded tool answers. Several runs may share one."""
    prompt: PromptSource = PromptSource.PROFILE
    """Where prompts come from: the profile, or each task's own row."""
    prompt_file: Path | None = None
    """File with a system prompt to use instead of the profile's."""
    temperature: float | None = Field(None, ge=0)
    """Sampling temperature. Default: 1.0."""
    top_p: float | None = Field(None, ge=0, le=1)
    """Nucleus sampling threshold. Default: 0.9."""
    top_k: int | None = Field(None, ge=0)
    """Number of most likely tokens to sample from; 0 for the whole vocabulary. Default: 20."""
    max_tokens: int = Field(4096, ge=1)
    """Maximum number of tokens of one model call."""
    seed: int | None = None
    """Seed of the first attempt at a task; further attempts add their number to it."""
    limits: dict[str, float | None] = Field(default_factory=dict)
    """Limits of one run that replace the profile's: steps, tool_calls, model_tokens, seconds, cost, ..."""
    constrain: Constrain | None = None
    """When to hold the model to the protocol by constrained decoding. Default: auto."""
    price: Price | None = None
    """Price of the model's tokens, per million."""
    prices: Path | None = None
    """TOML file with prices of several models."""
    concurrency: int = Field(64, ge=1)
    """Number of runs at a time."""
    otlp: OtlpConfig = OtlpConfig()
    """Where to send the spans of runs."""

    @field_validator("limits")
    @classmethod
    def _known_limits(cls, given: dict[str, float | None]) -> dict[str, float | None]:
        for name in given:
            if name not in Limits.model_fields:
                raise ValueError(f"there is no limit {name!r}; limits are {', '.join(Limits.model_fields)}")
        return given

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        if self.cache_file is not None and self.cache is CacheMode.OFF:
            raise ValueError("cache_file needs cache=record or cache=replay")
        if self.prompt is PromptSource.ROW and self.prompt_file is not None:
            raise ValueError("prompt=row takes the prompts of the tasks, without a prompt_file")
        return self

    def filled(self, **defaults: Any) -> RunConfig:
        """The same with these values where it has None."""
        return self.model_copy(update={key: value for key, value in defaults.items() if getattr(self, key) is None})

    def resolved(self) -> RunConfig:
        """With world and profile decided. `nano` alone goes to the world that it was trained in."""
        bare = not (self.world or self.profile or self.tools or self.mcp)
        known = self.filled(world=HOME) if self.model == NANO and bare else self
        return known.filled(profile=WORLD_PROFILE if known.world else "web")

    def loaded_profile(self) -> Profile:
        return load_profile(self.resolved().profile or "web")

    def sampling(self) -> Sampling:
        usual = Sampling(max_tokens=self.max_tokens, seed=self.seed)
        temperature, top_p, top_k = self.temperature, self.top_p, self.top_k
        return Sampling(
            usual.temperature if temperature is None else temperature,
            usual.top_p if top_p is None else top_p,
            usual.top_k if top_k is None else top_k,
            self.max_tokens,
            self.seed,
        )

    def limits_of(self, profile: Profile) -> Limits | None:
        """None where the profile's own hold."""
        return Limits.model_validate({**profile.limits.model_dump(), **self.limits}) if self.limits else None


class RayConfig(Frozen):
    """Where many runs are made: in this process, or in actors of a Ray cluster."""

    ray: str | None = None
    """Ray cluster in whose actors the runs are made: local, auto, HOST:PORT or ray://HOST:PORT. Default: none."""
    ray_actors: int = Field(4, ge=1)
    """Number of actors. They share `concurrency`."""


class AskConfig(RunConfig, JudgeConfig, RayConfig):
    """Settings of `coa run`: a `RunConfig`, the selection among several attempts, and the shard of a task file."""

    best_of: int = Field(1, ge=1)
    """Number of attempts from which one is selected."""
    select: Select = Select.MAJORITY
    """How to select one of the attempts."""
    shard: Shard | None = None
    """Part of a file of tasks to run, as i/n: n machines do 1/n to n/n, each with a separate --out."""
