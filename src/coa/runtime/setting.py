"""What a run needs besides its task: the model, the tools, the profile, and how to sample, stop and pay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from coa.choices import Constrain
from coa.errors import CoaError
from coa.models.base import Model, Sampling
from coa.models.price import Price
from coa.runtime.live import LiveFeed
from coa.runtime.telemetry import Heard, unheard
from coa.tools import Tool
from coa.trajectory import Limits, Message, Profile, Task, Trajectory, load_profile
from coa.trajectory.profile import with_tool

if TYPE_CHECKING:
    from coa.runtime.config import RunConfig

Prompt = Callable[[Task], Sequence[Message] | None]
"""The messages in front of a task's run; None for the profile's own prompt."""


class FleetLost(CoaError):
    """The processes that make the runs are gone. The batch ends; the same call goes on from what is done."""


class Fleet(Protocol):
    """Other processes that make the runs of `run_many`."""

    async def run(self, task: Task, number: int, setting: Setting) -> Trajectory:
        """Make a run there. Raises `FleetLost` if there is nobody to make it."""

    def with_config(self, config: RunConfig) -> Fleet:
        """The same processes, for runs with what another config opens."""


def _profile_prompt(task: Task) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Setting:
    """The model, tools, profile, sampling and limits that the runs of one experiment share.

    `open_setting` makes one from a `RunConfig`. If you have a model and tools already, you can make one directly:
    `Setting(model, {"lookup": tool})`.
    """

    model: Model
    tools: Mapping[str, Tool] = field(default_factory=dict)
    profile: Profile = field(default_factory=lambda: load_profile("web"))
    """The profile of tasks that name none."""
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits | None = None
    """Limits of a run. None: those of the profile."""
    price: Price | None = None
    prompt: Prompt = _profile_prompt
    constrain: Constrain = Constrain.AUTO
    concurrency: int = 64
    """Number of runs at a time in `run_many`."""
    attachments: Mapping[str, bytes] = field(default_factory=dict)
    """Files that came with the question, for a setting of a single run; the task lists their names."""
    live: LiveFeed | None = None
    """Shows running chains to other processes, step by step."""
    finished: Heard = unheard
    """Is called with each run that has ended, with its scores if it is scored at once. It must not raise."""
    fleet: Fleet | None = None
    """Actors of Ray in which `run_many` makes its runs; None: in this process."""

    def profile_of(self, task: Task) -> Profile:
        """The profile of a run of the task. Tools that it does not name join it, described by themselves."""
        return self.with_tools(load_profile(task.profile) if task.profile else self.profile)

    def with_tools(self, profile: Profile) -> Profile:
        for tag, tool in self.tools.items():
            if tag not in profile.agents:
                profile = with_tool(profile, tag, title=tag, does=tool.about, shape=tool.shape)
        return profile
