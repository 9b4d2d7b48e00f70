"""Scanners by name: those that come with coa, those that other packages add, and those that a user names.

Other packages declare their scanners under the entry point group `coa.scanners`. What stands there, or behind
`module:function`, is a function of a trajectory and its profile, or a class or an object with `name`, `about` and
`scan`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from inspect import getdoc, isclass
from typing import Final

from coa.errors import CoaError, ConfigError
from coa.importing import import_function, load_entry_point
from coa.scan.finding import Note, Scanner
from coa.scan.scanners import SCANNERS
from coa.trajectory import Profile, Trajectory

log = logging.getLogger(__name__)

GROUP: Final = "coa.scanners"


@dataclass(frozen=True)
class FunctionScanner:
    """A function of a trajectory and its profile, as a scanner."""

    name: str
    about: str
    function: Callable[[Trajectory, Profile], Iterable[Note]]

    def scan(self, trajectory: Trajectory, profile: Profile) -> Iterable[Note]:
        return self.function(trajectory, profile)


def open_scanners(names: Sequence[str] | None = None) -> list[Scanner]:
    """The scanners of these names; without names, all that are installed.

    A scanner of another package that cannot be loaded is an error if it is named, and left out with a warning if not.
    """
    shipped: dict[str, Callable[[], Scanner]] = {kind().name: kind for kind in SCANNERS}
    known = {**shipped, **_declared(shipped)}
    if not names:
        return [scanner for name, open_ in known.items() if (scanner := _opened(open_, name in shipped)) is not None]
    return [_named(name, known) for name in dict.fromkeys(names)]


def _named(name: str, known: dict[str, Callable[[], Scanner]]) -> Scanner:
    if name in known:
        return known[name]()
    if ":" in name:
        found = import_function(name, what="the scanner", error=ConfigError)
        return _as_scanner(found, name.rpartition(":")[2])
    hint = f"use one of {', '.join(known)}, or module:function for one of your own"
    raise ConfigError(f"there is no scanner named {name!r}", hint=hint)


def _declared(taken: Iterable[str]) -> dict[str, Callable[[], Scanner]]:
    """Scanners of other packages. A shipped name cannot be taken."""
    found: dict[str, Callable[[], Scanner]] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        if point.name in taken or point.name in found:
            log.warning("the scanner %s of %s is left out: the name is taken", point.name, point.value)
            continue
        found[point.name] = lambda point=point: _as_scanner(  # type: ignore[misc]
            load_entry_point(point, what="the scanner", error=ConfigError), point.name
        )
    return found


def _opened(open_: Callable[[], Scanner], shipped: bool) -> Scanner | None:
    if shipped:
        return open_()
    try:
        return open_()
    except CoaError as error:
        log.warning("%s", error.message)
        return None


def _as_scanner(found: object, name: str) -> Scanner:
    if isclass(found):
        try:
            found = found()
        except Exception as error:  # code of any origin runs here
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"the scanner {name} cannot be made without arguments: {reason}") from error
    if isinstance(found, Scanner):
        return found
    if not callable(found) or hasattr(found, "scan"):
        hint = "give it `name`, `about` and `scan`, or name a function of a trajectory and its profile"
        raise ConfigError(f"{name} is not a scanner but a {type(found).__name__}", hint=hint)
    about = (getdoc(found) or "").strip().partition("\n")[0]
    return FunctionScanner(name, about or "a scanner of your own", found)
