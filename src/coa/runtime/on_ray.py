"""Many runs in the actors of a Ray cluster: `--ray ADDRESS` of run, eval and sample.

The command that the user started (the driver) keeps everything that makes a batch safe: the list of what is still to be
run, the only file that is written, the scores and the report. So resuming, Ctrl-C and `kill -9` are what they are
without Ray. Only the making of a run moves: `run_many` hands each run to the actor with the least to do and waits for
the trajectory. That is a lease. It ends with the trajectory, or with the actor: then the run goes to another actor, and
a new one takes the place of the dead one. As a run is written by the one coroutine that holds it, none is lost and none
is written twice.

An actor opens model, tools and world by itself, from the same `RunConfig`. Keys are sent to it in a call, from memory
to memory; they are in no runtime environment of Ray's, which would be logged.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import orjson

from coa.choices import Constrain
from coa.errors import CoaError, ConfigError
from coa.models.base import Sampling
from coa.models.price import Price
from coa.progress import Progress, Silent, part
from coa.report import plural
from coa.runtime.chain import Chain
from coa.runtime.config import RayConfig, RunConfig
from coa.runtime.opening import open_setting
from coa.runtime.setting import Fleet, FleetLost, Setting
from coa.runtime.telemetry import unheard
from coa.trajectory import Limits, Message, Profile, Task, Trajectory
from coa.trajectory.formats.otlp_endpoint import OtlpConfig
from coa.trajectory.store import Lines
from coa.trajectory.types import Frozen
from coa.version import __version__

if TYPE_CHECKING:
    ActorHandle = Any

log = logging.getLogger(__name__)
LOCAL: Final = "local"
TOOL_VARIABLES: Final = ("COA_", "OPENAI_API_KEY", "SERPAPI_", "SERPER_", "SEARXNG_", "JINA_")
"""How the names begin of environment variables that models and tools read."""
_READY_S: Final = 300.0
"""How long an actor may take to be placed and to open its model."""
_CLOSE_S: Final = 10.0
_MOST_DEATHS: Final = 5
"""Number of actors that may die under one run before the run counts as failed: it may be what kills them."""
LOOPBACK_ONLY: Final = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Set to 0, Ray listens on 127.0.0.1. By itself it takes the machine's address, even when it is given another."""


class _Job(Frozen):
    """A run to be made: the task, and what may differ from run to run."""

    task: Task
    number: int
    profile: Profile
    prompt: tuple[Message, ...] | None
    sampling: Sampling
    limits: Limits | None
    price: Price | None
    constrain: Constrain
    tools: bool
    """Whether the run has the tools of the setting, or none."""


class Runner:
    """What an actor does. It opens a setting for each config that it is given, once, and makes runs."""

    def __init__(self) -> None:
        self._settings: dict[str, asyncio.Future[Setting]] = {}
        self._holding: list[asyncio.Task[None]] = []
        self._closing = asyncio.Event()

    async def prepare(self, variables: Mapping[str, str], config: str, tasks: bytes) -> tuple[str, str]:
        """The version of coa here, and where this is."""
        os.environ.update(variables)
        await self._setting(config, tasks)
        return __version__, f"{socket.gethostname()}, pid {os.getpid()}"

    async def run(self, config: str, tasks: bytes, job: bytes) -> bytes:
        """The trajectory as a line of a file, with the definition of its profile."""
        given, own = _Job.model_validate_json(job), await self._setting(config, tasks)
        setting = replace(
            own, profile=given.profile, prompt=lambda task: given.prompt, sampling=given.sampling, limits=given.limits,
            price=given.price, constrain=given.constrain, tools=own.tools if given.tools else {}, finished=unheard,
        )  # fmt: skip
        return Lines().line(await Chain(given.task, setting, sample=given.number).run())

    async def close(self) -> None:
        self._closing.set()
        await asyncio.gather(*self._holding, return_exceptions=True)

    async def _setting(self, config: str, tasks: bytes) -> Setting:
        if config not in self._settings:
            self._settings[config] = asyncio.get_running_loop().create_future()
            self._holding.append(asyncio.create_task(self._hold(config, tasks)))
        return await asyncio.shield(self._settings[config])

    async def _hold(self, config: str, tasks: bytes) -> None:
        """Opened and closed by one task, as some tools need it."""
        ready = self._settings[config]
        try:
            needs = [Task.model_validate(row) for row in orjson.loads(tasks)]
            async with open_setting(RunConfig.model_validate_json(config), tasks=needs) as setting:
                ready.set_result(setting)
                await self._closing.wait()
        except BaseException as error:
            if ready.done():
                raise
            del self._settings[config]
            ready.set_exception(error)


@dataclass(eq=False)
class _Member:
    handle: ActorHandle
    busy: int = 0
    """Number of its leases."""


