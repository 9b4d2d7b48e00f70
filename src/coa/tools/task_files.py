"""The files of a task, and no others. A model gets a file only if the task lists it and it is in the root.

The root matters because tasks come from data sets: a task that lists `/home/me/.ssh/id_rsa` must not get that file.
A file that came with the question, as the image in a client's request, is an attachment of the run and is never sought
on disk.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path, PurePath
from typing import Final

from coa.errors import ToolError
from coa.tools.base import ToolContext
from coa.trajectory import Task

ROOT: Final = "COA_FILES_ROOT"
"""Environment variable: the folder with the files of tasks; if it is not set, the current folder."""


class NoSuchFile(Exception):
    """The message is written for the model to read."""


class TaskFiles:
    def __init__(self, root: Path | str | None = None, *, max_bytes: int = 32 << 20) -> None:
        self._root = Path(root).resolve() if root else None
        self._max_bytes = max_bytes

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> TaskFiles:
        return cls(environment.get(ROOT) or None)

    @property
    def root(self) -> Path:
        return self._root or Path.cwd().resolve()

    def check(self, task: Task) -> None:
        """Raise ToolError if a file of the task can never be read: for a user who has just named it."""
        for listed in task.files:
            try:
                self._path(listed)
            except NoSuchFile as error:
                hint = f"copy it to {self.root}, or set {ROOT} or --tool read_file= to its folder"
                raise ToolError(str(error), hint=hint) from error

    def read(self, context: ToolContext, name: str) -> tuple[str, bytes]:
        """The name of the file in the task, and its bytes."""
        listed = _listed(context.task, name.strip())
        attached = context.attachments.get(listed)
        if attached is not None:
            self._check_size(len(attached), listed)
            return listed, attached
        return listed, self._content(self._path(listed), listed)

    def all(self, context: ToolContext, most_bytes: int) -> tuple[dict[str, bytes], list[str]]:
        """The task's files as a program finds them in its folder, and the reasons why others are missing."""
        found: dict[str, bytes] = {}
        left_out: list[str] = []
        room = most_bytes
        for listed in context.task.files:
            path = PurePath(listed)
            name = path.name if path.is_absolute() or ".." in path.parts else str(path)
            try:
                content = self.read(context, listed)[1]
            except NoSuchFile as error:
                left_out.append(str(error))
                continue
            if len(content) > room:
                left_out.append(f"{listed} is too large; programs get files up to {most_bytes:,} bytes together")
                continue
            room -= len(content)
            found[name] = content
        return found, left_out

    def fingerprint(self, context: ToolContext, name: str) -> str:
        """Identifies the file's content; `none` for a file that cannot be read."""
        try:
            return blake2b(self.read(context, name)[1], digest_size=24).hexdigest()
        except NoSuchFile:
            return "none"

    def _path(self, listed: str) -> Path:
        try:
            path = (self.root / listed).resolve(strict=True)  # an absolute path stays as it is, and is then checked
        except (OSError, RuntimeError, ValueError) as error:
            raise NoSuchFile(f"the task's file {listed} is not there") from error
        if not path.is_relative_to(self.root):
            raise NoSuchFile(f"the task's file {listed} lies outside the folder of the tasks' files and is not opened")
        if not path.is_file():
            raise NoSuchFile(f"{listed} is not a regular file")
        return path

    def _content(self, path: Path, listed: str) -> bytes:
        try:
            # A link cannot take its place between the check and this, and a pipe cannot make us wait.
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise NoSuchFile(f"the task's file {listed} cannot be opened ({error.strerror})") from error
        with open(handle, "rb", closefd=True) as file:
            self._check_size(os.fstat(handle).st_size, listed)
            return file.read(self._max_bytes)

    def _check_size(self, size: int, listed: str) -> None:
        if size > self._max_bytes:
            raise NoSuchFile(f"{listed} has {size:,} bytes; files up to {self._max_bytes:,} are read")


def _listed(task: Task, name: str) -> str:
    """The task's name of the file that the model means: the same text, or the last part of the path."""
    if not task.files:
        raise NoSuchFile("this task has no files")
    if name in task.files:
        return name
    same = [path for path in task.files if Path(path).name == name]
    if len(same) == 1:
        return same[0]
    raise NoSuchFile(f"{name[:200]!r} is not a file of this task; its files are {', '.join(task.files)}")


def missing_files(tasks: Sequence[Task], settings: Sequence[str] = ()) -> list[ToolError]:
    """Why files of these tasks can never be read, one error per task; `settings` are the `name=setting` of tools."""
    folder = dict(item.partition("=")[::2] for item in settings).get("read_file", "")
    if folder and not Path(folder).is_dir():
        return []  # a tool of the user's, or one that reports the problem with its folder itself
    files = TaskFiles(folder) if folder else TaskFiles.from_environment(os.environ)
    found = []
    for task in tasks:
        try:
            files.check(task)
        except ToolError as error:
            found.append(error)
    return found
