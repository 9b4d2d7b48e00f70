"""Output folders: which run they belong to, which process writes to them, and how files are written atomically.

Every stage that writes does the same three things, and this file is the one place that knows how:

    with lock(out):                                # no second process writes here meanwhile
        claim(out, "sft", record)                  # refuse the folder of another run, and say what differs
        write_atomic(out / "report.json", data)    # a kill leaves the old file or the new one, never half of one

**Atomic writing.** A file or folder is written under a hidden name beside its place, flushed to the disk, and renamed.

**The lock** is a small file, `.lock` in a folder or `.<name>.lock` beside a single output, that the writing process
holds with `flock` and in which it says who it is. The kernel drops a `flock` when its process ends, also after
`kill -9`, so a lock that can be taken is free, whatever the file says. What the file says is for people, and for file
systems where a `flock` does not reach the other machine: a process of another machine is taken to be alive, one of this
machine is looked up by its pid and the time it started, because pids are reused. A forked child would inherit the
`flock` and keep it beyond its parent's end, so children close it (`_close_in_child`).

**A held file** (`HeldFile`) is appended to for as long as its process lives, such as the live feed of running chains.
Its `flock` shows readers that the writer lives.

**A claim** is `config.json`: what the run was started with. A run goes on only with the settings that it has.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from coa.addresses import without_passwords
from coa.errors import FolderError, refused

CONFIG: Final = "config.json"
_LOCK: Final = ".lock"
_PART: Final = re.compile(r"\..+\.part(\.[^.]+)?")
_NO_FLOCK: Final = (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS)
_WRITING: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""Errors of a write to an open file, which name no file."""
_SHOWN: Final = 160
_ELSEWHERE: Final = "choose another folder with --out"
_TRIES: Final = 100
_PATIENCE_S: Final = 1.0
"""How long to wait for a process that has just taken a lock to say who it is."""
_held: set[int] = set()


# ---- the user's cache


def cache_place(*names: str) -> Path:
    """The place of this name for files that can be made again, in $COA_CACHE or the cache folder of the user. Its
    folders need not exist: writing makes them."""
    folder = os.environ.get("COA_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "coa")
    return Path(folder, *names).expanduser()


# ---- writing


def write_atomic(path: str | Path, data: bytes | str) -> None:
    """Write a file so that after a crash it is either complete or unchanged."""
    with replacing(path) as part:
        part.write_bytes(data.encode() if isinstance(data, str) else data)


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A path to write a large file or a folder to; at the end it is renamed to `path`. An exception leaves nothing."""
    path, part = Path(path), beside(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove(part)
        try:
            yield part
            put(part, path)
        finally:
            _remove(part)


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """What the operating system refuses to write in this block becomes an error that names the output and a way out.

    Errors about other files, such as those that are read meanwhile, pass.
    """
    try:
        yield
    except OSError as error:
        about_output = error.errno in _WRITING if error.filename is None else _concerns(error.filename, Path(path))
        if not about_output:
            raise
        raise refused(f"write {path}", error) from error


def _concerns(file: object, path: Path) -> bool:
    """Whether a file that an error names is the output, its hidden companion, a part of it, or a folder above it."""
    if not isinstance(file, str | bytes | os.PathLike):
        return False
    named, own = Path(os.path.abspath(os.fsdecode(file))), Path(os.path.abspath(path))
    companion = named.parent == own.parent and named.name.startswith(f".{own.stem}")
    return companion or named.is_relative_to(own) or own.is_relative_to(named)


def beside(path: str | Path) -> Path:
    """A hidden name of this process in the same folder, with the same ending."""
    path = Path(path)
    return path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")


def put(part: Path, path: Path) -> None:
    """Flush what was written beside a place to the disk and rename it into the place. A folder replaces a folder."""
    sync(part)
    old = beside(path.with_name(f"{path.name}.old"))
    if part.is_dir() and path.is_dir():
        os.rename(path, old)
        os.rename(part, path)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.replace(part, path)
    sync(path.parent, inside=False)


def sync(path: Path, *, inside: bool = True) -> None:
    """Flush a file, or a folder with its contents, to the disk; without `inside`, only the names in a folder."""
    for below in path.rglob("*") if inside and path.is_dir() else ():
        sync(below, inside=False)
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():  # some file systems cannot sync a folder
            raise
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# ---- locking


class LockRecord(BaseModel):
    """What a lock file says about the process that holds it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    pid: int
    host: str
    since: str
    boot: str | None = None
    """Boot id of the kernel: containers on one machine have several host names, but one boot id."""
    ticks: int | None = None
    """When the process started, in ticks after the boot. Another process with the same pid has another value."""

    @classmethod
    def of_this_process(cls) -> LockRecord:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(pid=os.getpid(), host=socket.gethostname(), since=now, boot=_boot(), ticks=_ticks(os.getpid()))

    def elsewhere(self) -> bool:
        """Whether it is a process of another machine, which cannot be looked up here."""
        return self.host != socket.gethostname() and (self.boot is None or self.boot != _boot())

    def gone(self) -> bool:
        """Whether the process has ended, as far as it can be known here."""
        if self.elsewhere():
            return False
        if self.boot != _boot():  # this machine has been rebooted since
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # another user's
        return self.ticks != _ticks(self.pid)

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}, since {self.since}"