class _Cluster:
    """The actors."""

    def __init__(
        self, ray: Any, count: int, at_a_time: int, config: str, tasks: bytes, variables: dict[str, str]
    ) -> None:
        self._ray, self._count = ray, count
        self._ready = variables, config, tasks
        # Leases go to the least busy, which may have to take more than its share while another is replaced.
        self._class = ray.remote(num_cpus=1, max_restarts=0, max_concurrency=max(2 * at_a_time, 8))(Runner)
        self._members: list[_Member] = []
        self._replacing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._members += await asyncio.gather(*(self._new() for _ in range(self._count)))

    async def run(self, config: str, tasks: bytes, job: bytes) -> bytes:
        for _ in range(_MOST_DEATHS):
            member = await self._least_busy()
            member.busy += 1
            call = member.handle.run.remote(config, tasks, job)
            try:
                line: bytes = await call
            except self._ray.exceptions.RayTaskError as error:
                raise _cause(error) from error
            except self._ray.exceptions.TaskCancelledError:
                raise
            except self._ray.exceptions.RayError as error:  # dead, out of memory, or out of reach
                self._bury(member, error)
                continue
            except asyncio.CancelledError:
                with suppress(Exception):
                    self._ray.cancel(call)
                raise
            finally:
                member.busy -= 1
            return line
        raise CoaError(f"{_MOST_DEATHS} actors died while they made this run")

    async def close(self) -> None:
        for replacing in self._replacing:
            replacing.cancel()
        with suppress(Exception):
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.gather(*(one.handle.close.remote() for one in self._members), return_exceptions=True)
        for one in self._members:
            with suppress(Exception):
                self._ray.kill(one.handle)

    async def _new(self) -> _Member:
        handle = self._class.options(scheduling_strategy="SPREAD").remote()
        try:
            async with asyncio.timeout(_READY_S):
                version, place = await handle.prepare.remote(*self._ready)
        except TimeoutError:
            self._ray.kill(handle)
            raise FleetLost(
                f"Ray has not started an actor in {_READY_S:.0f} s: it needs a CPU for each of {self._count}",
                hint="lower --ray-actors, or look at `ray status`",
            ) from None
        except self._ray.exceptions.RayTaskError as error:
            raise _cause(error) from error
        except self._ray.exceptions.RayError as error:
            raise FleetLost(
                f"Ray could not start an actor: {str(error).strip().splitlines()[0]}",
                hint=f"coa {__version__} must be installed on every node of the cluster; look at `ray status`",
            ) from error
        if version != __version__:
            hint = "install the same version on every node of the cluster"
            raise ConfigError(f"coa is {version} on {place} and {__version__} here", hint=hint)
        return _Member(handle)

    async def _least_busy(self) -> _Member:
        while not self._members:
            if not self._replacing:
                raise FleetLost("every actor has died, and none could be started again", hint="look at `ray status`")
            await asyncio.wait(self._replacing, return_when=asyncio.FIRST_COMPLETED)
        return min(self._members, key=lambda one: one.busy)

    def _bury(self, member: _Member, error: Exception) -> None:
        """A dead actor is replaced once, however many leases it held."""
        if member not in self._members:
            return
        self._members.remove(member)
        leases = plural(member.busy, "run goes", "runs go")
        log.warning("an actor died, and %s to others: %s", leases, str(error).strip().splitlines()[0])
        with suppress(Exception):
            self._ray.kill(member.handle)  # one that cannot be reached may live
        replacing = asyncio.create_task(self._replace())
        self._replacing.add(replacing)
        replacing.add_done_callback(self._replacing.discard)

    async def _replace(self) -> None:
        try:
            self._members.append(await self._new())
        except CoaError as error:
            log.warning("it could not be replaced: %s", error.message)


@dataclass(frozen=True)
class _RayFleet:
    """The actors, with the config whose runs they are to make."""

    cluster: _Cluster
    config: str
    tasks: bytes

    def with_config(self, config: RunConfig) -> Fleet:
        return replace(self, config=_for_actors(config))

    async def run(self, task: Task, number: int, setting: Setting) -> Trajectory:
        prompt = setting.prompt(task)
        job = _Job(
            task=task, number=number, profile=setting.profile, prompt=None if prompt is None else tuple(prompt),
            sampling=setting.sampling, limits=setting.limits, price=setting.price, constrain=setting.constrain,
            tools=bool(setting.tools),
        )  # fmt: skip
        return Trajectory.from_json(await self.cluster.run(self.config, self.tasks, job.model_dump_json().encode()))


