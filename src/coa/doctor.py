"""What works on this machine, and how to repair what does not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coa.errors import CoaError

if TYPE_CHECKING:
    from coa.rl.config import RlConfig


@dataclass(frozen=True)
class Check:
    """Whether one thing works here."""

    what: str
    works: bool
    detail: str
    hint: str | None = None
    needed: bool = True
    """Whether coa cannot work without it."""


def examine() -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check("Python", sys.version_info >= (3, 11), version, "install Python 3.11 or later")
    yield _attempt("profiles", _profiles)
    yield _attempt("write trajectories here", _write_here)
    yield _attempt("tokenizer of the embedded model (smollm2)", _smollm2, needed=False)
    yield _attempt("tokenizers from the hub", _hub, needed=False)
    yield _attempt("models in this process", _local, needed=False)
    yield _attempt("nano and the world that it knows", _nano, needed=False)
    yield _attempt("serving behind an API", _serving, needed=False)
    yield _attempt("isolation of model-written code", _isolation, needed=False)
    yield _attempt("paging in the terminal", _pager, needed=False)
    yield from _tools()


def examine_verl(config: RlConfig | None = None) -> Iterator[Check]:
    """What `coa rl --engine verl` needs: packages, verl's interface, the settings, and every node of the cluster.

    Nothing is trained, and no GPU is taken. Without a Ray cluster in the settings or in RAY_ADDRESS, tools and servers
    are tried on this machine alone.
    """
    from coa.rl.config import RlConfig
    from coa.rl.engines.verl.checks import INSTALL, PINNED, TESTED, installed

    complete = True
    for name, there in installed():
        wanted = PINNED.get(name)
        works = there is not None and there == (wanted or there)
        complete = complete and works
        detail = there or "not installed"
        if there is not None and there.partition("+")[0] != TESTED.get(name, there):
            detail = f"{there} (coa is tested with {TESTED[name]})"
        yield Check(name, works, detail if works or there is None else f"{there}, but {wanted} is needed", INSTALL)
    config = config or RlConfig(engine="verl")
    yield _attempt("settings", lambda: _verl_settings(config))
    if not complete:
        return
    yield _attempt("verl's interface", _verl_interface)
    from coa.rl.engines.verl.settings import cluster_address

    if cluster_address(config) is None:
        yield _attempt("tools on this machine", lambda: _verl_tools(config))
    else:
        yield _attempt("nodes of the cluster", lambda: _verl_nodes(config))


def _verl_interface() -> str:
    import subprocess

    import orjson

    from coa.rl.engines.verl.checks import INSTALL

    command = [sys.executable, "-W", "ignore", "-m", "coa.rl.engines.verl.signatures"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise CoaError(f"verl cannot be imported: {done.stderr.decode().strip().splitlines()[-1]}", hint=INSTALL)
    if problems := orjson.loads(done.stdout):
        raise CoaError("; ".join(problems), hint=INSTALL)
    return "all names that coa uses are there"


def _verl_settings(config: RlConfig) -> str:
    from coa.rl.dry_run import plan
    from coa.rl.engines.verl.checks import refuse_unsupported

    refuse_unsupported(config)
    if config.tasks is None:
        return "batches divide; give a config with tasks to check lengths and prompts too"
    found = plan(config)
    return f"{found.tasks} tasks, {found.attempts_per_step} attempts a step; batches divide and contexts fit"


def _verl_tools(config: RlConfig) -> str:
    import asyncio

    from coa.rl.checks import check, profiles_of
    from coa.rl.engines.verl.needs import try_tools

    profiles = profiles_of(config, check(config).tasks) if config.tasks else ()
    return ", ".join(asyncio.run(try_tools(config, profiles))) or "none are needed"


def _verl_nodes(config: RlConfig) -> str:
    """In a process of its own: Ray writes to the terminal and keeps threads running."""
    import subprocess

    import orjson

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "coa.rl.engines.verl.nodes"],
        input=config.model_dump_json().encode(), capture_output=True, check=False,
    )  # fmt: skip
    last = done.stdout.splitlines()[-1:] or [b"{}"]
    try:
        found = orjson.loads(last[0])
    except orjson.JSONDecodeError:
        found = {}
    if "problem" in found:
        raise CoaError(found["problem"], hint=found["hint"])
    if done.returncode or "nodes" not in found:
        raise CoaError(f"Ray could not be asked: {done.stderr.decode().strip()[-300:]}", hint="ray status")
    return "; ".join(found["nodes"])


def _attempt(what: str, probe: Callable[[], str], *, needed: bool = True) -> Check:
    try:
        return Check(what, True, probe(), needed=needed)
    except CoaError as error:
        return Check(what, False, error.message, error.hint, needed)
    except ImportError as error:
        return Check(what, False, str(error), f"{sys.executable} -m pip install chain-of-agents", needed)


def _profiles() -> str:
    from coa.trajectory.profile import load_profile, shipped

    return ", ".join(load_profile(name).name for name in shipped())


def _write_here() -> str:
    """Appends under a lock, as every long command does, to a file in the current folder."""
    import tempfile

    from coa.errors import StoreError
    from coa.trajectory import JsonlWriter, Task, Trajectory, read

    try:
        folder = tempfile.TemporaryDirectory(prefix=".coa-doctor-", dir=".")
    except OSError as error:
        problem = f"cannot write in the current folder: {error.strerror}"
        raise StoreError(problem, hint="cd to a folder that you may write to") from error
    with folder as name:
        path = Path(name) / "probe.jsonl"
        probe = Trajectory(task=Task(id="probe", question="?"), profile="web")
        try:
            with JsonlWriter(path) as writer:
                writer.write(probe)
        except OSError as error:
            problem = f"files in the current folder cannot be locked: {error.strerror}"
            raise StoreError(problem, hint="work on a local disk") from error
        if list(read(path)) != [probe]:
            raise StoreError("what was written in the current folder did not read back", hint="check the disk")
    return str(Path.cwd())


def _smollm2() -> str:
    from coa.models.tokenizer import load_tokenizer

    return f"{load_tokenizer('smollm2').vocabulary_size} tokens"


def _hub() -> str:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return f"offline by HF_HUB_OFFLINE; only what is in {constants.HF_HUB_CACHE}"
    return f"from {constants.ENDPOINT} (not contacted), kept in {constants.HF_HUB_CACHE}"


def _local() -> str:
    return _installed("nano", "torch", "transformers", "accelerate", "gguf")


def _nano() -> str:
    from coa.installing import missing, weights_file

    if absent := missing(["nano"]):
        raise CoaError(f"not installed: {absent.named()}", needs=["nano"])
    return f"over {weights_file()}"


def _serving() -> str:
    return _installed("serve", "starlette", "uvicorn", "httptools", "prometheus-client", "mcp")


def _installed(extra: str, *names: str) -> str:
    """Asks the package list, not the packages themselves: torch takes seconds to import."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return ", ".join(f"{name} {version(name)}" for name in names)
    except PackageNotFoundError as error:
        raise CoaError(f"{error.name} is not installed", needs=[extra]) from error