@contextmanager
def lock(folder: str | Path) -> Iterator[None]:
    """Hold a folder for this process until the block ends, or refuse at once if another process holds it.

    Unfinished files that a killed process left in the folder are removed.
    """
    folder = Path(folder)
    with writing(folder):
        made = not folder.exists()
    try:
        with _locked(folder / _LOCK, folder):
            _sweep(folder, _PART)
            yield
    finally:
        if made:
            with suppress(OSError):
                folder.rmdir()  # nothing was written to it


@contextmanager
def lock_file(path: str | Path, *, wait: bool = False) -> Iterator[None]:
    """Like `lock`, for a single output: a file, or a folder that is put in its place as a whole.

    `wait` waits for the other process instead of refusing: for caches, where its result is as good as ours.
    """
    path = Path(path)
    with _locked(path.with_name(f".{path.name}{_LOCK}"), path, wait):
        stem, suffix = re.escape(path.stem), re.escape(path.suffix)
        _sweep(path.parent, re.compile(rf"\.({stem}\.\d+\.part{suffix}|{stem}{suffix}\.\d+\.part\.old)"))
        yield


@contextmanager
def _locked(file: Path, subject: Path, wait: bool = False) -> Iterator[None]:
    with writing(subject):
        fd = _acquire(file, subject, wait)
    try:
        yield
    finally:
        if fd in _held:  # not in a forked child, whose parent still works here
            with suppress(OSError):
                file.unlink()  # while it is held: whoever has opened it meanwhile sees that it is gone
            _close(fd)


def _acquire(file: Path, subject: Path, wait: bool) -> int:
    while True:
        fd = _open(file)
        try:
            free = _flock(fd, wait)
            if free and not in_place(fd, file):
                _close(fd)  # its holder has removed it in the meantime
                continue
            if not free:
                raise _in_use(_holder(file), subject)
            owner = _read(file)
            if owner is not None and not wait and not owner.gone():
                raise _in_use(owner, subject, file if owner.elsewhere() else None)
            record = LockRecord.of_this_process().model_dump_json().encode() + b"\n"
            os.ftruncate(fd, 0)
            os.pwrite(fd, record, 0)
            return fd
        except BaseException:
            _close(fd)
            raise


def _open(file: Path, flags: int = 0) -> int:
    for tries_left in reversed(range(_TRIES)):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o666)
        except FileNotFoundError:  # its holder may just have removed an empty folder
            if not tries_left:  # or nothing can be made there, as in /proc
                raise
            continue
        _held.add(fd)
        return fd
    raise AssertionError("unreachable: the last try returns or raises")


def _close(fd: int) -> None:
    if fd in _held:
        _held.discard(fd)
        os.close(fd)


def _close_in_child() -> None:
    while _held:
        _close(next(iter(_held)))


