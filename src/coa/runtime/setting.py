"""Everything that a run needs besides its task."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coa.models.base import Model, Sampling
from coa.models.price import Price
from coa.runtime.chain import Chain, ChainEvent
from coa.runtime.guide import Constrain
from coa.runtime.many import Progress, run_many
from coa.tools import Tool
from coa.trajectory import Limits, Message, Profile, Task, Trajectory

Prompt = Callable[[Task], Sequence[Message] | None]


@dataclass(frozen=True, slots=True)
class Setting:
    model: Model
    tools: Mapping[str, Tool]
    profile: Profile
    sampling: Sampling
    limits: Limits | None
    price: Price | None
    prompt: Prompt
    constrain: Constrain = Constrain.AUTO

    def chain(self, task: Task, listen: Callable[[ChainEvent], None]) -> Chain:
        """One run, told as it goes."""
        return Chain(
            task,
            self.model,
            self.tools,
            self.profile,
            sampling=self.sampling,
            limits=self.limits,
            price=self.price,
            prompt=self.prompt(task),
            constrain=self.constrain,
            listen=listen,
        )

    def many(
        self,
        tasks: Iterable[Task],
        *,
        samples: int,
        concurrency: int,
        progress: Progress,
        out: Path | None = None,
        retry_failed: bool = False,
    ) -> AsyncGenerator[Trajectory, None]:
        """`run_many` with this setting."""
        return run_many(
            tasks,
            self.model,
            self.tools,
            self.profile,
            samples=samples,
            concurrency=concurrency,
            out=out,
            retry_failed=retry_failed,
            sampling=self.sampling,
            limits=self.limits,
            price=self.price,
            prompt=self.prompt,
            constrain=self.constrain,
            progress=progress,
        )
