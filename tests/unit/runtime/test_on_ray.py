"""What is refused before Ray is started. Runs in real actors are in tests/cluster/test_ray.py."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from coa.cli import app
from coa.errors import ConfigError
from coa.evaluate import EvalConfig, evaluate
from coa.models.scripted import ScriptedModel
from coa.runtime import RunConfig, Setting, run_many
from coa.runtime.on_ray import _Cluster, on_ray
from coa.runtime.setting import Fleet, FleetLost
from coa.trajectory import Stop, Task, Trajectory, read
from coa.version import __version__
from support.exams import write_tasks

TASKS = [Task(id=f"t{n}", question=f"Who is {n}?") for n in range(12)]


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
@pytest.mark.parametrize("address", ["local", "auto", "127.0.0.1:6379", "ray://127.0.0.1:1"])
def test_without_ray_the_error_says_what_to_install(tmp_path: Path, address: str) -> None:
    tasks = write_tasks(tmp_path / "exam.jsonl", 1)
    command = ["run", "--tasks", str(tasks), "--model", "nano", "--ray", address, "--out", str(tmp_path / "r.jsonl")]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, ConfigError), result.output
    assert result.exception.message == "--ray needs Ray, which is not installed"
    assert str(result.exception.hint).endswith("coa setup ray")


@pytest.mark.parametrize("address", ["nonsense", "host:", "ray://host", ":x"])
def test_a_wrong_address_is_refused_before_anything_is_opened(tmp_path: Path, address: str) -> None:
    tasks = write_tasks(tmp_path / "exam.jsonl", 1)
    config = EvalConfig(benchmarks=(str(tasks),), run=RunConfig(model="http://127.0.0.1:9"), ray=address)
    with pytest.raises(ConfigError, match="is no address of a Ray cluster"):
        evaluate(config, tmp_path / "e")
    assert not (tmp_path / "e").exists()


def test_without_an_address_nothing_changes() -> None:
    async def go() -> bool:
        setting = Setting(ScriptedModel([]))
        async with on_ray(setting, EvalConfig(), RunConfig()) as same:
            return same is setting

    assert asyncio.run(go())


class Elsewhere:
    """A fleet of one, that is lost after some runs."""

    def __init__(self, lost_after: int) -> None:
        self.made, self._lost_after = 0, lost_after

    async def run(self, task: Task, number: int, setting: Setting) -> Trajectory:
        await asyncio.sleep(0)
        if self.made == self._lost_after:
            raise FleetLost("everybody is gone", hint="call them back")
        self.made += 1
        return Trajectory(task=task, profile="web", sample=number, stop=Stop.STEPS)

    def with_config(self, config: RunConfig) -> Fleet:
        return self


def test_a_lost_fleet_ends_the_batch_and_no_run_is_written_as_failed(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"

    async def go(lost_after: int) -> int:
        fleet = Elsewhere(lost_after)
        setting = Setting(ScriptedModel([]), fleet=fleet, concurrency=3)
        runs: AsyncGenerator[Trajectory, None] = run_many(TASKS, setting, out=out)
        async with aclosing(runs) as made:
            async for _ in made:
                pass
        return fleet.made

    with pytest.raises(FleetLost, match="everybody is gone"):
        asyncio.run(go(5))
    before = [run.task.id for run in read(out)]
    assert len(before) == 5 and all(run.failure is None for run in read(out))
    assert asyncio.run(go(100)) == 7, "the rest, and nothing again"
    assert sorted(run.task.id for run in read(out)) == sorted(task.id for task in TASKS)


class FakeRay:
    """As much of Ray as hands runs to actors: the first actor is evicted in its first run, the others work."""

    class exceptions:
        class RayError(Exception): ...

        class RayTaskError(RayError): ...

        class TaskCancelledError(RayError): ...

        class OutOfMemoryError(RayError): ...

    def __init__(self) -> None:
        self.started, self.killed = 0, 0

    def remote(self, **options: object) -> Callable[[type], FakeRay]:
        return lambda cls: self

    def options(self, **options: object) -> SimpleNamespace:
        return SimpleNamespace(remote=self._actor)

    def kill(self, handle: object) -> None:
        self.killed += 1

    def _actor(self) -> SimpleNamespace:
        self.started += 1
        number = self.started

        async def prepare(*given: object) -> tuple[str, str]:
            return __version__, f"place {number}"

        async def run(*given: object) -> bytes:
            if number == 1:
                raise self.exceptions.OutOfMemoryError("the node ran low on memory")
            return b"%d" % number

        return SimpleNamespace(prepare=SimpleNamespace(remote=prepare), run=SimpleNamespace(remote=run))


def test_a_run_whose_actor_is_evicted_for_memory_goes_to_another() -> None:
    """Ray raises an error for it that is no RayActorError."""
    ray = FakeRay()

    async def go() -> bytes:
        cluster = _Cluster(ray, 1, 4, "{}", b"[]", {})
        await cluster.start()
        return await cluster.run("{}", b"[]", b"{}")

    assert asyncio.run(go()) == b"2"
    assert (ray.started, ray.killed) == (2, 1)
