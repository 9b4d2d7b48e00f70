"""The settings of `coa sample`: the tasks, which model attempts them how often, and which tasks are kept."""

from __future__ import annotations

from pydantic import Field

from coa.runtime import RunConfig
from coa.runtime.config import RayConfig
from coa.sampling.difficulty import Rules
from coa.scoring.opening import JudgeConfig
from coa.shard import Shard


class SampleConfig(JudgeConfig, RayConfig):
    """Settings of `coa sample`. By default it samples as RL does: temperature 1, the whole vocabulary, no grammar."""

    tasks: str | None = None
    """Tasks to choose from: a file, a folder, or a hub id such as owner/name[:part]."""
    run: RunConfig = RunConfig()
    """How to run the agent."""
    samples: int = Field(8, ge=1)
    """Number of attempts at each task with tools."""
    no_tools_samples: int | None = Field(None, ge=0)
    """Number of attempts at each task without tools; 0 skips them. Default: as many as with tools."""
    no_tools_model: str | None = None
    """Model that is asked without tools. Default: the model itself."""
    no_tools_name: str | None = None
    """Name of that model on a server that serves several."""
    no_tools_key_env: str = "COA_API_KEY"
    """Environment variable that holds the key of that server."""
    max_without_tools: float = Field(0.3, ge=0, le=1)
    """Drop tasks that are solved without tools more often than this."""
    keep_unsolved: bool = False
    """Keep tasks that no attempt with tools solved."""
    solved_at: float = 1.0
    """Score from which on an attempt counts as solved."""
    exclude: tuple[str, ...] = ()
    """Fine-tuning data whose questions are dropped: files, folders or hub ids."""
    early_stop: bool = False
    """Stop sampling a task as soon as its outcome is certain."""
    scorer: str = "auto"
    """Scorer of the answers: auto, exact, math, code, judge, module:function, ..."""
    limit: int | None = Field(None, ge=1)
    """Number of tasks to take from the beginning."""
    shard: Shard | None = None
    """Part of the tasks to sample, as i/n, after `limit`: n machines do 1/n to n/n, each with a separate --out."""
    retry_failed: bool = False
    """Make attempts that failed again."""

    @property
    def rules(self) -> Rules:
        given = self.model_dump(include=set(Rules.model_fields), exclude_none=True)
        return Rules.model_validate({"no_tools_samples": self.samples, **given})