def check_ray(place: RayConfig) -> None:
    """Refuse an address that is none, and a machine without Ray, before anything is opened."""
    if place.ray is None:
        return
    _, colon, port = place.ray.removeprefix("ray://").rpartition(":")
    if place.ray not in (LOCAL, "auto") and not (colon and port.isdecimal()):
        raise ConfigError(
            f"{place.ray!r} is no address of a Ray cluster", hint="write local, auto, HOST:PORT or ray://HOST:PORT"
        )
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("--ray needs Ray, which is not installed", needs=["ray"])
    if place.ray.startswith("ray://") and importlib.util.find_spec("grpc") is None:
        hint = f"{sys.executable} -m pip install 'ray[client]', or give HOST:PORT of the cluster"
        raise ConfigError("ray:// needs the client of Ray, which is not installed", hint=hint)


@asynccontextmanager
async def on_ray(
    setting: Setting,
    place: RayConfig,
    config: RunConfig,
    *,
    tasks: Sequence[Task] = (),
    objects: bool = False,
    key_variables: Sequence[str] = (),
    progress: Progress | None = None,
) -> AsyncIterator[Setting]:
    """The setting with its runs made in actors, or as it is where `place` names no cluster.

    `config` is what the setting was opened from. `objects` says that a model or tools are the caller's objects, which
    cannot be sent. `key_variables` are further variables of the environment that hold keys.
    """
    if place.ray is None:
        yield setting
        return
    check_ray(place)
    if objects:
        raise ConfigError(
            "a model or a tool that is an object here cannot be sent to actors of Ray",
            hint="name it in the config: a URL for the model, name=module:factory for a tool",
        )
    actors = min(place.ray_actors, config.concurrency)
    share = ceil(config.concurrency / actors)
    own = _for_actors(config.model_copy(update={"concurrency": share}))
    needs = {(task.profile, bool(task.files)): task for task in tasks}
    described = orjson.dumps([task.model_dump(mode="json") for task in needs.values()])
    names = {config.api_key_env, *key_variables, *(name for name in os.environ if name.startswith(TOOL_VARIABLES))}
    variables = {name: os.environ[name] for name in sorted(names) if name in os.environ}
    with part(progress or Silent(), f"starting {plural(actors, 'actor')} on Ray ({place.ray})"):
        ray, started = _connect(place.ray, actors)
        cluster = _Cluster(ray, actors, share, own, described, variables)
        try:
            await cluster.start()
        except BaseException:
            await cluster.close()
            if started:
                ray.shutdown()
            raise
    try:
        yield replace(setting, fleet=_RayFleet(cluster, own, described))
    finally:
        await cluster.close()
        if started:
            ray.shutdown()


def _for_actors(config: RunConfig) -> str:
    """Spans are sent by the driver, which knows the scores. What the config holds by name, the actors look up."""
    bare = config.model_copy(update={"otlp": OtlpConfig()})
    return bare.model_dump_json(include=set(RunConfig.model_fields))


def _connect(address: str, actors: int) -> tuple[Any, bool]:
    """The module `ray`, connected, and whether it was connected here."""
    host = "127.0.0.1" if address == LOCAL else refuse_silent(address)
    if host in ("127.0.0.1", "localhost") and not address.startswith("ray://"):
        os.environ.setdefault(LOOPBACK_ONLY, "0")  # read when ray is imported
    import ray
    import ray.exceptions

    if ray.is_initialized():
        return ray, False
    known: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        known |= {"num_cpus": actors, "include_dashboard": False}
    try:
        ray.init(address=address, **known)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        raise unreachable(address, error) from error
    if address == LOCAL and any(not node["NodeManagerAddress"].startswith("127.") for node in ray.nodes()):
        ray.shutdown()
        raise ConfigError(
            "Ray would listen to other machines, because it was imported before",
            hint=f"set {LOOPBACK_ONLY}=0 in the environment",
        )
    return ray, True


def unreachable(address: str, error: Exception) -> ConfigError:
    """What to say of a cluster that Ray could not join."""
    needs_token = "AuthToken" in f"{error} {error.__cause__}"
    token = "set RAY_AUTH_MODE=token, with the cluster's token in RAY_AUTH_TOKEN or ~/.ray/auth_token"
    start = "start it with `ray start --head`, or let coa start it: --ray local"
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return ConfigError(f"Ray cannot be reached at {address}: {reason}", hint=token if needs_token else start)


def refuse_silent(address: str) -> str:
    """The host of an address, if something answers there: Ray itself would try for minutes."""
    if address == "auto":
        return ""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"nothing answers at {address}: {error}", hint="start Ray there with `ray start --head`, or use --ray local"
        ) from error
    return host


def _cause(error: Any) -> BaseException:
    """What an actor raised, without Ray's traceback around it."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, CoaError) else CoaError(f"{type(cause).__name__}: {cause}")