os.register_at_fork(after_in_child=_close_in_child)


def _flock(fd: int, wait: bool) -> bool:
    """Whether this process has the lock now. On a file system without locks only what the file says counts."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            raise
    return True


def in_place(fd: int, path: Path) -> bool:
    """Whether an open file still has its name: another may have taken its place, or it may have been removed."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _read(file: Path) -> LockRecord | None:
    try:
        return LockRecord.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None


def _holder(file: Path) -> LockRecord | None:
    """The holder of a lock. A lock that was taken a moment ago may still be empty, or name its last holder."""
    until = time.monotonic() + _PATIENCE_S
    while ((owner := _read(file)) is None or owner.gone()) and time.monotonic() < until:
        time.sleep(0.01)
    return owner


def _in_use(owner: LockRecord | None, subject: Path, stale: Path | None = None) -> FolderError:
    process = "its pid is not known" if owner is None else str(owner)
    if stale is not None:
        return FolderError(
            f"{subject} is locked by another machine's process ({process}), and from {socket.gethostname()} it "
            "cannot be seen whether that still runs",
            hint=f"if it does not, remove the lock with rm {stale}; else wait, or choose another --out",
        )
    who = "this process already" if owner is not None and owner.pid == os.getpid() else "another process"
    return FolderError(
        f"{subject} is in use by {who} ({process})", hint="wait until it has ended, stop it, or choose another --out"
    )


def _boot() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _ticks(pid: int) -> int | None:
    try:
        # The name, in brackets, may hold anything; the start is the twentieth field after it.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _sweep(folder: Path, parts: re.Pattern[str]) -> None:
    for entry in os.scandir(folder):
        if parts.fullmatch(entry.name):
            _remove(Path(entry.path))


