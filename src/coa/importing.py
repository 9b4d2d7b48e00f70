"""From `module:function`, as a user writes it, to the function.

Users name scorers, rewards, tools and teams that way, from the folder in which they work, so that folder is searched
first. `path/to/file.py:function` names a function in a file that need not be importable; its folder is searched too.
"""

from __future__ import annotations

import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

from coa.errors import CoaError


def import_function(target: str, *, what: str, error: type[CoaError]) -> Callable[..., Any]:
    """The function of that name. `what` says in error messages what it is for, such as "the scorer"."""
    place, _, name = target.rpartition(":")
    hint = "write module:function, importable from the current folder, or path/to/file.py:function"
    if not place or not name:
        raise error(f"{what} {target!r} names no function", hint=hint)
    try:
        if place.endswith(".py"):
            found = getattr(_from_file(Path(place)), name)
        else:
            _search(Path.cwd())
            found = pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError, OSError, SyntaxError) as reason:
        raise error(f"{what} {target!r} cannot be imported: {reason}", hint=hint) from reason
    if not callable(found):
        raise error(f"{what} {target!r} is not a function but a {type(found).__name__}", hint=hint)
    return found  # type: ignore[no-any-return]


def load_entry_point(point: EntryPoint, *, what: str, error: type[CoaError]) -> Any:
    """What an installed package declares under that name. `what` says in error messages what it is for."""
    try:
        return point.load()
    except (ImportError, AttributeError) as reason:
        raise error(f"{what} {point.name} of {point.value} cannot be loaded: {reason}") from reason


def _from_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    _search(path.resolve().parent)
    spec.loader.exec_module(module)
    return module


def _search(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
