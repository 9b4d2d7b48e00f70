"""Errors that reach a person. Each says what is wrong and, where one is known, the command that fixes it.

A failed attempt at a task is not an error: it is a trajectory with `stop=FAILED` and a `Failure`.
"""

import errno
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final


class CoaError(Exception):
    """An error that the user can fix. It has a `message` and, if one is known, a `hint`.

    Every error that coa raises on purpose is a subclass. The command line prints it without a traceback.
    """

    exit_code = 1
    """Of the command line: 1 for what failed, 2 for a command that was misused."""

    def __init__(self, message: str, *, hint: str | None = None, needs: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or (setup_command(*needs) if needs else None)
        self.needs = tuple(needs)
        """What `coa setup` installs to repair it. The command line offers to do so."""

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.needs)


class ConfigError(CoaError):
    """A setting that does not exist or has a wrong value, or a file of settings that cannot be read."""

    exit_code = 2


class ProfileError(CoaError):
    """A profile that cannot be found, read or obeyed."""


class StoreError(CoaError):
    """A file of trajectories or tasks that cannot be read or written."""


class FolderError(CoaError):
    """An output folder or file that is another run's, or that another process is writing."""


class SchemaVersionError(StoreError):
    """A record written by a version of coa that this one does not know."""


class TokenizerError(CoaError):
    """A tokenizer that cannot be found or used."""


class LedgerError(CoaError):
    """Token ids that contradict the text they stand for."""


class ModelError(CoaError):
    """A model that did not answer, or not in a way that can be used."""


class TrainingError(CoaError):
    """Settings, data or a run folder that no training can come of."""


class ToolError(CoaError):
    """A tool that is not there or cannot be built. A tool that fails in a run answers with an observation instead."""


class ScoringError(CoaError):
    """A scorer that is not there or cannot be built. An answer that cannot be scored is a verdict, not an error."""


class EvaluationError(CoaError):
    """A benchmark whose data are not here, or a folder of results that something else is in."""


class TraceError(CoaError):
    """A trace of a team that cannot be read as what it seems to be."""


class RecordingError(CoaError):
    """A team that cannot be run, or not be recorded faithfully."""


class WorldError(CoaError):
    """A world that cannot be built, found or served."""


_ELSEWHERE: Final = "choose another place, or remove what is there"
_PERMISSION: Final = "check with `ls -l` who may read and write there, or choose another place"
_SPACE: Final = "free some space on the disk, or choose a place on another one"
_OS_HINTS: Final = {
    errno.ENOENT: "check the spelling, and that the folder is there",
    errno.EEXIST: _ELSEWHERE,
    errno.ENOTEMPTY: _ELSEWHERE,
    errno.ENOTDIR: "a part of this path is a file and not a folder; choose another place",
    errno.EISDIR: "this is a folder and not a file; choose another place",
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: "the disk is mounted read-only; choose another place",
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "raise the limit on the size of files (`ulimit -f`), or choose another place",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "a link leads to itself; choose another place",
    errno.EMFILE: "raise the limit on open files (`ulimit -n 4096`), or do less at a time",
    errno.ENFILE: "too many files are open on this machine; do less at a time",
    errno.ENOMEM: "free some memory, or do less at a time",
    errno.EADDRINUSE: "another program uses this port; choose another --port",
    errno.EIO: "check the disk",
}


def refused(doing: str, error: OSError, kind: type[CoaError] = StoreError) -> CoaError:
    """What the operating system refused to do, such as "write runs/a", and what to do about it."""
    reason = error.strerror or str(error) or type(error).__name__
    return kind(f"cannot {doing}: {reason}", hint=_OS_HINTS.get(error.errno or 0))


_EXTRAS: Final = {
    "torch": "local", "transformers": "local", "accelerate": "local", "peft": "local", "safetensors": "local",
    "gguf": "local", "tensorboard": "train", "math_verify": "eval", "smolagents": "teacher", "ray": "ray",
    "reasoning_gym": "worlds", "tantivy": "tools", "trafilatura": "tools", "mcp": "tools", "pypdf": "tools",
    "starlette": "serve", "uvicorn": "serve", "httptools": "serve", "prometheus_client": "serve",
}  # fmt: skip
"""The extra that installs a package."""


def not_installed(error: ImportError) -> CoaError | None:
    """What to install, for an import that failed because an extra of coa is missing; None for any other."""
    name = error.name or ""
    extra = _EXTRAS.get(name.partition(".")[0])
    if extra is None or not isinstance(error, ModuleNotFoundError):
        return None
    return CoaError(f"this needs the package {name}, which is not installed", needs=[extra])


def program() -> str:
    """What a person types for `coa` here: its path, where it is not on theirs."""
    if from_uvx():
        return f"uvx --from {shlex.quote(uvx_source())} coa"
    here = Path(sys.executable).with_name("coa")
    found = shutil.which("coa")
    if (found and Path(found).resolve() == here.resolve()) or not here.is_file():
        return "coa"
    return shlex.quote(str(here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here))


def setup_command(*needs: str) -> str:
    """What a person types to install what is missing. uvx has to make another environment for it: the same command
    does that, with the consent that a terminal would be asked for."""
    if from_uvx() and needs != ("weights",):  # which go into the cache of the user
        given = sys.argv[1:]
        # Of these two, neither lacks anything itself.
        command = "..." if given[:1] in (["doctor"], ["setup"]) else shlex.join(given)
        return f"COA_YES=1 {program()} {command}"
    return f"{program()} setup {' '.join(needs)}"


def from_uvx() -> bool:
    """Whether this environment lies in the cache of uv, where nothing may be changed."""
    return "archive-v0" in Path(sys.prefix).parts


def uvx_source() -> str:
    """The package as it was given to uvx: its name, or `name @ URL` of a wheel."""
    import json
    from importlib.metadata import distribution

    origin = distribution("chain-of-agents").read_text("direct_url.json")
    return f"chain-of-agents @ {json.loads(origin)['url']}" if origin else "chain-of-agents"


def nothing_at(path: str | Path, noun: str = "file or folder", kind: type[CoaError] = StoreError) -> CoaError:
    """For a path that leads nowhere: names what is there instead, where that looks alike."""
    hint = "check the spelling, and the folder in which you are"
    parent = Path(path).expanduser().parent
    try:
        near = get_close_matches(Path(path).name, os.listdir(parent), n=1, cutoff=0.75)
    except OSError:
        near, hint = [], f"there is no folder {parent}; check the spelling" if str(parent) != "." else hint
    return kind(f"there is no {noun} {path}", hint=f"did you mean {parent / near[0]}?" if near else hint)


def _rebuild(kind: type[CoaError], message: str, hint: str | None, needs: tuple[str, ...]) -> CoaError:
    error = kind(message, hint=hint)
    error.needs = needs
    return error