def _isolation() -> str:
    """Opens a real sandbox: there is no other way to know whether the kernel allows it."""
    import asyncio
    import shutil

    from coa.sandbox import open_sandbox

    async def go() -> str:
        opened = await open_sandbox()
        try:
            result = await opened.run("print('ok')")
            if result.text != "ok\n":
                raise CoaError(f"it opens but does not run: {result.note}")
            return opened.about
        finally:
            await opened.close()

    about = asyncio.run(go())
    if "Landlock" not in about and about.startswith("warm"):
        about += "; a kernel from 5.13 on would add Landlock"
    if not shutil.which("runsc"):
        about += "; stronger still: a separate machine with `coa sandbox serve`"
    return about


def _tools() -> Iterator[Check]:
    from coa.tools.registry import declarations

    for name, declared in declarations().items():
        missing = declared.missing()
        detail, hint = (declared.about, None) if missing is None else (missing.message, missing.hint)
        yield Check(f"tool {name}", missing is None, detail, hint, needed=False)


def _pager() -> str:
    import os
    import shlex
    import shutil

    command = shlex.split(os.environ.get("PAGER") or "less -R")
    if not command or not shutil.which(command[0]):
        raise CoaError("no pager was found: long output scrolls past", hint="apt-get install less, or set PAGER")
    return " ".join(command)
