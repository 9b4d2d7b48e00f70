"""View: one web application over everything that any stage wrote.

with coa.view(["runs/", "data/"], port=0) as viewer:
    print(viewer.url)

`open_viewer` is the same function under a name that says what it does.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from coa.errors import not_installed
from coa.stage import Stage

if TYPE_CHECKING:
    from coa.view.bundle import write_bundle
    from coa.view.server import Viewer, open_viewer
    from coa.view.server import open_viewer as view

__all__ = ["Viewer", "open_viewer", "view", "write_bundle"]
_HOMES = {"Viewer": "coa.view.server", "open_viewer": "coa.view.server", "write_bundle": "coa.view.bundle"}


def __getattr__(name: str) -> object:
    name = "open_viewer" if name == "view" else name
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = import_module(_HOMES[name])
    except ImportError as error:
        raise (not_installed(error) or error) from error
    return getattr(home, name)


sys.modules[__name__].__class__ = Stage