class HeldFile:
    """A small file that this process appends to, and holds with a `flock` for as long as it lives.

    Others may read it at any time, and `is_held` shows whether its writer still lives. Its first line says who
    that is. `close` removes it; what a killed process left there, `sweep_unheld` removes. A forked child must not write
    to it and gets an error.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._pid = path, os.getpid()
        self._fd, self.size = self._made(path, b"")

    def write(self, data: bytes) -> None:
        """Append in one call of the kernel."""
        self._refuse_child()
        self._append(self._fd, data)
        self.size += len(data)

    def read(self) -> bytes:
        """What was written, without the first line."""
        self._refuse_child()
        return os.pread(self._fd, self.size, 0).partition(b"\n")[2]

    def replace(self, data: bytes) -> None:
        """Put other content into its place, so that a reader sees the old or the new."""
        self._refuse_child()
        part = beside(self.path)
        with suppress(FileNotFoundError):
            part.unlink()
        fd, size = self._made(part, data)
        try:
            os.rename(part, self.path)
        except OSError:
            _close(fd)
            raise
        _close(self._fd)
        self._fd, self.size = fd, size

    def close(self) -> bool:
        """Remove it, if it is this process's; whether it is."""
        own = self._pid == os.getpid() and self._fd in _held
        if own:
            with suppress(OSError):
                self.path.unlink()
            _close(self._fd)
        return own

    def _refuse_child(self) -> None:
        if self._pid != os.getpid() or self._fd not in _held:
            raise OSError(errno.EBADF, "not held by this process", str(self.path))

    @classmethod
    def _made(cls, path: Path, data: bytes) -> tuple[int, int]:
        while True:
            fd = _open(path, os.O_APPEND)
            try:
                _flock(fd, True)  # a reader may be looking whether it is held
                if not in_place(fd, path):  # it was taken for a file that somebody left
                    _close(fd)
                    continue
                content = LockRecord.of_this_process().model_dump_json().encode() + b"\n" + data
                cls._append(fd, content)
                return fd, len(content)
            except BaseException:
                _close(fd)
                raise

    @staticmethod
    def _append(fd: int, data: bytes) -> None:
        if os.write(fd, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def is_held(path: Path) -> bool:
    """Whether the process that writes a `HeldFile` still lives. Where a file system has no locks, its first line says
    which process that is."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        try:
            return not LockRecord.model_validate_json(os.pread(fd, 4096, 0).partition(b"\n")[0]).gone()
        except (OSError, ValidationError):
            return False
    finally:
        os.close(fd)
    return False


def sweep_unheld(folder: Path) -> None:
    """Remove from a folder of held files those that killed processes left, and the folder if nothing is in it then."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_file(follow_symlinks=False) and not is_held(Path(entry.path)):
                os.unlink(entry.path)
        folder.rmdir()


# ---- claiming


def claim(
    folder: str | Path,
    stage: str,
    record: Mapping[str, Any],
    *,
    settings: str | None = None,
    free: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
    compared: Callable[[dict[str, Any]], Mapping[str, Any]] = dict,
    foreign: str | None = None,
    correctable: bool = False,
    hints: Mapping[str, str] | None = None,
    write: bool = True,
    renew: bool = False,
) -> dict[str, Any] | None:
    """Claim the folder for this run, or refuse if it belongs to another one. Returns its earlier `config.json`, if any.

    `record` becomes `config.json`, with the stage. The settings that decide whether it is the same run are `record`
    itself, or its table `settings`. Those in `free` may change when a run goes on. If the saved run lacks a setting,
    that is newer than the run, which then did what `defaults` says. `compared` prepares both sides, for example to give
    old keys their new names.

    A folder without `config.json` that holds something matching the glob `foreign` is refused. A folder with nothing
    but `config.json` is that of a run which failed before it did anything; if `correctable`, any settings replace those
    in it. A run that goes on keeps its `config.json`, unless `renew`.
    """
    folder = Path(folder)
    # As it is when it is read back.
    now: dict[str, Any] = orjson.loads(without_passwords(orjson.dumps({"stage": stage, **record}).decode()))
    before = read_config(folder)
    there = {name for name in os.listdir(folder) if not name.startswith(".")} if folder.is_dir() else set()
    if before is None:
        if CONFIG in there:
            problem = f"{folder / CONFIG} cannot be read: {folder} may be the folder of another kind of run"
            raise FolderError(problem, hint=_ELSEWHERE)
        if foreign is not None and any(not path.name.startswith(".") for path in folder.glob(foreign)):
            raise FolderError(f"{folder} is not empty and holds no {CONFIG} of a run", hint=_ELSEWHERE)
    else:
        kind = before.get("stage", before.get("command"))  # older runs of some stages name none
        known = kind == stage if settings is None else kind in (stage, None) and isinstance(before.get(settings), dict)
        if not known:
            raise FolderError(f"{folder} is the folder of another kind of run", hint=_ELSEWHERE)
        if correctable and there == {CONFIG}:
            before = None
        else:
            old, new = (compared(side if settings is None else side.get(settings, {})) for side in (before, now))
            was = {**(defaults or {}), **old}
            refuse_other(folder, was, new, free=(*free, "stage"), all_keys=settings is not None, hints=hints)
    if write and (before is None or renew):
        write_atomic(folder / CONFIG, orjson.dumps(now, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return before


def refuse_other(
    folder: Path,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    *,
    free: Collection[str] = (),
    all_keys: bool = False,
    hints: Mapping[str, str] | None = None,
) -> None:
    """Refuse if settings differ, and say which and how. Without `all_keys`, only the keys of `new` count."""
    keys = [*new, *(key for key in old if all_keys and key not in new)]
    different = [key for key in keys if key not in free and old.get(key) != new.get(key)]
    if different:
        changes = "; ".join(f"{key} was {_shown(old.get(key))} and is now {_shown(new.get(key))}" for key in different)
        hint = "give the settings it was started with, or another folder with --out"
        special = next((text for key, text in (hints or {}).items() if key in different), None)
        raise FolderError(f"{folder} is a run with other settings: {changes}", hint=special or hint)


def read_config(folder: str | Path) -> dict[str, Any] | None:
    """What a run folder's `config.json` says; None where there is none that can be read."""
    try:
        found = orjson.loads((Path(folder) / CONFIG).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return found if isinstance(found, dict) else None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
