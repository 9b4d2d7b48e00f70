"""Attempts on their way from the processes that make them to the one that trains.

verl hands token ids and rewards to its trainer, but not the trajectory behind them. So each agent loop also sends a
record of its attempt, failed ones included, to one small Ray actor; the trainer fetches them once a step and writes
`groups/step-N.jsonl` and the metrics from them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Final, Literal

import ray

from coa.rl.groups import Attempt
from coa.trajectory import Trajectory
from coa.trajectory.store import Lines

NAME: Final = "coa-attempts"


@dataclass(frozen=True)
class RecordedAttempt(Attempt):
    """An attempt as the trainer knows it: the tokens themselves are with verl."""

    tokens: int
    logprobs: float

    @property
    def model_tokens(self) -> int:
        return self.tokens

    @property
    def logprob_sum(self) -> float:
        return self.logprobs


@dataclass(frozen=True)
class Record:
    """One attempt, made or failed."""

    uid: str
    """verl's name of the group."""
    session: int
    """The number of the attempt in its group."""
    task: str
    """The task as JSON."""
    step: int
    """The step in which the task was drawn."""
    outcome: Literal["made", "failed", "unscored"]
    held_out: bool = False
    why: str = ""
    """Why there is nothing to learn from it."""
    retries: int = 0
    """Number of times that it failed before."""
    packed: bytes = b""
    """The trajectory, compressed."""
    reward: float = 0.0
    tokens: int = 0
    logprobs: float = 0.0

    @staticmethod
    def pack(trajectory: Trajectory) -> bytes:
        """As a line of a file, which has the definition of its profile: the trainer must be able to write it on."""
        return zlib.compress(Lines().line(trajectory), 1)

    def trajectory(self) -> Trajectory:
        return Trajectory.from_json(zlib.decompress(self.packed))

    def attempt(self) -> RecordedAttempt:
        return RecordedAttempt(self.trajectory(), self.reward, self.tokens, self.logprobs)


class Collector:
    def __init__(self) -> None:
        self._records: list[Record] = []
        self._made = self._failed = self._tokens = 0

    def add(self, record: Record) -> None:
        self._records.append(record)
        self._made += record.outcome == "made"
        self._failed += record.outcome != "made"
        self._tokens += record.tokens

    def drain(self) -> list[Record]:
        """All records since the last call."""
        found, self._records = self._records, []
        return found

    def counts(self) -> dict[str, int]:
        """Since the run was started, for the progress bar."""
        return {"made": self._made, "failed": self._failed, "tokens": self._tokens}


def start_collector(**options: Any) -> Any:
    return ray.remote(num_cpus=0)(Collector).options(name=NAME, **options).remote()


def find_collector() -> Any:
    return ray.get_actor(NAME)
